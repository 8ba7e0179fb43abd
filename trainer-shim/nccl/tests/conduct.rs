//! Which calls reach NCCL, in which order, and which never do. They are made to
//! a library of the test's own with NCCL's interface: the real one forms nothing
//! without a GPU.

#[path = "support/build.rs"]
mod build;

use std::panic::AssertUnwindSafe;

use holdfast_nccl::{
    Communicator, Membership, Nccl, NcclError, ResultCode, State, UniqueId, group,
};
use tempfile::TempDir;

const SUCCESS: i32 = 0;
const REMOTE_ERROR: i32 = 6;
const IN_PROGRESS: i32 = 7;

/// A library, and what it was asked.
struct Library {
    folder: TempDir,
    nccl: Nccl,
}

impl Library {
    fn load(version: u32) -> Library {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("interface.so");
        let place = format!("-DFOLDER=\"{}\"", folder.path().display());
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/nccl.c");
        build::library(source.as_ref(), &path, &[&place, &format!("-DVERSION={version}")]);
        let nccl = Nccl::load(Some(&path)).expect("it has NCCL's interface");
        assert_eq!(nccl.path(), path);
        Library { folder, nccl }
    }

    /// Sets the code that a function returns from now on.
    fn answer(&self, call: &str, code: i32) {
        std::fs::write(self.folder.path().join(call), code.to_string()).expect("a file");
    }

    /// Calls since the last time.
    fn calls(&self) -> Vec<String> {
        let file = self.folder.path().join("calls");
        let calls = std::fs::read_to_string(&file).unwrap_or_default();
        std::fs::write(&file, "").expect("a file");
        calls.lines().map(str::to_owned).collect()
    }

    fn begin(&self, rank: u32) -> Result<Communicator, NcclError> {
        let id = self.nccl.mint().expect("an id");
        let membership = Membership { group: "world", generation: 7, ranks: 4, rank };
        Communicator::begin_init(&self.nccl, None, &id, membership)
    }

    /// A communicator that is formed, its beginning not counted.
    fn form(&self, rank: u32) -> Communicator {
        let mut communicator = self.begin(rank).expect("it begins");
        self.answer("state", SUCCESS);
        assert_eq!(communicator.state(), Ok(State::Ready));
        self.calls();
        communicator
    }
}

