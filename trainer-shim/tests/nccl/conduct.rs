//! Which calls reach NCCL, in which order, and what its answers become. Each test
//! runs in a process of its own, where the small driver is found before any other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Instant;

use holdfast_nccl::Device;
use holdfast_trainer_shim::communicator::nccl::{NcclBackend, NcclOptions};
use holdfast_trainer_shim::communicator::{
    Backend, Buffer, Communicator, Failure, InitOptions, Reduction, Refusal, State, UniqueId, Work,
};

use crate::support::{Counts, PATIENCE, in_a_process_of_its_own, variable};
use crate::{RANK, build, call_and_reason, comes_to, ended, member};

/// The folder through which a test and its library talk.
const FOLDER: &str = "HOLDFAST_TEST_SMALL_NCCL";

const SUCCESS: i32 = 0;
const UNHANDLED_CUDA_ERROR: i32 = 1;
const REMOTE_ERROR: i32 = 6;
const IN_PROGRESS: i32 = 7;
/// CUDA's result code for work in progress.
const NOT_READY: i32 = 600;

/// Runs a test of this module with a library of this version.
fn run(test: &str, version: u32) {
    let folder = tempfile::tempdir().expect("a folder");
    let source = |name: &str| {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("nccl/tests/support").join(name)
    };
    let place = format!("-DFOLDER=\"{}\"", folder.path().display());
    let nccl = [place.as_str(), &format!("-DVERSION={version}")];
    build::library(&source("nccl.c"), &folder.path().join("interface.so"), &nccl);
    build::library(&source("cuda.c"), &folder.path().join("libcuda.so"), &[&place]);
    let variables = [variable("LD_LIBRARY_PATH", folder.path()), variable(FOLDER, folder.path())];
    in_a_process_of_its_own(&format!("conduct::{test}"), &variables);
}

const CURRENT: u32 = 22_809;
/// The newest without `ncclCommRevoke`.
const WITHOUT_REVOKE: u32 = 22_806;

/// The backend, and what its library was asked.
struct Small {
    folder: PathBuf,
    backend: NcclBackend,
}

impl Small {
    fn open() -> Small {
        Small::on(0)
    }

    fn on(device: u32) -> Small {
        let folder = PathBuf::from(std::env::var_os(FOLDER).expect("run by another test"));
        let library = Some(folder.join("interface.so"));
        let backend = NcclBackend::new(NcclOptions { device, library, ..NcclOptions::default() });
        Small { folder, backend }
    }

    /// Sets the code that a function returns from now on.
    fn answer(&self, call: &str, code: i32) {
        // Whole at once: the owner may be reading.
        let unfinished = self.folder.join("unfinished");
        std::fs::write(&unfinished, code.to_string()).expect("a file");
        std::fs::rename(unfinished, self.folder.join(call)).expect("the same folder");
    }

