use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use holdfast_trainer_shim::communicator::ring::{DeadPeer, OPERATIONS_WAITING_MAX, RingOptions};
use holdfast_trainer_shim::communicator::{Buffer, Communicator, Failure, Reduction, State};
use proptest::prelude::*;

use crate::members::{ended, form, options};

fn sockets() -> RingOptions {
    options(DeadPeer::Sockets)
}

/// Has all members reduce what each of them gives.
fn all_reduce(
    members: &[std::sync::Arc<dyn Communicator>],
    reduction: Reduction,
    given: impl Fn(usize) -> Buffer,
) -> Vec<Buffer> {
    let works: Vec<_> = members
        .iter()
        .enumerate()
        .map(|(rank, member)| member.all_reduce(given(rank), reduction))
        .collect();
    works.into_iter().map(|work| ended(work).expect("a result")).collect()
}

/// Vectors of one length for 1 to 8 ranks; the numbers are such that every
/// order of a sum gives the same.
fn vectors() -> impl Strategy<Value = Vec<Vec<i32>>> {
    (1..=8_usize, prop_oneof![0..20_usize, 1000..1010_usize, Just(33_333_usize)]).prop_flat_map(
        |(nranks, count)| {
            let vector = any::<u64>().prop_map(move |seed| numbers(seed, count));
            prop::collection::vec(vector, nranks)
        },
    )
}

