//! The environment of an agent that `run` starts, and which of a launcher's signals reach
//! it and the command.

use holdfast_tests::command::{WAITS, process_at};
use holdfast_tests::tcpstore::TcpStore;
use holdfast_tests::{Cluster, Ended, Process, binaries, python};
use nix::sys::signal::Signal;

/// A field of a process's status.
fn status(process: impl std::fmt::Display, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("{field} is missing in: {text}")).trim().to_owned()
}

fn niceness(process: i32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let (_, fields) = text.rsplit_once(") ").expect("a name stands in brackets");
    fields.split(' ').nth(16).expect("the 19th field of all").to_owned()
}

fn oom_score(process: i32) -> i32 {
    let path = format!("/proc/{process}/oom_score_adj");
    std::fs::read_to_string(path).expect("it runs").trim().parse().expect("a number")
}

/// As a rank 0 that is bound to one processor, in its own folder, with lower priority
/// and limits, and the first to end where memory runs out.
const RANK_0: &str = "cd \"$1\"; shift; ulimit -S -f 4096; ulimit -S -n 200; \
                      echo 700 > /proc/self/oom_score_adj; \
                      exec nice -n 7 taskset -c \"$@\"";

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_has_processors_priority_folder_and_limits_of_its_own() {
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let token = folder.path().join("token");
    std::fs::write(&token, "a-token-of-this-test\n").expect("it is ours");
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&token, closed).expect("it is ours");
    let flags = ["--token-file", token.to_str().expect("a plain name")];
    let mut cluster = Cluster::start_with(1, &flags).await;

    let allowed = status("self", "Cpus_allowed_list");
    let processor = allowed.split([',', '-']).next().expect("there is one");
    let order = folder.path().join("end");
    let mut rank = binaries::without_settings("sh");
    rank.args(["-c", RANK_0, "sh"]).arg(folder.path()).arg(processor);
    rank.arg(binaries::path("holdfast-agent")).args(["run", "--store", &cluster.list()]);
    // Relative to the folder that the agent leaves.
    rank.args(["--token-file", "token", "--job", "own", "--", "sh", "-c", WAITS]).arg(&order);
    let mut rank = Process::start("the rank", rank, &cluster.keep_log("own"));
    let line = rank.says("place 127.0.0.1:").await;
    let (address, control) = line[6..].trim_end_matches('.').split_once(" of ").expect("two words");
    let agent = process_at(control.as_ref()).await;
    let run = i32::try_from(rank.pid()).expect("process ids are small");
    assert_eq!((status(run, "Cpus_allowed_list"), oom_score(run)), (processor.to_owned(), 700));

    assert_eq!(status(agent, "Cpus_allowed_list"), allowed);
    for thread in std::fs::read_dir(format!("/proc/{agent}/task")).expect("it runs").flatten() {
        let thread = thread.file_name().to_string_lossy().into_owned();
        assert_eq!(status(format!("{agent}/task/{thread}"), "Cpus_allowed_list"), allowed);
    }
    let cwd = std::fs::read_link(format!("/proc/{agent}/cwd")).expect("it runs");
    assert_eq!(cwd.to_str(), Some("/"));
    let limits = std::fs::read_to_string(format!("/proc/{agent}/limits")).expect("it runs");
    for limit in ["Max file size", "Max open files"] {
        let values = limits.lines().find_map(|line| line.strip_prefix(limit)).expect("it is there");
        let values: Vec<&str> = values.split_whitespace().collect();
        assert_eq!(values[0], values[1], "{limit}: the hard limit is its limit");
    }
    // As far as permissions allow.
    let mut renice = std::process::Command::new("nice");
    renice.args(["-n", "7", "sh", "-c", "renice -n 0 -p $$"]);
    let permitted = Ended::of(renice).await.code == Some(0);
    assert_eq!(niceness(agent), if permitted { "0" } else { "7" });
    let mut lower = std::process::Command::new("sh");
    lower.args(["-c", "echo -1 > /proc/self/oom_score_adj"]);
    let permitted = Ended::of(lower).await.code == Some(0);
    let score = oom_score(agent);
    assert!(if permitted { score < 0 } else { score <= 700 }, "{score}");

    let mut store = TcpStore::connect(address).await;
    assert_eq!(store.add("n", 1).await, 1);
    std::fs::write(&order, "0").expect("the folder is ours");
    assert_eq!(rank.ended().await.code(), Some(0), "{}", rank.said());
}

/// Reports each signal that comes, until it is asked to end.
const SIGNALLED: &str = "trap 'echo got USR1' USR1; trap 'echo got USR2' USR2; \
                         echo agent $HOLDFAST_CONTROL.; \
                         while ! test -e \"$0\"; do sleep 0.05; done; echo end";

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_of_slurm_reaches_the_command_once_whomever_it_is_sent_to() {
    let mut cluster = Cluster::start(1).await;
    for (name, sent_to) in [("task", "--signal=task"), ("all", "--signal=all")] {
        let order = cluster.folder().join(format!("end-{name}"));
        let mut srun = binaries::without_settings("python3");
        srun.arg(python::script("srun.py")).args([sent_to, "--ntasks-per-node=1", "--job-id=7"]);
        srun.arg(binaries::path("holdfast-agent")).args(["run", "--store", &cluster.list()]);
        srun.args(["--job", name, "--", "sh", "-c", SIGNALLED]).arg(&order);
        let mut srun = Process::start("srun", srun, &cluster.keep_log(name));
        let line = srun.says("agent /").await;
        let control = line.strip_prefix("agent ").and_then(|rest| rest.strip_suffix('.'));
        let control = control.expect("a path").to_owned();
        let agent = process_at(control.as_ref()).await;
        for (signal, word) in [(Signal::SIGUSR1, "USR1"), (Signal::SIGUSR2, "USR2")] {
            srun.signal(signal);
            srun.says(&format!("sent SIG{word}")).await;
            srun.says(&format!("got {word}")).await;
        }
        assert_eq!(process_at(control.as_ref()).await, agent, "none of them ends the agent");
        std::fs::write(&order, "").expect("the folder is ours");
        assert_eq!(srun.ended().await.code(), Some(0), "{}", srun.said());
        let said = srun.said();
        for word in ["got USR1", "got USR2"] {
            assert_eq!(said.matches(word).count(), 1, "{sent_to}: {word:?} in {said}");
        }
        assert!(!said.contains("the agent has ended"), "{said}");
    }
}