    /// The calls so far.
    fn calls(&self) -> Vec<String> {
        let calls = std::fs::read_to_string(self.folder.join("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    /// Forgets the calls so far.
    fn forget_calls(&self) {
        std::fs::write(self.folder.join("calls"), "").expect("a file");
    }

    fn until_called(&self, call: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.calls().iter().any(|line| line.starts_with(call)) {
            assert!(Instant::now() < end, "{call} was not called: {:?}", self.calls());
            std::thread::yield_now();
        }
    }

    fn begin(&self, generation: u64) -> Box<dyn Communicator> {
        let id = UniqueId::from_bytes([generation as u8; 128]);
        self.backend.begin_init(member(id, generation)).expect("it begins")
    }

    /// A communicator whose members are all there, its beginning not counted.
    fn form(&self, generation: u64) -> Box<dyn Communicator> {
        self.answer("state", SUCCESS);
        let communicator = self.begin(generation);
        assert_eq!(ended(communicator.initialised()), Ok(()));
        assert_eq!(communicator.state(), State::Ready);
        self.forget_calls();
        communicator
    }

    /// A communicator in a collective that does not end.
    fn hang(&self, generation: u64) -> (Box<dyn Communicator>, Work<Buffer>) {
        let communicator = self.form(generation);
        self.answer("query", NOT_READY);
        let work = communicator.all_reduce(vec![1.0_f32; 100].into(), Reduction::Sum);
        self.until_called("all_reduce");
        self.forget_calls();
        (communicator, work)
    }
}

fn free_bytes() -> usize {
    let device = Device::open(0).expect("the small driver");
    device.free_bytes().expect("the small driver")
}

#[test]
fn collectives_reach_nccl_with_their_types_and_come_back() {
    run("collectives", CURRENT);
}

#[test]
#[ignore = "run by `collectives_reach_nccl_with_their_types_and_come_back`"]
fn collectives() {
    let small = Small::open();
    let before = free_bytes();
    let member = small.form(1);
    let sum = |data: Buffer| ended(member.all_reduce(data, Reduction::Sum));
    assert_eq!(sum(vec![1.5_f32, -2.0].into()), Ok(vec![6.0_f32, -8.0].into()));
    assert_eq!(sum(vec![0.25_f64].into()), Ok(vec![1.0_f64].into()));
    assert_eq!(sum(vec![i64::MIN / 4].into()), Ok(vec![i64::MIN].into()));
    assert_eq!(sum(Buffer::F32(Vec::new())), Ok(Buffer::F32(Vec::new())));
    let max = member.all_reduce(vec![7_i64].into(), Reduction::Max);
    let min = member.all_reduce(vec![7_i64].into(), Reduction::Min);
    assert_eq!((ended(max), ended(min)), (Ok(vec![7_i64].into()), Ok(vec![7_i64].into())));
    assert_eq!(ended(member.broadcast(vec![3.5_f64; 3].into(), 2)), Ok(vec![3.5_f64; 3].into()));
    let wrong = ended(member.broadcast(vec![3.5_f64].into(), 4));
    assert!(matches!(wrong, Err(Failure::Invalid { what: "root", .. })), "{wrong:?}");
    assert_eq!(ended(member.barrier()), Ok(()));
    assert_eq!(
        small.calls(),
        [
            "all_reduce 1 count 2 type 7 op 0",
            "all_reduce 1 count 1 type 8 op 0",
            "all_reduce 1 count 1 type 4 op 0",
            "all_reduce 1 count 1 type 4 op 2",
            "all_reduce 1 count 1 type 4 op 3",
            "broadcast 1 count 3 type 8 root 2",
            "all_reduce 1 count 1 type 4 op 0",
        ]
    );
    small.forget_calls();

    assert_eq!(ended(member.close()), Ok(()));
    assert_eq!(member.state(), State::Closed);
    assert_eq!(ended(member.barrier()), Err(Failure::Closed));
    member.quiesce();
    member.release();
    assert_eq!(member.state(), State::Closed);
    assert_eq!(small.calls(), ["all_reduce 1 count 1 type 4 op 0", "finalize 1", "destroy 1"]);
    assert_eq!(free_bytes(), before);
}

#[test]
fn an_abort_ends_a_forming_that_lacks_members() {
    run("aborted_while_forming", CURRENT);
}

#[test]
#[ignore = "run by `an_abort_ends_a_forming_that_lacks_members`"]
fn aborted_while_forming() {
    let small = Small::open();
    small.answer("state", IN_PROGRESS);
    let member = small.begin(1);
    small.until_called("init");
    assert_eq!(member.state(), State::InProgress);
    assert_eq!(ended(member.barrier()), Err(Failure::NotReady));
    assert_eq!(ended(member.close()), Err(Failure::NotReady));
    let initialised = member.initialised();
    member.quiesce();
    assert_eq!(ended(initialised), Err(Failure::Aborted));
    assert_eq!(member.state(), State::Failed(Failure::Aborted));
    // Without a release: there is nothing to wait for.
    small.until_called("abort");
    member.release();
    assert_eq!(small.calls()[1..], ["abort 1"]);
}

#[test]
fn an_abort_ends_a_collective_and_frees_nothing_before_the_release() {
    run("aborted_in_a_collective", CURRENT);
}

#[test]
#[ignore = "run by `an_abort_ends_a_collective_and_frees_nothing_before_the_release`"]
fn aborted_in_a_collective() {
    let small = Small::open();
    let before = free_bytes();
    let (member, mut running) = small.hang(1);
    let (waiting, barrier) =
        (member.all_reduce(vec![1_i64].into(), Reduction::Sum), member.barrier());
    assert_eq!(running.poll(), None);
    assert_eq!(member.state(), State::Ready);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| member.quiesce());
        }
    });
    assert_eq!(ended(running), Err(Failure::Aborted));
    assert_eq!(ended(waiting), Err(Failure::Aborted));
    assert_eq!(ended(barrier), Err(Failure::Aborted));
    small.until_called("revoke");
    assert!(free_bytes() < before, "a collective may still run in this memory");
    assert_eq!(ended(member.barrier()), Err(Failure::Aborted));
    let close = ended(member.close());
    assert_eq!(close, Err(Failure::CloseAfterAbort { cause: Box::new(Failure::Aborted) }));
    member.release();
    member.release();
    // Waiting calls never reached NCCL.
    assert_eq!(small.calls(), ["revoke 1", "abort 1"]);
    assert_eq!(free_bytes(), before);
}

