//! Packets that are delayed, reordered and doubled, by the kernel or by the chaos tool itself.

use std::process::Command;

use holdfast_tests::{Process, binaries, eventually};
use nix::sys::signal::Signal;

use super::{allows, allows_with, namespaces_of, passed};

#[tokio::test(flavor = "multi_thread")]
async fn packets_that_are_late_reordered_or_doubled_cost_nothing() {
    if allows("delay").await {
        let (_folder, report) = passed("register,counter", "delay,reorder,duplicate").await;
        let run = std::fs::read(report.join("run.json")).expect("how it was made");
        let run: serde_json::Value = serde_json::from_slice(&run).expect("JSON");
        for fault in run["faults"].as_array().expect("a list") {
            let what = fault["what"].as_str().expect("it was injected");
            assert!(what.contains("tc netem") || what.contains("TUN devices"), "{fault:#}");
            assert!(fault["evidence"].is_string(), "{fault:#}");
        }
    }
}

/// Devices through which a run shapes packets, and routes to them.
fn devices_of(run: u32) -> Vec<String> {
    let (own, of_node) = (format!("hft{run}"), format!("hft{run}-"));
    let is_of_run = |word: &str| word == own || word.starts_with(&of_node);
    let mut places = vec![Vec::new()];
    places.extend(namespaces_of(run).into_iter().map(|name| vec!["-n".to_owned(), name]));
    let mut found = Vec::new();
    for (place, what) in places.iter().flat_map(|place| [(place, "link"), (place, "route")]) {
        let shown = Command::new("ip").args(place).args(["-o", what]).output().expect("ip runs");
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let lines = shown.lines().filter(|line| line.split([' ', ':']).any(is_of_run));
        found.extend(lines.map(str::to_owned));
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn no_device_of_a_fault_is_left_when_it_is_over() {
    let tool = || {
        let mut command = binaries::command("holdfast-chaos");
        command.env("HOLDFAST_CHAOS_NO_NETEM", "1");
        command
    };
    if !allows_with(tool(), "delay").await {
        return;
    }
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let report = folder.path().join("report");
    let mut command = tool();
    command.args(["run", "--duration", "5min", "--fault-pause", "5min", "--rate", "50"]);
    command.args(["--workload", "register", "--nemesis", "delay", "--report"]).arg(&report);
    let mut run = Process::start("a run", command, &folder.path().join("log"));
    let pid = run.pid();
    eventually("packets that go through devices", async || devices_of(pid).pop()).await;
    let fault = eventually("a fault that is over", async || {
        let text = std::fs::read(report.join("run.json")).ok()?;
        let run: serde_json::Value = serde_json::from_slice(&text).ok()?;
        run["faults"][0]["end"].is_u64().then(|| run["faults"][0].clone())
    })
    .await;
    assert_eq!(devices_of(pid), [""; 0]);
    assert!(fault["what"].as_str().is_some_and(|it| it.contains("TUN devices")), "{fault:#}");
    assert!(fault["evidence"].is_string(), "{fault:#}");
    run.signal(Signal::SIGINT);
    assert_eq!(run.ended().await.code(), Some(3), "{}", run.said());
    assert_eq!(namespaces_of(pid), [""; 0]);
}
