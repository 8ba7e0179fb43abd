//! Operations of several ranks without sockets: bytes go from one rank to the
//! next in pieces of any size, ranks take turns in any order.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::communicator::Reduction;
use crate::communicator::ring::element::Element;
use crate::communicator::ring::heading::{Heading, Operation};
use crate::communicator::ring::plan::Plan;
use crate::communicator::ring::transfer::{OtherOperation, Transfer};

/// A sequence of turns: whose, and how many bytes go.
type Turns = Vec<(usize, usize)>;

fn turns() -> impl Strategy<Value = Turns> {
    prop::collection::vec((0..8_usize, 1..40_usize), 1..60)
}

fn heading<T: Element>(operation: Operation, elements: usize) -> Heading {
    Heading { sequence: 0, operation, element_type: T::TYPE, elements: elements as u64 }
}

/// Carries out an operation on the vectors of all ranks.
fn carry_out<T: Element>(operation: Operation, vectors: &mut [Vec<T>], turns: &Turns) {
    let nranks = vectors.len();
    let mut between: Vec<VecDeque<u8>> = vec![VecDeque::new(); nranks];
    let mut transfers: Vec<Transfer<'_, T>> = vectors
        .iter_mut()
        .enumerate()
        .map(|(rank, elements)| {
            let (rank, nranks, count) = (rank as u32, nranks as u32, elements.len());
            let (plan, reduction) = match operation {
                Operation::Broadcast { root } => {
                    (Plan::broadcast(rank, nranks, root, count), Reduction::Sum)
                }
                Operation::AllReduce(reduction) => {
                    (Plan::all_reduce(rank, nranks, count), reduction)
                }
                other => unreachable!("{other:?}"),
            };
            Transfer::new(plan, heading::<T>(operation, count), reduction, elements)
        })
        .collect();
    // Each sweep begins with the given turns, and ends with one of each rank.
    loop {
        let mut moved = false;
        let everybody = (0..nranks).map(|rank| (rank, 7));
        for (rank, bytes) in turns.iter().copied().chain(everybody) {
            let rank = rank % nranks;
            let next = (rank + 1) % nranks;
            let outgoing = transfers[rank].outgoing();
            let sent = outgoing.len().min(bytes);
            between[next].extend(&outgoing[..sent]);
            transfers[rank].sent(sent);
            let received = transfers[rank].wanted().min(bytes).min(between[rank].len());
            let piece: Vec<u8> = between[rank].drain(..received).collect();
            transfers[rank].received(&piece).expect("the same operation");
            moved |= sent > 0 || received > 0;
        }
        if transfers.iter().all(|transfer| transfer.is_complete()) {
            break;
        }
        assert!(moved, "nobody can go on");
    }
    assert!(between.iter().all(VecDeque::is_empty), "more was sent than received");
}

fn vectors<T: std::fmt::Debug>(
    element: impl Strategy<Value = T> + Clone,
) -> impl Strategy<Value = Vec<Vec<T>>> {
    (1..=8_usize, 0..50_usize).prop_flat_map(move |(nranks, count)| {
        let vector = prop::collection::vec(element.clone(), count);
        prop::collection::vec(vector, nranks)
    })
}

/// The sum of each segment begins at the rank of its number and goes around.
fn sum_in_order(vectors: &[Vec<f32>]) -> Vec<u32> {
    let (nranks, count) = (vectors.len(), vectors[0].len());
    let segment = |at| (0..nranks).find(|k| at < (k + 1) * count / nranks).expect("a segment");
    (0..count)
        .map(|at| {
            let ranks = (0..nranks).map(|step| (segment(at) + step) % nranks);
            let sum = ranks.map(|rank| vectors[rank][at]).reduce(|before, here| before + here);
            sum.expect("a rank").to_bits()
        })
        .collect()
}

proptest! {
    #[test]
    fn integers_are_reduced_as_by_hand(given in vectors(any::<i64>()), turns in turns()) {
        for (reduction, by_hand) in [
            (Reduction::Sum, i64::wrapping_add as fn(i64, i64) -> i64),
            (Reduction::Min, i64::min),
            (Reduction::Max, i64::max),
        ] {
            let expected: Vec<i64> = (0..given[0].len())
                .map(|at| given.iter().map(|vector| vector[at]).reduce(by_hand).unwrap())
                .collect();
            let mut vectors = given.clone();
            carry_out(Operation::AllReduce(reduction), &mut vectors, &turns);
            for vector in vectors {
                prop_assert_eq!(&vector, &expected);
            }
        }
    }

    /// Also not-a-numbers and infinities: the same bits at all ranks, whatever
    /// comes first.
    #[test]
    fn floats_are_summed_in_one_order(given in vectors(any::<f32>()), turns in turns()) {
        let finite = given.iter().flatten().all(|element| element.is_finite());
        let bits = |vector: &Vec<f32>| vector.iter().map(|element| element.to_bits()).collect();
        let mut vectors = given.clone();
        carry_out(Operation::AllReduce(Reduction::Sum), &mut vectors, &turns);
        let first: Vec<u32> = bits(&vectors[0]);
        for vector in &vectors {
            prop_assert_eq!(bits(vector), first.clone());
        }
        if finite {
            prop_assert_eq!(first, sum_in_order(&given));
        }
    }

    #[test]
    fn a_broadcast_reaches_all(
        given in vectors(any::<f64>().prop_map(f64::to_bits)),
        root in 0..8_usize,
        turns in turns(),
    ) {
        let root = root % given.len();
        let mut vectors: Vec<Vec<f64>> =
            given.iter().map(|vector| vector.iter().copied().map(f64::from_bits).collect()).collect();
        carry_out(Operation::Broadcast { root: root as u32 }, &mut vectors, &turns);
        for vector in vectors {
            let bits: Vec<u64> = vector.into_iter().map(f64::to_bits).collect();
            prop_assert_eq!(&bits, &given[root]);
        }
    }

    /// A neighbour's bytes are never trusted: they end in an error or in numbers,
    /// and no more is wanted than there is room for.
    #[test]
    fn hostile_bytes_are_refused_or_counted(
        begins_well in any::<bool>(),
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20),
        count in 0..60_usize,
    ) {
        let mut elements = vec![1.0_f32; count];
        let plan = Plan::all_reduce(1, 3, count);
        let heading = heading::<f32>(Operation::AllReduce(Reduction::Sum), count);
        let mut transfer = Transfer::new(plan, heading, Reduction::Sum, &mut elements);
        let well = begins_well.then(|| heading.encode().to_vec());
        for piece in well.into_iter().chain(pieces) {
            let mut rest = &piece[..];
            while transfer.wanted() > 0 && !rest.is_empty() {
                let (now, later) = rest.split_at(transfer.wanted().min(rest.len()));
                rest = later;
                if transfer.received(now).is_err() {
                    prop_assert!(!begins_well);
                    return Ok(());
                }
            }
        }
    }
}

#[test]
fn another_operation_of_the_neighbour_is_named() {
    let mut elements = [1_i64; 4];
    let ours = heading::<i64>(Operation::Barrier, 4);
    let theirs = heading::<i64>(Operation::Close, 4);
    let plan = Plan::all_reduce(0, 2, 4);
    let mut transfer = Transfer::new(plan, ours, Reduction::Sum, &mut elements);
    let encoded = theirs.encode();
    transfer.received(&encoded[..5]).unwrap();
    assert_eq!(transfer.received(&encoded[5..]), Err(OtherOperation { theirs: Some(theirs) }));
    assert_eq!(theirs.to_string(), "close (operation 0)");
}
