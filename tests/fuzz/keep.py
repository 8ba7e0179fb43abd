#!/usr/bin/env python3
"""Chooses the inputs of a target that the repository keeps: few, which together reach the most.

    keep.py BINARY LENGTH_MAX KEPT FOLDER...

The engine's merge writes down which features each input of the folders reaches. By these the
next input is always the one that adds the most. KEPT then holds the chosen ones alone, under the
names that the engine gives: their SHA-1.
"""
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile

# Bounds for one target.
FILES_MAX = 32
BYTES_MAX = 16 * 1024
MERGE_SECONDS_MAX = 3600


def features_of_files(control: pathlib.Path) -> dict:
    """A control file has a heading, one line for each input, and then lines of three kinds."""
    lines = control.read_text().splitlines()
    count = int(lines[0])
    names = [pathlib.Path(line) for line in lines[2:2 + count]]
    features = {}
    for line in lines[2 + count:]:
        kind, number, *values = line.split()
        if kind == "FT":
            features[names[int(number)]] = set(values)
    return features


def choose(features: dict) -> list:
    """By what an input adds, and of two that add as much, the shorter one."""
    chosen, reached, size = [], set(), 0
    left = {path: (path.stat().st_size, found) for path, found in features.items()}
    while left and len(chosen) < FILES_MAX:
        fitting = [path for path, (length, _) in left.items() if size + length <= BYTES_MAX]
        best = max(fitting, key=lambda path: (len(left[path][1] - reached), -left[path][0]), default=None)
        if best is None or not left[best][1] - reached:
            break
        length, found = left.pop(best)
        chosen.append(best)
        reached |= found
        size += length
    print(f"{len(chosen)} inputs, {size} bytes, {len(reached)} of {len(set().union(*features.values()))} features")
    return chosen


def main() -> None:
    binary, length_max, kept, *folders = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        control = pathlib.Path(scratch, "control")
        merged = pathlib.Path(scratch, "merged")
        merged.mkdir()
        # Edges alone: how often each is passed would make nearly every input a new one.
        options = ["-set_cover_merge=1", "-use_counters=0", f"-max_len={length_max}", f"-merge_control_file={control}"]
        subprocess.run(
            [binary, *options, merged, kept, *folders], check=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, timeout=MERGE_SECONDS_MAX,
        )
        contents = [path.read_bytes() for path in choose(features_of_files(control))]
    shutil.rmtree(kept)
    pathlib.Path(kept).mkdir(parents=True)
    for content in contents:
        pathlib.Path(kept, hashlib.sha1(content).hexdigest()).write_bytes(content)


if __name__ == "__main__":
    main()
