//! Which elements a rank sends to the next and receives from the one before, in
//! which order. Pure.
//!
//! An all-reduce cuts the vector into one segment for each rank. In step `k` of
//! `2(n-1)`, rank `r` sends segment `r-k` and receives segment `r-k-1`: it adds
//! what it receives in the first half, and keeps it as it is in the second. So
//! it sends in each step what it received in the one before, and may send as many
//! elements as its own segment and what it has received. Every segment is summed
//! along one fixed path, and copied from where its sum was complete: all ranks
//! get the same bytes, the same ones each time.

use std::ops::Range;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Combined with those that are here.
    Combine,
    /// Put in their place.
    Replace,
}

/// The part of one rank in an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// Ranges to send, in this order; `None` if nothing is sent to the next rank.
    pub(super) send: Option<Vec<Range<usize>>>,
    /// Ranges to receive, in this order; `None` if the rank before sends nothing.
    pub(super) receive: Option<Vec<(Range<usize>, Arrival)>>,
    /// How many elements may be sent before any is received.
    pub(super) head_start: usize,
}

impl Plan {
    pub(super) fn all_reduce(rank: u32, nranks: u32, elements: usize) -> Plan {
        let (rank, nranks) = (rank as usize, nranks as usize);
        if nranks == 1 {
            return Plan { send: None, receive: None, head_start: 0 };
        }
        let steps = 2 * (nranks - 1);
        let segment = |step: usize| segment(elements, (rank + 2 * nranks - step) % nranks, nranks);
        let arrival = |step| match step < nranks - 1 {
            true => Arrival::Combine,
            false => Arrival::Replace,
        };
        Plan {
            send: Some((0..steps).map(segment).collect()),
            receive: Some((0..steps).map(|step| (segment(step + 1), arrival(step))).collect()),
            head_start: segment(0).len(),
        }
    }

    pub(super) fn broadcast(rank: u32, nranks: u32, root: u32, elements: usize) -> Plan {
        let last = rank == (root + nranks - 1) % nranks;
        let all = 0..elements;
        Plan {
            send: (!last).then(|| vec![all.clone()]),
            receive: (rank != root).then(|| vec![(all, Arrival::Replace)]),
            head_start: if rank == root { elements } else { 0 },
        }
    }
}

/// The elements of one segment. In 128 bits, for the product exceeds 64.
fn segment(elements: usize, index: usize, nranks: usize) -> Range<usize> {
    let bound = |index: usize| (elements as u128 * index as u128 / nranks as u128) as usize;
    bound(index)..bound(index + 1)
}