#[test]
fn a_close_that_lacks_a_member_is_aborted() {
    run("aborted_in_a_close", CURRENT);
}

#[test]
#[ignore = "run by `a_close_that_lacks_a_member_is_aborted`"]
fn aborted_in_a_close() {
    let small = Small::open();
    let member = small.form(1);
    small.answer("query", NOT_READY);
    let close = member.close();
    small.until_called("all_reduce");
    drop(member);
    assert_eq!(ended(close), Err(Failure::Aborted));
    assert_eq!(small.calls(), ["all_reduce 1 count 1 type 4 op 0", "revoke 1", "abort 1"]);
}

#[test]
fn an_older_library_aborts_at_once() {
    run("without_revoke", WITHOUT_REVOKE);
}

#[test]
#[ignore = "run by `an_older_library_aborts_at_once`"]
fn without_revoke() {
    let small = Small::open();
    let (member, running) = small.hang(1);
    member.quiesce();
    assert_eq!(ended(running), Err(Failure::Aborted));
    small.until_called("abort");
    member.release();
    assert_eq!(small.calls(), ["abort 1"]);
}

#[test]
fn several_of_one_device_are_aborted_at_once() {
    run("several", WITHOUT_REVOKE);
}

#[test]
#[ignore = "run by `several_of_one_device_are_aborted_at_once`"]
fn several() {
    let small = Small::open();
    let before = free_bytes();
    let mut members: Vec<_> = (1..=8).map(|generation| small.hang(generation)).collect();
    assert!(members.iter_mut().all(|(_, running)| running.poll().is_none()));
    std::thread::scope(|scope| {
        for (member, _) in &members {
            scope.spawn(|| member.release());
        }
    });
    assert_eq!(small.calls(), ["abort 1"; 8]);
    assert_eq!(free_bytes(), before);
}

#[test]
fn a_failure_of_nccl_is_told_in_its_words() {
    run("failing", CURRENT);
}

