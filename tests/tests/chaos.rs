//! The chaos tool on the real binaries: it passes on a cluster that keeps its
//! promises, and fails with a page that names the operation on a history that
//! cannot be true.

use std::path::{Path, PathBuf};

use holdfast_tests::{Ended, binaries};
use tempfile::TempDir;

async fn chaos(arguments: &[&str], folder: &Path) -> Ended {
    let mut command = binaries::command("holdfast-chaos");
    command.args(arguments).arg(folder);
    Ended::of(command).await
}

/// A short run that passes, in a folder.
async fn passed(workloads: &str, nemeses: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let report = folder.path().join("report");
    let arguments = ["run", "--duration", "10s", "--seed", "15", "--rate", "100"];
    let chosen = ["--workload", workloads, "--nemesis", nemeses, "--report"];
    let ended = chaos(&[&arguments[..], &chosen[..]].concat(), &report).await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    (folder, report)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_whose_leader_is_killed_and_paused_passes() {
    let (_folder, report) = passed("register,queue", "kill-leader,pause-leader-briefly").await;
    let text = std::fs::read(report.join("report.json")).expect("a report for programs");
    let document: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(document["verdict"], "pass", "{document:#}");
    let faults = document["run"]["faults"].as_array().expect("a list");
    assert!(!faults.is_empty(), "{document:#}");
    assert!(faults.iter().all(|fault| !fault["evidence"].is_null()), "{faults:#?}");
    let page = std::fs::read_to_string(report.join("report.html")).expect("a page");
    assert!(page.contains("<h1 class=\"pass\">pass</h1>"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_tcpstore_keep_their_order_through_two_agents_that_are_killed_and_paused() {
    let (_folder, report) =
        passed("tcpstore,tcpstore-counter", "agent-kill,agent-pause,kill-leader").await;
    let text = std::fs::read(report.join("report.json")).expect("a report for programs");
    let document: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let recovery = document["recovery"].as_array().expect("a list");
    for nemesis in ["agent-kill", "agent-pause", "kill-leader"] {
        let is_there = |it: &serde_json::Value| it["nemesis"] == nemesis && it["class"] == "agent";
        let figures = recovery.iter().find(|it| is_there(it)).expect("a recovery of each");
        assert!(figures["worst_ms"].is_u64(), "{figures:#}");
    }
    // Both agents had clients, in one run: what one was told the other knows.
    let history = |client: &str| {
        let file = report.join(format!("history/{client}.jsonl"));
        std::fs::read_to_string(file).expect("a history")
    };
    for client in ["tcpstore-0", "tcpstore-1"] {
        let history = history(client);
        for action in ["write", "compare_and_set", "delete", "check", "wait", "read"] {
            assert!(history.contains(&format!("\"{action}\"")), "{client} made no {action}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_in_which_somebody_reads_what_nobody_wrote_fails() {
    let (_folder, report) = passed("register", "none").await;
    let file = report.join("history/register-final.jsonl");
    let history = std::fs::read_to_string(&file).expect("a history");
    let value = r#"{"value":"#;
    let at = history.find(value).expect("a final read") + value.len();
    let end = at + history[at..].find('}').expect("the end of the answer");
    let edited = format!("{}\"never-written\"{}", &history[..at], &history[end..]);
    std::fs::write(&file, edited).expect("a history can be edited");

    let ended = chaos(&["check"], &report).await;
    assert_eq!(ended.code, Some(1), "{ended:#?}");
    assert!(ended.stdout.contains("register (exact): register/"), "{ended:#?}");
    let page = std::fs::read_to_string(report.join("report.html")).expect("a page");
    assert!(page.contains("<h1 class=\"fail\">fail</h1>"), "{page}");
    let marked = page.find("<li class=\"conflict\">").expect("an operation is marked");
    assert!(page[marked..].starts_with("<li class=\"conflict\">register-final: "), "{page}");
    assert!(page.contains("read: never-written"), "{page}");

    std::fs::write(&file, format!("rubbish\n{history}")).expect("a history can be damaged");
    let ended = chaos(&["check"], &report).await;
    ended.failed(2, &["register-final.jsonl:1:", "is not judged"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn slips_on_the_command_line_are_named() {
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    std::fs::write(folder.path().join("older"), "").expect("a file");
    for (arguments, texts) in [
        (&["run", "--workload", "regster", "--report"][..], &["regster", "register"][..]),
        (&["run", "--nemesis", "all,ring", "--report"], &["stand alone"]),
        (&["run", "--nemesis", "none", "--report"], &["is not empty", "--report"]),
        (&["run", "--duration", "5s", "--ops", "9", "--report"], &["--duration", "--ops"]),
        (
            &["run", "--workload", "set", "--nemesis", "agent-kill", "--report"],
            &["no workload goes through agents", "--workload tcpstore"],
        ),
        (&["check"], &["neither a recorded run nor a history of rounds"]),
    ] {
        chaos(arguments, folder.path()).await.failed(2, texts);
    }
}
