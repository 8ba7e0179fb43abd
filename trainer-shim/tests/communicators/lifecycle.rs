use std::sync::Arc;
use std::thread;

use holdfast_trainer_shim::communicator::ring::{DeadPeer, Ring, RingOptions};
use holdfast_trainer_shim::communicator::{
    Backend, Buffer, Communicator, Failure, MintOptions, Reduction, State, Work,
};

use crate::members::{GROUP, PATIENCE, ended, form, member, options};

/// So many that an abort meets an all-reduce that is half done.
const ELEMENTS: usize = 1024 * 1024;

fn sockets() -> RingOptions {
    options(DeadPeer::Sockets)
}

fn silent() -> RingOptions {
    options(DeadPeer::Silent)
}

fn all_reduce(member: &Arc<dyn Communicator>) -> Work<Buffer> {
    member.all_reduce(vec![1_f32; ELEMENTS].into(), Reduction::Sum)
}

fn lost(result: &Result<Buffer, Failure>, whom: u32) -> bool {
    matches!(result, Err(Failure::PeerLost { rank, .. }) if *rank == whom)
}

#[test]
fn a_dead_member_is_an_error_at_its_neighbours_only() {
    let members = form(&sockets(), 4);
    let [mut across, before, after] = [0, 1, 3].map(|rank: usize| all_reduce(&members[rank]));
    members[2].release();
    assert!(lost(&ended(before), 2));
    assert!(lost(&ended(after), 2));
    // The neighbours have failed, and keep quiet about it.
    assert_eq!(across.poll(), None);
    assert_eq!(members[0].state(), State::Ready);
    members[0].quiesce();
    assert_eq!(ended(across), Err(Failure::Aborted));
    assert_eq!(members[0].state(), State::Failed(Failure::Aborted));
    // A failed communicator reports the cause, also after the abort.
    for rank in [1, 3] {
        members[rank].quiesce();
        assert!(matches!(members[rank].state(), State::Failed(Failure::PeerLost { rank: 2, .. })));
        assert!(lost(&ended(all_reduce(&members[rank])), 2));
    }
}

#[test]
fn in_silent_mode_nobody_is_told_of_a_dead_member() {
    let silent = form(&silent(), 5);
    let told = form(&sockets(), 5);
    let works: Vec<_> = [0, 1, 3, 4].map(|rank: usize| (rank, all_reduce(&silent[rank]))).into();
    let seen = [1, 3].map(|rank: usize| all_reduce(&told[rank]));
    silent[2].release();
    told[2].release();
    // By now, sockets that were closed earlier have shown it to their peers.
    for work in seen {
        assert!(lost(&ended(work), 2));
    }
    for (rank, mut work) in works {
        assert_eq!(work.poll(), None);
        assert_eq!(silent[rank].state(), State::Ready);
        silent[rank].quiesce();
        assert_eq!(ended(work), Err(Failure::Aborted));
    }
}

#[test]
fn an_idle_communicator_sees_nothing() {
    let members = form(&sockets(), 3);
    members[1].release();
    assert_eq!(members[0].state(), State::Ready);
    // It is found by the next operation.
    assert!(lost(&ended(all_reduce(&members[0])), 1));
}

#[test]
fn an_abort_ends_what_runs_and_what_waits() {
    let members = form(&sockets(), 3);
    // Rank 2 never comes.
    let works: Vec<_> = (0..10).map(|_| all_reduce(&members[0])).collect();
    let barrier = members[0].barrier();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| members[0].quiesce());
        }
    });
    for work in works {
        assert_eq!(ended(work), Err(Failure::Aborted));
    }
    assert_eq!(ended(barrier), Err(Failure::Aborted));
    assert_eq!(ended(members[0].barrier()), Err(Failure::Aborted));
    members[0].release();
    members[0].release();
}

#[test]
fn an_abort_joins_an_initialisation_that_lacks_members() {
    let backend = Ring::new(sockets());
    let options = MintOptions { group: GROUP.to_owned(), generation: 1, nranks: 4 };
    let minter = backend.mint(&options).unwrap();
    let members: Vec<_> =
        (0..3).map(|rank| backend.begin_init(member(minter.id(), 1, rank, 4)).unwrap()).collect();
    for member in &members {
        assert_eq!(member.state(), State::InProgress);
        assert_eq!(ended(member.barrier()), Err(Failure::NotReady));
        assert_eq!(ended(member.close()), Err(Failure::NotReady));
        let initialised = member.initialised();
        member.quiesce();
        assert_eq!(member.state(), State::Failed(Failure::Aborted));
        assert_eq!(ended(initialised), Err(Failure::Aborted));
        assert_eq!(ended(member.initialised()), Err(Failure::Aborted));
        member.release();
    }
}

#[test]
fn a_communicator_that_is_dropped_is_aborted() {
    let mut members = form(&sockets(), 2);
    let work = all_reduce(&members[0]);
    drop(members.remove(0));
    assert_eq!(ended(work), Err(Failure::Aborted));
}