/// Integers that single precision holds, also in sums of eight.
fn numbers(seed: u64, count: usize) -> Vec<i32> {
    let mixed = (0..count as u64).map(|at| (seed ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 45);
    mixed.map(|number| number as i32 - (1 << 18)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn every_member_gets_the_plain_result(given in vectors()) {
        let members = form(&sockets(), given.len() as u32);
        for (reduction, by_hand) in [
            (Reduction::Sum, (|a, b| a + b) as fn(i32, i32) -> i32),
            (Reduction::Min, i32::min),
            (Reduction::Max, i32::max),
        ] {
            let expected: Vec<i32> = (0..given[0].len())
                .map(|at| given.iter().map(|vector| vector[at]).reduce(by_hand).unwrap())
                .collect();
            let single = |vector: &[i32]| Buffer::F32(vector.iter().map(|x| *x as f32).collect());
            let double = |vector: &[i32]| Buffer::F64(vector.iter().map(|x| (*x).into()).collect());
            let whole = |vector: &[i32]| Buffer::I64(vector.iter().map(|x| (*x).into()).collect());
            for convert in [&single as &dyn Fn(&[i32]) -> Buffer, &double, &whole] {
                for result in all_reduce(&members, reduction, |rank| convert(&given[rank])) {
                    prop_assert_eq!(result, convert(&expected));
                }
            }
        }
    }

    #[test]
    fn a_broadcast_gives_all_what_the_root_has(
        nranks in 1..=8_u32,
        root in 0..8_u32,
        count in prop_oneof![0..20_usize, Just(70_001_usize)],
    ) {
        let root = root % nranks;
        let members = form(&sockets(), nranks);
        let works: Vec<_> = (0_u64..)
            .zip(&members)
            .map(|(rank, member)| {
                let given: Vec<i64> = numbers(rank, count).into_iter().map(i64::from).collect();
                member.broadcast(given.into(), root)
            })
            .collect();
        let expected: Vec<i64> =
            numbers(root.into(), count).into_iter().map(i64::from).collect();
        for work in works {
            prop_assert_eq!(ended(work), Ok(Buffer::I64(expected.clone())));
        }
    }
}

/// Sums whose order matters: the same bits at all ranks, and the next time.
#[test]
fn sums_of_floats_are_the_same_everywhere_and_every_time() {
    let members = form(&sockets(), 5);
    let given = |rank: usize| {
        let numbers = numbers(rank as u64, 30_001).into_iter();
        Buffer::F32(numbers.map(|number| number as f32 * 1e-3_f32.powi(rank as i32)).collect())
    };
    let first = all_reduce(&members, Reduction::Sum, given);
    let again = form(&sockets(), 5);
    let again = all_reduce(&again, Reduction::Sum, given);
    let bits = |buffer: &Buffer| match buffer {
        Buffer::F32(elements) => elements.iter().map(|element| element.to_bits()).collect(),
        other => panic!("{other:?}"),
    };
    let expected: Vec<u32> = bits(&first[0]);
    for result in first.iter().chain(&again) {
        assert!(bits(result) == expected);
    }
}

/// Far more than any buffer between two ranks holds.
#[test]
fn large_payloads_do_not_block_each_other() {
    let members = form(&sockets(), 4);
    let count = 64 * 1024 * 1024 / size_of::<f64>();
    for result in all_reduce(&members, Reduction::Sum, |rank| {
        Buffer::F64((0..count).map(|at| (at % 1000 + rank) as f64).collect())
    }) {
        let Buffer::F64(elements) = result else { panic!("other elements than were given") };
        assert_eq!(elements.len(), count);
        for (at, element) in elements.into_iter().enumerate() {
            assert!(element == (4 * (at % 1000) + 6) as f64, "element {at} is {element}");
        }
    }
}

#[test]
fn a_barrier_ends_when_all_have_begun_it() {
    const ROUNDS: usize = 50;
    let members = form(&sockets(), 4);
    let arrived: Vec<AtomicUsize> = (0..ROUNDS).map(|_| AtomicUsize::new(0)).collect();
    thread::scope(|scope| {
        for member in &members {
            scope.spawn(|| {
                for arrived in &arrived {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    ended(member.barrier()).unwrap();
                    assert_eq!(arrived.load(Ordering::SeqCst), 4);
                }
            });
        }
    });
}

#[test]
fn operations_are_carried_out_in_the_order_of_the_calls() {
    let members = form(&sockets(), 3);
    let works: Vec<Vec<_>> = members
        .iter()
        .map(|member| {
            (0..100)
                .map(|n| member.all_reduce(vec![n; n as usize].into(), Reduction::Sum))
                .collect()
        })
        .collect();
    for of_member in works {
        for (n, work) in (0_i64..).zip(of_member) {
            assert_eq!(ended(work), Ok(Buffer::I64(vec![3 * n; n as usize])));
        }
    }
}

#[test]
fn members_in_different_operations_are_told() {
    let members = form(&sockets(), 2);
    let sum = members[0].all_reduce(vec![1_i64].into(), Reduction::Sum);
    let shorter = members[1].all_reduce(vec![1_i64; 2].into(), Reduction::Sum);
    for (rank, work) in [(1, sum), (0, shorter)] {
        assert!(matches!(ended(work), Err(Failure::Mismatch { rank: other, .. }) if other == rank));
    }
    assert!(matches!(members[0].state(), State::Failed(Failure::Mismatch { .. })));
}

#[test]
fn what_cannot_be_carried_out_is_refused() {
    let members = form(&sockets(), 2);
    assert_eq!(
        ended(members[0].broadcast(vec![1_i64].into(), 2)).unwrap_err().to_string(),
        "invalid root: 2, where 2 members are numbered from 0"
    );
    // One of these is being carried out, and waits for the other member.
    let mut waiting: Vec<_> =
        (0..=OPERATIONS_WAITING_MAX + 1).map(|_| members[0].barrier()).collect();
    let refused = waiting.pop().expect("there are many");
    let limit = OPERATIONS_WAITING_MAX;
    assert_eq!(ended(refused), Err(Failure::Overloaded { limit }));
    assert_eq!(members[0].state(), State::Ready);
    members[0].quiesce();
    for work in waiting {
        let failure = ended(work).unwrap_err();
        assert!(matches!(failure, Failure::Aborted | Failure::Overloaded { .. }));
    }
}
