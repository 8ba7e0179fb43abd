//! The library of the package registry, without a GPU.

mod support;

use std::path::Path;

use holdfast_nccl::{Communicator, Membership, Nccl, NcclError, UniqueId, Version, codes};
use support::{Counts, in_a_process_of_its_own, library, variable};

const MEMBERSHIP: Membership<'_> = Membership { group: "world", generation: 7, ranks: 2, rank: 0 };

#[test]
fn it_says_its_version_and_can_what_that_version_can() {
    let Some(library) = library() else { return };
    let nccl = Nccl::load(Some(&library)).expect("a library");
    let version = nccl.version();
    assert!(version >= Version { major: 2, minor: 26, patch: 2 }, "{version}");
    assert_eq!(nccl.path(), library);

    let since = |minor, patch| version >= Version { major: 2, minor, patch };
    let can = nccl.capabilities();
    assert!(can.scalable);
    assert_eq!(can.shrink, since(27, 3), "{version}");
    assert_eq!(can.revoke, since(28, 7), "{version}");
    assert_eq!(can.grow, since(29, 2), "{version}");
}

#[test]
fn a_library_that_is_loaded_is_taken_before_a_configured_one() {
    let Some(library) = library() else { return };
    let first = Nccl::load(Some(&library)).expect("a library");
    let second = Nccl::load(Some(Path::new("/nowhere/libnccl.so.2"))).expect("the one in use");
    assert_eq!(first.path(), second.path());
}

#[test]
fn two_ids_differ() {
    let Some(library) = library() else { return };
    let nccl = Nccl::load(Some(&library)).expect("a library");
    let (one, other) = (nccl.mint().expect("an id"), nccl.mint().expect("an id"));
    assert_ne!(one, other);
    assert_eq!(UniqueId::from_hex(&one.to_hex()), Some(one));
}

#[test]
fn wrong_seats_are_refused_before_nccl_sees_them() {
    let Some(library) = library() else { return };
    let nccl = Nccl::load(Some(&library)).expect("a library");
    let id = UniqueId::from_bytes([0; UniqueId::BYTES]);
    let long = "g".repeat(1 << 20);
    for (membership, code) in [
        (Membership { rank: 2, ..MEMBERSHIP }, "nccl_no_such_rank"),
        (Membership { ranks: u32::MAX, ..MEMBERSHIP }, "nccl_no_such_rank"),
        (Membership { group: &long, ..MEMBERSHIP }, "nccl_bad_name"),
        (Membership { group: "a\0b", ..MEMBERSHIP }, "nccl_bad_name"),
    ] {
        let error = Communicator::begin_init(&nccl, None, &id, membership).expect_err("refused");
        assert_eq!(error.code(), code, "{error}");
    }
}

#[test]
fn forming_without_a_gpu_is_a_clear_error_and_leaves_nothing() {
    in_a_process_of_its_own("without_a_gpu", &[variable("CUDA_VISIBLE_DEVICES", "")]);
}

#[test]
#[ignore = "counts what its process has: run by `forming_without_a_gpu_is_a_clear_error_and_leaves_nothing`"]
fn without_a_gpu() {
    let Some(library) = library() else { return };
    let nccl = Nccl::load(Some(&library)).expect("a library");
    let id = UniqueId::from_bytes([0; UniqueId::BYTES]);
    let form = || {
        let error =
            Communicator::begin_init(&nccl, None, &id, MEMBERSHIP).expect_err("there is no GPU");
        let NcclError::Failed(failure) = &error else { panic!("{error}") };
        assert_eq!(failure.call, "ncclCommInitRankConfig");
        assert_eq!(failure.code, codes::UNHANDLED_CUDA_ERROR);
        assert!(!failure.text.is_empty() && !failure.detail.is_empty(), "{failure:?}");
        assert!(!error.is_retryable());
    };
    form();
    let before = Counts::now();
    (0..100).for_each(|_| form());
    assert_eq!(Counts::now(), before);

    let error = holdfast_nccl::Device::open(0).expect_err("there is no GPU");
    assert!(error.code().starts_with("cuda_"), "{error}");
}