#[test]
fn several_communicators_are_aborted_at_once() {
    let communicators: Vec<_> = (0..8).flat_map(|_| form(&silent(), 4)).collect();
    // One rank of each never comes.
    let works: Vec<_> = communicators
        .iter()
        .filter(|communicator| communicator.options().rank != 3)
        .map(all_reduce)
        .collect();
    thread::scope(|scope| {
        for communicator in &communicators {
            scope.spawn(|| {
                communicator.quiesce();
                communicator.release();
            });
        }
    });
    for work in works {
        assert_eq!(ended(work), Err(Failure::Aborted));
    }
}

#[test]
fn a_close_waits_for_all_members() {
    for ring in [sockets(), silent()] {
        let members = form(&ring, 4);
        let sums: Vec<_> = members.iter().map(all_reduce).collect();
        let mut closes: Vec<_> = members[..3].iter().map(|member| member.close()).collect();
        for sum in sums {
            ended(sum).unwrap();
        }
        for close in &mut closes {
            assert_eq!(close.poll(), None);
        }
        closes.push(members[3].close());
        for close in closes {
            assert_eq!(ended(close), Ok(()));
        }
        for member in &members {
            member.quiesce();
            assert_eq!(member.state(), State::Closed);
            assert_eq!(ended(member.barrier()), Err(Failure::Closed));
            assert_eq!(ended(member.close()), Err(Failure::Closed));
            member.release();
            assert_eq!(member.state(), State::Closed);
        }
    }
}

/// Members close one after the other, in any order: none is taken for dead.
#[test]
fn nobody_who_closes_is_taken_for_dead() {
    for round in 0..40 {
        let members = form(&sockets(), 5);
        thread::scope(|scope| {
            for rank in 0..5 {
                let member = &members[(rank * 2 + round) % 5];
                scope.spawn(|| {
                    ended(member.barrier()).unwrap();
                    ended(member.close()).unwrap();
                    member.release();
                });
            }
        });
    }
}

#[test]
fn a_close_that_lacks_a_member_ends_by_an_abort_only() {
    let members = form(&silent(), 3);
    let closes = [0, 1].map(|rank: usize| members[rank].close());
    members[2].quiesce();
    for (mut close, member) in closes.into_iter().zip(&members) {
        assert_eq!(close.poll(), None);
        assert_eq!(ended(member.barrier()), Err(Failure::Closed));
        member.quiesce();
        assert_eq!(ended(close), Err(Failure::Aborted));
        assert_eq!(member.state(), State::Failed(Failure::Aborted));
    }
}

#[test]
fn in_strict_mode_a_close_after_an_abort_or_a_failure_is_an_error() {
    let members = form(&sockets(), 3);
    members[0].quiesce();
    let cause = Box::new(Failure::Aborted);
    assert_eq!(ended(members[0].close()), Err(Failure::CloseAfterAbort { cause }));
    assert!(lost(&ended(all_reduce(&members[1])), 0));
    assert!(matches!(ended(members[1].close()), Err(Failure::CloseAfterAbort { .. })));
}

#[test]
fn otherwise_it_waits_as_one_of_nccl_does() {
    let lenient = RingOptions { strict: false, ..sockets() };
    let members = form(&lenient, 3);
    members[0].quiesce();
    assert!(lost(&ended(all_reduce(&members[1])), 0));
    let mut close = members[1].close();
    assert_eq!(close.poll(), None);
    members[1].quiesce();
    assert_eq!(ended(close), Err(Failure::Aborted));
}

/// The next generation does not feel the one before, which hangs still.
#[test]
fn generations_of_a_group_do_not_disturb_each_other() {
    let old = form(&silent(), 4);
    let hanging: Vec<_> = old[..3].iter().map(all_reduce).collect();
    let new = form(&silent(), 4);
    let works: Vec<_> = new.iter().map(all_reduce).collect();
    for work in works {
        assert_eq!(ended(work), Ok(Buffer::F32(vec![4.0; ELEMENTS])));
    }
    for member in &old {
        member.release();
    }
    for work in hanging {
        assert_eq!(ended(work), Err(Failure::Aborted));
    }
}

#[test]
fn work_can_be_awaited_by_tasks_and_by_threads() {
    let members = form(&sockets(), 2);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let sums = runtime.block_on(async {
        let sums =
            members.iter().map(|member| member.all_reduce(vec![2_i64].into(), Reduction::Sum));
        tokio::time::timeout(PATIENCE, futures::future::join_all(sums)).await
    });
    assert_eq!(sums.expect("they end"), vec![Ok(Buffer::I64(vec![4])); 2]);
    let barriers: Vec<_> = members.iter().map(|member| member.barrier()).collect();
    thread::scope(|scope| {
        for barrier in barriers {
            scope.spawn(|| assert_eq!(barrier.wait(), Ok(())));
        }
    });
}
