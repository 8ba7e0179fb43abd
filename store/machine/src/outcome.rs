//! What is made of a closed round: ranks, votes and atomic blocks.
//!
//! All but `advance` and `conclude` are functions of values. A round knows nothing of them,
//! and nothing here knows how a round closes.
//!
//! | module | concludes |
//! | --- | --- |
//! | `advance` | the next iteration: ranks, who was dropped, budgets |
//! | `assignment` | who takes part in it, and with which rank |
//! | `vote` | a vote over the payloads |
//! | `block` | whether an atomic block succeeded, at its exit |
//! | `conclude` | fetches what these need, and keeps what the job has to remember |

mod advance;
pub(crate) mod assignment;
pub(crate) mod block;
mod conclude;
pub(crate) mod vote;

use holdfast_api::{Against, AgainstWhy, Blob, Incarnation, ProcessId};

/// How much of a payload is told when its sender stood against the rest: what
/// is told goes to every member, and a payload can be long.
const SAID_BYTES_MAX: usize = 256;

/// Names one that stood against the rest, by what it brought.
fn against(process: ProcessId, incarnation: Incarnation, payload: Option<&Blob>) -> Against {
    let why = match payload {
        None => AgainstWhy::NotThere,
        Some(payload) if payload.len() <= SAID_BYTES_MAX => AgainstWhy::Said(payload.clone()),
        Some(payload) => AgainstWhy::Said(Blob::from(&payload.as_bytes()[..SAID_BYTES_MAX])),
    };
    Against { process, incarnation, why }
}
