//! The machine depends on its entries alone: its manifest and its source name no clock,
//! random number, socket, disk or order that differs between nodes.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// Allowed dependencies of the crate. Before adding one, check that it is pure.
const ALLOWED: [&str; 7] =
    ["crc32c", "holdfast-api", "imbl", "rmp-serde", "serde", "serde_ignored", "thiserror"];

#[test]
fn the_manifest_names_only_what_is_pure() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages.iter().find(|p| p["name"] == env!("CARGO_PKG_NAME")).unwrap();
    let mut found: Vec<&str> = package["dependencies"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|dependency| dependency["kind"].is_null())
        .map(|dependency| dependency["name"].as_str().unwrap())
        .collect();
    found.sort_unstable();
    assert_eq!(found, ALLOWED);
}

#[test]
fn the_source_uses_nothing_that_differs_between_nodes() {
    const BANNED: [&str; 14] = [
        "HashMap",
        "HashSet",
        "RandomState",
        "std::time",
        "Instant",
        "SystemTime",
        "std::env",
        "std::fs",
        "std::net",
        "std::thread",
        "f32",
        "f64",
        "static mut",
        // Another compiler or release lays types out differently.
        "size_of",
    ];
    let mut files = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    assert!(files.len() > 15, "the source is gone");
    for file in files {
        let source = fs::read_to_string(&file).unwrap();
        for word in BANNED {
            assert!(!source.contains(word), "{} uses {word}", file.display());
        }
    }
}

fn collect(folder: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}