#[test]
#[ignore = "run by `a_failure_of_nccl_is_told_in_its_words`"]
fn failing() {
    let small = Small::open();
    let member = small.form(1);
    small.answer("query", NOT_READY);
    let (running, waiting) = (member.barrier(), member.barrier());
    small.until_called("all_reduce");
    small.answer("state", REMOTE_ERROR);
    let failure = ended(running).expect_err("a peer is gone");
    let (call, reason) = call_and_reason(&failure);
    assert_eq!(call, "an operation in the background");
    assert_eq!(
        reason,
        "a member or the minter of the unique id is gone: text (ncclRemoteError (6)): \
         the last error; NCCL_DEBUG=INFO makes NCCL say more"
    );
    assert_eq!(ended(waiting), Err(failure.clone()));
    assert_eq!(ended(member.barrier()), Err(failure.clone()));
    let close = ended(member.close());
    assert_eq!(close, Err(Failure::CloseAfterAbort { cause: Box::new(failure.clone()) }));
    // Nothing is freed before all ranks know.
    assert_eq!(small.calls(), ["all_reduce 1 count 1 type 4 op 0"]);
    member.release();
    assert_eq!(member.state(), State::Failed(failure));
    assert_eq!(small.calls().last().map(String::as_str), Some("abort 1"));

    small.answer("init", -UNHANDLED_CUDA_ERROR);
    let member = small.begin(2);
    let failure = ended(member.initialised()).expect_err("it does not begin");
    assert_eq!(call_and_reason(&failure).0, "ncclCommInitRankConfig");
    assert_eq!(member.state(), State::Failed(failure));
    small.forget_calls();
    member.release();
    assert_eq!(small.calls(), [""; 0]);
}

#[test]
fn a_member_that_cannot_be_freed_says_so() {
    run("not_freed", CURRENT);
}

#[test]
#[ignore = "run by `a_member_that_cannot_be_freed_says_so`"]
fn not_freed() {
    let small = Small::open();
    let member = small.form(1);
    small.answer("abort", UNHANDLED_CUDA_ERROR);
    for _ in 0..2 {
        let released = catch_unwind(AssertUnwindSafe(|| member.release()));
        let said = released.expect_err("it is not freed");
        let said = said.downcast_ref::<String>().expect("a text");
        assert!(said.contains("is not freed: ncclCommAbort failed"), "{said}");
    }
    assert_eq!(small.calls(), ["revoke 1", "abort 1"]);
}

#[test]
fn wrong_members_are_refused_before_nccl_sees_them() {
    run("refused", CURRENT);
}

#[test]
#[ignore = "run by `wrong_members_are_refused_before_nccl_sees_them`"]
fn refused() {
    let small = Small::open();
    let member = small.form(1);
    let options = member.options().clone();
    let again = small.backend.begin_init(options.clone()).map(drop);
    let Err(Failure::Refused { refusal, .. }) = again else { panic!("{again:?}") };
    assert_eq!(refusal, Refusal::IdUsed { rank: RANK });
    let id = UniqueId::from_bytes([2; 128]);
    for (rank, nranks) in [(4, 4), (0, 0), (0, 1025)] {
        let wrong = small.backend.begin_init(InitOptions { id, rank, nranks, ..options.clone() });
        assert!(wrong.is_err(), "rank {rank} of {nranks}");
    }
    assert_eq!(small.calls(), [""; 0]);

    let other = Small::on(3);
    let failure = ended(other.begin(3).initialised()).expect_err("there is one device");
    let (call, reason) = call_and_reason(&failure);
    assert_eq!(call, "using the GPU");
    assert!(
        reason.contains("no CUDA device 3") && reason.contains("CUDA_VISIBLE_DEVICES"),
        "{reason}"
    );
}

#[test]
fn nothing_is_left_of_twenty_communicators() {
    run("cycles", CURRENT);
}

#[test]
#[ignore = "counts what its process has: run by `nothing_is_left_of_twenty_communicators`"]
fn cycles() {
    let small = Small::open();
    // Opens the library and the device.
    small.form(0).release();
    let (before, bytes) = (Counts::now(), free_bytes());
    for generation in 1..=20 {
        let member = match generation % 4 {
            0 => {
                small.answer("state", IN_PROGRESS);
                small.begin(generation)
            }
            1 => small.hang(generation).0,
            2 => {
                small.answer("query", SUCCESS);
                let member = small.form(generation);
                assert_eq!(ended(member.close()), Ok(()));
                member
            }
            _ => small.form(generation),
        };
        if generation % 2 == 0 {
            member.release();
        }
    }
    comes_to(before);
    assert_eq!(free_bytes(), bytes);
}
