//! The library of the package registry, where there is no GPU: ids and their
//! minters, and the errors where something is missing.

use std::collections::BTreeSet;

use holdfast_trainer_shim::communicator::nccl::{NcclBackend, NcclOptions};
use holdfast_trainer_shim::communicator::{Backend, Failure, MintOptions, Minter, State, UniqueId};
use rustix::process::{Pid, Signal, kill_process};

use crate::minting::options;
use crate::support::{
    Counts, children, in_a_process_of_its_own, is_open, library, meeting_point, variable,
};
use crate::{NRANKS, call_and_reason, comes_to, ended, member};

fn mint(backend: &NcclBackend, generation: u64) -> Result<Box<dyn Minter>, Failure> {
    backend.mint(&MintOptions { group: "world".to_owned(), generation, nranks: NRANKS })
}

fn is_alive(id: UniqueId) -> bool {
    is_open(meeting_point(&holdfast_nccl::UniqueId::from_bytes(*id.as_bytes())))
}

#[test]
fn ids_are_minted_by_children_that_end_with_them() {
    in_a_process_of_its_own("library::minters", &[]);
}

#[test]
#[ignore = "counts what its process has: run by `ids_are_minted_by_children_that_end_with_them`"]
fn minters() {
    let Some(library) = library() else { return };
    let backend = NcclBackend::new(options(library));
    let before = Counts::now();
    let mut ids = BTreeSet::new();
    for generation in 1..=20 {
        let minter = mint(&backend, generation).expect("an id");
        assert!(ids.insert(*minter.id().as_bytes()), "an id came twice");
        assert_eq!(Counts::now().children, before.children + 1);
        assert!(is_alive(minter.id()));
        let mut told = minter.ended();
        assert_eq!(told.poll(), None);
        if generation % 2 == 0 {
            minter.kill();
            minter.kill();
            assert_eq!(ended(minter.ended()), Err(Failure::Aborted));
        }
        let id = minter.id();
        drop(minter);
        assert_eq!(ended(told), Err(Failure::Aborted));
        assert!(!is_alive(id));
        assert_eq!(Counts::now().children, before.children);
    }
    comes_to(before);
}

#[test]
fn a_minter_that_is_killed_by_somebody_else_is_a_failure() {
    in_a_process_of_its_own("library::killed", &[]);
}

#[test]
#[ignore = "looks for its children: run by `a_minter_that_is_killed_by_somebody_else_is_a_failure`"]
fn killed() {
    let Some(library) = library() else { return };
    let backend = NcclBackend::new(options(library));
    let before = Counts::now();
    let minter = mint(&backend, 1).expect("an id");
    let told = minter.ended();
    let [child] = children()[..] else { panic!("{:?}", children()) };
    let child = Pid::from_raw(child.cast_signed()).expect("a process");
    kill_process(child, Signal::KILL).expect("it is ours");
    let failure = ended(told).expect_err("it has ended");
    assert!(matches!(failure, Failure::RootEnded { .. }), "{failure:?}");
    assert!(failure.to_string().contains("signal: 9"), "{failure}");
    assert_eq!(ended(minter.ended()), Err(failure));
    assert!(!is_alive(minter.id()));
    minter.kill();
    drop(minter);
    comes_to(before);
}

#[test]
fn what_mints_nothing_says_why() {
    in_a_process_of_its_own("library::not_minted", &[]);
}

#[test]
#[ignore = "counts what its process has: run by `what_mints_nothing_says_why`"]
fn not_minted() {
    let before = Counts::now();
    let reason = |options: NcclOptions| {
        let failure = mint(&NcclBackend::new(options), 1).map(drop).expect_err("no id");
        let (call, reason) = call_and_reason(&failure);
        assert_eq!(call, "minting a unique id");
        reason.to_owned()
    };
    let nowhere = || options("/nowhere/libnccl.so.2".into());
    let missing = reason(nowhere());
    assert!(
        missing.contains("/nowhere/libnccl.so.2") && missing.contains("Install one"),
        "{missing}"
    );
    let program = reason(NcclOptions { mint_program: "/nowhere/mint".into(), ..nowhere() });
    assert!(program.contains("/nowhere/mint cannot be started"), "{program}");
    assert!(program.contains("beside the agent"), "{program}");
    comes_to(before);
}

#[test]
fn without_a_gpu_the_failure_says_so_and_nothing_is_left() {
    let hidden = [variable("CUDA_VISIBLE_DEVICES", "")];
    in_a_process_of_its_own("library::without_a_gpu", &hidden);
}

#[test]
#[ignore = "counts what its process has: run by `without_a_gpu_the_failure_says_so_and_nothing_is_left`"]
fn without_a_gpu() {
    let Some(library) = library() else { return };
    let backend = NcclBackend::new(options(library));
    let cycle = |generation| {
        let minter = mint(&backend, generation).expect("an id");
        let communicator = backend.begin_init(member(minter.id(), generation)).expect("it begins");
        let failure = ended(communicator.initialised()).expect_err("there is no GPU");
        let (call, reason) = call_and_reason(&failure);
        assert_eq!(call, "using the GPU");
        // There is no driver, or there is one that sees nothing.
        let known = ["no CUDA driver on this machine", "there is no CUDA device 0", "CUDA failed"];
        assert!(known.iter().any(|known| reason.starts_with(known)), "{reason}");
        assert_eq!(communicator.state(), State::Failed(failure.clone()));
        assert_eq!(ended(communicator.barrier()), Err(failure.clone()));
        let close = ended(communicator.close());
        assert_eq!(close, Err(Failure::CloseAfterAbort { cause: Box::new(failure) }));
        if generation % 2 == 0 {
            communicator.quiesce();
            communicator.release();
        }
    };
    // Loads the library.
    cycle(0);
    let before = Counts::now();
    (1..=20).for_each(cycle);
    comes_to(before);
}

#[test]
fn without_a_library_the_failure_says_what_was_tried() {
    in_a_process_of_its_own("library::without_a_library", &[]);
}

#[test]
#[ignore = "counts what its process has: run by `without_a_library_the_failure_says_what_was_tried`"]
fn without_a_library() {
    let before = Counts::now();
    let backend = NcclBackend::new(options("/nowhere/libnccl.so.2".into()));
    let id = UniqueId::from_bytes([7; 128]);
    let communicator = backend.begin_init(member(id, 1)).expect("it begins");
    let failure = ended(communicator.initialised()).expect_err("there is no library");
    let (call, reason) = call_and_reason(&failure);
    assert_eq!(call, "loading NCCL");
    for part in ["/nowhere/libnccl.so.2", "pip install nvidia-nccl-cu12", "HOLDFAST_NCCL_LIBRARY"] {
        assert!(reason.contains(part), "{part:?} is not in: {reason}");
    }
    drop(communicator);
    comes_to(before);
}