fn not_ready(result: Result<(), NcclError>) -> &'static str {
    match result {
        Err(NcclError::NotReady { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_communicator_is_begun_with_the_struct_of_the_header() {
    let library = Library::load(22_809);
    let communicator = library.begin(3).expect("it begins");
    assert_eq!(
        library.calls(),
        ["init 3/4 id 0..127 world/7 size 80 magic cafebeef version 22800 blocking 0 \
          others -2147483648 -2147483648"]
    );
    assert_eq!(communicator.name(), "world/7");
}

#[test]
fn one_that_is_being_formed_can_only_be_aborted() {
    let library = Library::load(22_809);
    let mut communicator = library.begin(0).expect("it begins");
    library.calls();
    assert_eq!(communicator.state(), Ok(State::InProgress));
    assert!(not_ready(communicator.revoke()).contains("abort it"));
    assert!(not_ready(communicator.finalize()).contains("wait"));
    assert_eq!(library.calls(), [""; 0]);
    communicator.abort().expect("it aborts");
    assert_eq!(library.calls(), ["abort 0"]);
}

#[test]
fn one_that_is_revoked_can_only_be_aborted() {
    let library = Library::load(22_809);
    let mut communicator = library.form(1);
    communicator.revoke().expect("it stops");
    communicator.revoke().expect("it has stopped");
    assert_eq!(library.calls(), ["revoke 1"]);
    assert!(not_ready(communicator.finalize()).contains("revoked"));
    communicator.abort().expect("it aborts");
    assert_eq!(library.calls(), ["abort 1"]);
}

#[test]
fn busy_with_a_collective_it_can_be_revoked() {
    let library = Library::load(22_809);
    let mut communicator = library.form(1);
    library.answer("state", IN_PROGRESS);
    assert!(not_ready(communicator.finalize()).contains("busy"));
    communicator.revoke().expect("it stops");
    assert_eq!(library.calls(), ["revoke 1"]);
}

#[test]
fn an_older_library_cannot_revoke_and_says_so() {
    let library = Library::load(22_806);
    let mut communicator = library.form(0);
    let error = communicator.revoke().expect_err("it cannot");
    assert_eq!(error.to_string(), "NCCL 2.28.6 has no ncclCommRevoke, which came with 2.28.7");
    assert!(!library.nccl.capabilities().revoke);
}

#[test]
fn destroyed_is_only_what_was_finalised() {
    let library = Library::load(22_809);
    let mut communicator = library.form(2);
    communicator.finalize().expect("it begins to end");
    assert!(not_ready(communicator.finalize()).contains("destroy it"));
    communicator.destroy().expect("it is destroyed");
    assert_eq!(library.calls(), ["finalize 2", "destroy 2"]);

    let error = library.form(2).destroy();
    assert!(not_ready(error).contains("aborted instead"));
    assert_eq!(library.calls(), ["abort 2"]);

    // Its peers may never come.
    let mut communicator = library.form(2);
    communicator.finalize().expect("it begins to end");
    library.answer("state", IN_PROGRESS);
    assert!(not_ready(communicator.destroy()).contains("aborted instead"));
    assert_eq!(library.calls(), ["finalize 2", "abort 2"]);
}

#[test]
fn a_dropped_one_is_aborted_once() {
    let library = Library::load(22_809);
    drop(library.form(3));
    assert_eq!(library.calls(), ["abort 3"]);
    library.answer("abort", REMOTE_ERROR);
    let error = library.form(3).abort().expect_err("it fails");
    assert_eq!(
        error.to_string(),
        "ncclCommAbort failed: text (ncclRemoteError (6)): the last error; NCCL_DEBUG=INFO makes NCCL say more"
    );
    assert!(error.is_retryable());
    assert_eq!(library.calls(), ["abort 3"]);
}

#[test]
fn a_code_that_is_not_known_is_a_failure_with_a_number() {
    let library = Library::load(22_809);
    let mut communicator = library.form(0);
    for code in [8, 97, -3, i32::MAX] {
        library.answer("state", code);
        let Ok(State::Failed(failure)) = communicator.state() else { panic!("{code} is ready") };
        assert_eq!(failure.code, ResultCode(code));
        assert!(failure.to_string().contains(&format!("(result code {code})")), "{failure}");
        assert_eq!(communicator.pending(), Err(NcclError::Failed(failure)));
    }
}

#[test]
fn a_failed_beginning_leaves_no_communicator_and_no_group() {
    let library = Library::load(22_809);
    library.answer("init", REMOTE_ERROR);
    library.begin(0).expect_err("it fails");
    assert_eq!(library.calls()[1..], ["abort 0"]);
    library.answer("init", -REMOTE_ERROR);
    library.begin(0).expect_err("it fails");
    assert_eq!(library.calls()[1..], ["end"]);
}

#[test]
fn several_are_aborted_in_one_group() {
    let library = Library::load(22_809);
    let both = vec![library.form(0), library.form(1)];
    Communicator::abort_all(both).expect("they abort");
    assert_eq!(library.calls(), ["start", "abort 0", "abort 1", "end"]);
    Communicator::abort_all(Vec::new()).expect("there are none");
    assert_eq!(library.calls(), [""; 0]);

    // A group with a failure keeps none of the others.
    let both = vec![library.form(0), library.form(1)];
    library.answer("abort", REMOTE_ERROR);
    Communicator::abort_all(both).expect_err("it fails");
    assert_eq!(library.calls(), ["start", "abort 0", "abort 1", "end"]);
}

#[test]
fn a_group_ends_whatever_happens_in_it() {
    let library = Library::load(22_809);
    let (mut one, mut other) = (library.form(0), library.form(1));
    let mut both = [&mut one, &mut other];
    assert_eq!(group(&mut both, |_| Ok(5)), Ok(5));
    assert_eq!(library.calls(), ["start", "end"]);

    let error = group(&mut both, |_| Err::<(), _>(NcclError::TooManyPending));
    assert_eq!(error, Err(NcclError::TooManyPending));
    assert_eq!(library.calls(), ["start", "end"]);

    let panicking =
        AssertUnwindSafe(|| group(&mut both, |_| -> Result<(), _> { panic!("on purpose") }));
    std::panic::catch_unwind(panicking).expect_err("it panics");
    assert_eq!(library.calls(), ["start", "end"]);
    one.abort().expect("it aborts outside of any group");
}

#[test]
fn within_a_group_nothing_else_is_called() {
    let library = Library::load(22_809);
    let (mut one, mut other) = (library.form(0), library.form(1));
    let in_group = |result: Result<(), NcclError>| matches!(result, Err(NcclError::InGroup { .. }));
    group(&mut [&mut one], |_| {
        assert!(in_group(library.begin(2).map(drop)));
        assert!(in_group(other.state().map(drop)));
        assert!(in_group(other.pending().map(drop)));
        assert!(in_group(other.revoke()));
        assert!(in_group(other.finalize()));
        assert!(in_group(group(&mut [&mut other], |_| Ok(()))));
        Ok(())
    })
    .expect("a group of nothing");
    assert_eq!(library.calls(), ["start", "end"]);
}

#[test]
fn a_group_takes_only_communicators_that_are_ready() {
    let library = Library::load(22_809);
    let (mut one, mut other) = (library.form(0), library.form(1));
    other.revoke().expect("it stops");
    library.calls();
    let result = group(&mut [&mut one, &mut other], |_| Ok(()));
    assert!(not_ready(result).contains("revoked"));
    assert_eq!(library.calls(), [""; 0]);
}

#[test]
fn ids_come_and_go_as_they_are() {
    let library = Library::load(22_809);
    let id = library.nccl.mint().expect("an id");
    assert_eq!(id, UniqueId::from_bytes(std::array::from_fn(|at| at as u8)));
}
