//! The checker on histories whose verdict is known: those that JAX drew, those
//! that break one rule each, and small random ones against exhaustive search.

mod blocks;
mod exhaustive;
mod holds;
mod pictures;
mod planted;
mod runs;
mod scopes;
mod script;
