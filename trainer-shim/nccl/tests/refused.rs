//! Libraries that are not taken. No test here loads one that is, since that
//! would be taken before all others.

#[path = "support/build.rs"]
mod build;
mod support;

use std::path::{Path, PathBuf};

use holdfast_nccl::{LoadError, Nccl, Version};
use support::{in_a_process_of_its_own, library, variable};
use tempfile::TempDir;

fn build(folder: &TempDir, name: &str, source: &str) -> PathBuf {
    let (code, library) = (folder.path().join(format!("{name}.c")), folder.path().join(name));
    std::fs::write(&code, source).expect("a source");
    build::library(&code, &library, &[]);
    library
}

fn refused(library: &Path) -> LoadError {
    Nccl::load(Some(library)).expect_err("refused")
}

#[test]
fn a_missing_one_says_what_was_tried_and_what_to_do() {
    let error = refused(Path::new("/nowhere/libnccl.so.2"));
    assert_eq!(error.code(), "nccl_missing");
    let text = error.to_string();
    for part in [
        "libnccl.so.2 (not loaded in this process yet)",
        "/nowhere/libnccl.so.2: cannot open shared object file",
        "pip install nvidia-nccl-cu12",
        "HOLDFAST_NCCL_LIBRARY",
    ] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn a_file_that_is_no_library_is_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("libnccl.so.2");
    std::fs::write(&file, "version https://git-lfs.github.com/spec/v1\n").expect("a file");
    let LoadError::Missing { tried } = refused(&file) else { panic!("it was loaded") };
    assert!(tried[1].why.contains("ELF") || tried[1].why.contains("too short"), "{tried:?}");
}

#[test]
fn another_library_is_not_nccl() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = build(&folder, "libother.so", "int other(void) { return 0; }");
    let error = refused(&library);
    assert_eq!(error.code(), "nccl_not_nccl");
    assert!(error.to_string().contains("ncclGetVersion"), "{error}");
}

#[test]
fn an_old_one_says_its_version_and_the_oldest_that_is_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    for (code, found) in [("22005", (20, 5)), ("22601", (26, 1)), ("2708", (7, 8))] {
        let source = format!("int ncclGetVersion(int *version) {{ *version = {code}; return 0; }}");
        let library = build(&folder, &format!("libnccl-{code}.so"), &source);
        let error = refused(&library);
        let found = Version { major: 2, minor: found.0, patch: found.1 };
        let library = library.display().to_string();
        assert_eq!(error, LoadError::TooOld { library, found });
        assert!(error.to_string().contains(&format!("NCCL {found}, too old")), "{error}");
        assert!(error.to_string().contains("2.26.2"), "{error}");
    }
}

#[test]
fn one_without_a_needed_function_is_incomplete() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = "int ncclGetVersion(int *version) { *version = 22809; return 0; }";
    let error = refused(&build(&folder, "libnccl-part.so", source));
    assert_eq!(error.code(), "nccl_incomplete");
    assert!(error.to_string().contains("ncclGetUniqueId"), "{error}");
}

#[test]
fn one_that_does_not_say_its_version_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, body) in [("failing", "return 97;"), ("negative", "*version = -1; return 0;")] {
        let source = format!("int ncclGetVersion(int *version) {{ {body} }}");
        let error = refused(&build(&folder, &format!("libnccl-{name}.so"), &source));
        assert_eq!(error.code(), "nccl_no_version", "{error}");
    }
}

#[test]
fn nothing_is_loaded_where_all_ids_would_be_equal() {
    in_a_process_of_its_own("with_a_fixed_id", &[variable("NCCL_COMM_ID", "127.0.0.1:9")]);
}

#[test]
#[ignore = "needs NCCL_COMM_ID: run by `nothing_is_loaded_where_all_ids_would_be_equal`"]
fn with_a_fixed_id() {
    let library = library().unwrap_or_default();
    let error = refused(&library);
    assert_eq!(error, LoadError::CommIdSet { value: "127.0.0.1:9".to_owned() });
    assert!(error.to_string().contains("NCCL_COMM_ID=127.0.0.1:9 is set"), "{error}");
}

#[test]
fn the_variable_names_the_library() {
    let path = variable("HOLDFAST_NCCL_LIBRARY", "/nowhere/of/the/variable.so");
    in_a_process_of_its_own("named_by_the_variable", &[path]);
}

#[test]
#[ignore = "needs HOLDFAST_NCCL_LIBRARY: run by `the_variable_names_the_library`"]
fn named_by_the_variable() {
    let tried = |error: LoadError| match error {
        LoadError::Missing { tried } => tried.into_iter().map(|one| one.what).collect::<Vec<_>>(),
        other => panic!("{other}"),
    };
    let error = Nccl::load(None).expect_err("it is not there");
    assert_eq!(tried(error), ["libnccl.so.2", "/nowhere/of/the/variable.so"]);
    // An argument goes before it.
    let error = refused(Path::new("/nowhere/of/the/argument.so"));
    assert_eq!(tried(error), ["libnccl.so.2", "/nowhere/of/the/argument.so"]);
}
