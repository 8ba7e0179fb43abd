"""What the environment says, and what it was meant to say."""

from __future__ import annotations

import logging
import os
from functools import lru_cache

from . import _holdfast


@lru_cache(maxsize=None)
def warn_once() -> None:
    """Says which variables with a slip in their names are ignored. Under an agent of the host, which has
    the same ones, it was said there."""
    if not os.environ.get("HOLDFAST_CONTROL"):
        for text in _holdfast.mistyped_variables():
            logging.getLogger("holdfast").warning("%s", text)
