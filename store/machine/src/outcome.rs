//! Conclusions of a closed round: ranks, votes and atomic blocks.
//!
//! All but `advance` and `conclude` are functions of values. Rounds do not depend
//! on them, and nothing here depends on how a round closes.
//!
//! | module | concludes |
//! | --- | --- |
//! | `advance` | the next iteration: ranks, dropped members, budgets |
//! | `assignment` | its members and their ranks |
//! | `vote` | a vote over the payloads |
//! | `block` | whether an atomic block succeeded, at its exit |
//! | `conclude` | collects their inputs, and keeps what the job must remember |

mod advance;
pub(crate) mod assignment;
pub(crate) mod block;
mod conclude;
pub(crate) mod vote;

use holdfast_api::{Against, AgainstWhy, Blob, Incarnation, ProcessId};

/// Bytes of a payload that are sent when its sender disagreed with the rest: they
/// go to every member, and a payload can be long.
const SAID_BYTES_MAX: usize = 256;

/// Names a member that disagreed, with its payload.
fn against(process: ProcessId, incarnation: Incarnation, payload: Option<&Blob>) -> Against {
    let why = match payload {
        None => AgainstWhy::NotThere,
        Some(payload) => AgainstWhy::Said(said(payload)),
    };
    Against { process, incarnation, why }
}

/// As much of a payload as is sent.
fn said(payload: &Blob) -> Blob {
    match payload.as_bytes().get(..SAID_BYTES_MAX) {
        Some(first) => Blob::from(first),
        None => payload.clone(),
    }
}
