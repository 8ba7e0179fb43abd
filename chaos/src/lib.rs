//! Whether a cluster kept its promises: what real programs called and got is
//! recorded, and judged afterwards by what they saw, not by what the store says
//! of itself.
//!
//! Entry points: [`Recorder`] (a program writes down what it does), [`History`]
//! (all of that, read again), [`check`](check::check) (the verdict).
//!
//! | module | holds |
//! | --- | --- |
//! | [`history`] | what is recorded, and the files of it |
//! | [`clock`] | the one clock of a history |
//! | [`story`] | pure: lives, calls and closings, put together from the records |
//! | [`order`] | pure: points in time of which only bounds and orders are known |
//! | [`mod@check`] | pure: the rules, and the verdict |
//!
//! # Architecture invariants
//!
//! * Nothing of the store is linked but its vocabulary: a model copied from the
//!   code cannot find its bugs.
//! * The verdict rests on what programs called and got and on when they were
//!   killed. What the store says (revisions, events) is compared with that and
//!   must fit; it excuses nothing.
//! * What cannot be decided is a failure, never a pass.
//! * A kill, a registration, a closing: each is a moment that is known as an
//!   interval, and every rule allows for all moments in it.

pub mod check;
pub mod clock;
pub mod history;
pub mod order;
pub mod story;

pub use check::{Report, check};
pub use history::{History, Recorder};
