//! Stores that a program opens for itself, on a port of its own: on Holdfast where
//! its Python has the wheel, and named aloud where it has not.

use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_api::{Code, LeaseId, Read};
use holdfast_client::Consistency;
use holdfast_tests::command::{Command, process_at};
use holdfast_tests::python::{Script, script, with_hook};
use holdfast_tests::tcpstore::TcpStore;
use holdfast_tests::{Cluster, Ended, Job, Torch, binaries, eventually, soon};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// A program that names its store itself, under `holdfast-agent run`.
struct Program {
    script: Script,
    folder: PathBuf,
    port: u16,
}

impl Program {
    fn start(
        cluster: &mut Cluster,
        torch: &Torch,
        how: &str,
        variables: &[(&str, &str)],
    ) -> Program {
        let folder = cluster.folder().join(format!("orders-{how}"));
        std::fs::create_dir(&folder).expect("each program has a name of its own");
        let port = cluster.port();
        let mut command = binaries::command("holdfast-agent");
        command.envs(variables.iter().copied());
        command.args(["run", "--store", &cluster.list(), "--job", how, "--"]);
        command.arg(&torch.python).arg(script("own_store.py")).arg(&folder);
        command.args([how, &port.to_string()]);
        Program { script: Script::start_command(cluster, how, command), folder, port }
    }

    fn finish(&self) {
        std::fs::write(self.folder.join("finish"), "").expect("the folder was made");
    }
}

/// Two pairs of ranks, one after the other, meet in stores of their own on
/// Holdfast, and the leader dies under the first.
async fn is_captured(torch: &Torch, how: &str, variables: &[(&str, &str)]) {
    let mut cluster = Cluster::start(3).await;
    let mut program = Program::start(&mut cluster, torch, how, variables);
    program.script.says("pair 0 step").await;
    let leader = cluster.leader().await;
    cluster.kill(leader);
    program.script.says_anew("pair 0 step").await;
    cluster.restart(leader).await;
    let keys = cluster.cli_ok(&["--job", how, "kv", "list", "@localhost."]).await;
    assert!(keys.contains("#0:/") && keys.contains("steps"), "{keys}");
    program.finish();
    program.script.says("pair 1 step").await;
    program.script.succeeds().await;
}

async fn is_captured_on_older_torch(how: &str) {
    let Some(torch) = Torch::older() else { return };
    let folder = with_hook();
    let path = folder.path().display().to_string();
    is_captured(&torch, how, &[("PYTHONPATH", &path)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_that_a_program_sets_lead_to_a_store_on_holdfast() {
    let Some(torch) = Torch::with_package() else { return };
    is_captured(&torch, "variables", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_in_the_program_leads_to_a_store_on_holdfast() {
    let Some(torch) = Torch::with_package() else { return };
    is_captured(&torch, "tcp", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_rank_0_would_serve_is_on_holdfast() {
    let Some(torch) = Torch::with_package() else { return };
    is_captured(&torch, "store", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_at_any_port_is_on_holdfast() {
    let Some(torch) = Torch::with_package() else { return };
    is_captured(&torch, "any", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torchrun_in_a_script_serves_its_ranks_a_store_of_its_own() {
    let Some(torch) = Torch::with_package() else { return };
    let mut cluster = Cluster::start(3).await;
    let mut job = Job::new(&cluster, &torch, "script");
    // A command inside a shell is not looked into.
    let script = "exec \"$0\" -m torch.distributed.run --standalone --nproc-per-node=2 \"$@\"";
    let command = job.command(&cluster, &[], &["sh", "-c", script, "PYTHON", "JOB"]);
    job.start(&mut cluster, command);
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    job.finishes("with 2 ranks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_meet_in_the_store_of_their_launcher_by_any_name_of_this_host() {
    let (mut cluster, folder) = (Cluster::start(1).await, with_hook());
    let mut job = Job::new(&cluster, &Torch::newest(), "names");
    let script = "unset PET_RDZV_ENDPOINT; exec \"$0\" -m torch.distributed.run --master-addr=127.0.0.1 \
                  --master-port=$PORT --nproc-per-node=2 \"$@\"";
    let words = ["sh", "-c", script, "PYTHON", "JOB", "localhost"];
    let mut command = job.command(&cluster, &[], &words);
    command.env("PORT", cluster.port().to_string()).env("PYTHONPATH", folder.path());
    job.start(&mut cluster, command);
    job.first().says("attempt 0 step").await;
    let keys = cluster.cli_ok(&["--job", "names", "kv", "list", "@127.0.0.1."]).await;
    assert!(keys.contains("beat/1/1") && keys.contains("torchelastic"), "{keys}");
    job.finishes("with 2 ranks").await;
}

/// As in a container that has not mounted the folder of the control socket: the address that
/// `run` has set needs nobody to be asked.
#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_do_not_see_the_control_socket_meet_at_the_agent() {
    let (mut cluster, folder) = (Cluster::start(1).await, with_hook());
    let mut job = Job::new(&cluster, &Torch::newest(), "unseen");
    let ranks = "RANK=1 \"$@\" & RANK=0 \"$@\"; code=$?; wait $! && exit $code";
    let variables = ["env", "WORLD_SIZE=2", "HOLDFAST_CONTROL=/not/mounted/agent.sock"];
    let words = [&variables[..], &["sh", "-c", ranks, "ranks", "PYTHON", "JOB"]].concat();
    let mut command = job.command(&cluster, &[], &words);
    command.env("PYTHONPATH", folder.path());
    job.start(&mut cluster, command);
    job.first().says("attempt 0 step").await;
    job.finishes("with 2 ranks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_torch_with_variables_that_the_program_sets() {
    is_captured_on_older_torch("variables").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_torch_with_an_address_in_the_program() {
    is_captured_on_older_torch("tcp").await;
}

/// The program is named, and what to do, before it gives up by itself; it is not stopped for it.
/// Beside the line that is meant, one may say what a rank did while another was not there yet.
async fn is_named(torch: &Torch, how: &str, variables: &[(&str, &str)], words: &[&str]) {
    let mut cluster = Cluster::start(1).await;
    // It is left to itself, and then ends soon.
    let variables = [&[("PATIENCE_SECONDS", "60")], variables].concat();
    let program = Program::start(&mut cluster, torch, how, &variables);
    let line = cluster.logged(how, words[0]).await;
    assert!(line.contains("bypasses Holdfast"), "{line}");
    let log = std::fs::read_to_string(cluster.folder().join(format!("{how}.log")));
    let log = log.expect("it was kept");
    let (before, _) = log.split_once(&line).expect("it is there");
    assert!(!before.contains("Traceback"), "its own time was over before: {log}");
    let at = format!("--tcpstore 127.0.0.1:{}", program.port);
    for part in words {
        let part = if *part == "AT" { &at } else { *part };
        assert!(line.contains(part), "{part:?} is missing in: {line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_sets_variables_is_named_where_nothing_captures_its_store() {
    let set = ["it sets MASTER_ADDR=localhost", "pip install", "AT"];
    is_named(&Torch::newest(), "variables", &[], &set).await;
    let Some(torch) = Torch::with_package() else { return };
    let off = [("HOLDFAST_CAPTURE", "off")];
    is_named(&torch, "variables", &off, &["it sets", "without HOLDFAST_CAPTURE=off"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_serves_its_store_is_named_where_nothing_captures_it() {
    is_named(
        &Torch::newest(),
        "store",
        &[],
        &["serves a TCPStore itself", "env://", "MASTER_PORT + 1"],
    )
    .await;
}

/// Serves a store at this port, for as long as its parent runs.
const SERVES: &str = "
import os, sys, time
parent = os.getppid()
import torch.distributed as dist
store = dist.TCPStore('localhost', int(sys.argv[1]), is_master=True, wait_for_workers=False)
while os.getppid() == parent:
    time.sleep(0.2)";

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_serves_its_store_beside_several_ports_is_named() {
    let torch = Torch::newest();
    let mut cluster = Cluster::start(1).await;
    let [first, _, own] = [cluster.port(), cluster.port(), cluster.port()];
    let mut command = binaries::command("holdfast-agent");
    command.args(["run", "--store", &cluster.list(), "--job", "beside"]);
    command.args(["--tcpstore", &format!("127.0.0.1:{first}-{}", first + 1), "--"]);
    command.arg(&torch.python).args(["-c", SERVES, &own.to_string()]);
    let _program = Script::start_command(&mut cluster, "beside", command);
    cluster.logged("beside", "serves a TCPStore itself (is_master=True)").await;
}

/// Forms a group three times at the address of the run, and once at the port after it; prints which
/// number each has in its store.
const FORMS_AGAIN: &str = "
import gc, os
import torch.distributed as dist
for group in range(4):
    if group == 3:
        os.environ['MASTER_PORT'] = str(int(os.environ['MASTER_PORT']) + 1)
    dist.init_process_group('gloo', rank=0, world_size=1)
    print(dist.distributed_c10d._get_default_store().add('formed', 1), flush=True)
    dist.destroy_process_group()
    gc.collect()";

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_forms_its_group_again_is_told_how_it_begins_with_an_empty_store() {
    let Some(torch) = Torch::with_package() else { return };
    let mut cluster = Cluster::start(1).await;
    let mut command = binaries::command("holdfast-agent");
    command.args(["run", "--store", &cluster.list(), "--job", "again", "--"]);
    command.arg(&torch.python).args(["-c", FORMS_AGAIN]);
    let said = Script::start_command(&mut cluster, "again", command).succeeds().await;
    assert_eq!(said, ["1", "2", "3", "1"]);
    let log = std::fs::read_to_string(cluster.folder().join("again.log")).expect("it was kept");
    assert_eq!(log.matches("forms a process group again at").count(), 1, "{log}");
    assert!(log.contains("MASTER_PORT + 1"), "{log}");
}

/// Has loaded PyTorch and its hook, and a server as C++ code opens it: a thread of that name.
const SERVES_UNSEEN: &str = "
import ctypes, os, threading, time
parent = os.getppid()
import torch.distributed as dist
def serve():
    ctypes.CDLL(None).prctl(15, b'pt_tcpstore_uv', 0, 0, 0)
    while True:
        time.sleep(1)
threading.Thread(target=serve, daemon=True).start()
while os.getppid() == parent:
    time.sleep(0.2)";

#[tokio::test(flavor = "multi_thread")]
async fn a_program_with_the_wheel_is_named_if_it_serves_a_store_that_python_did_not_open() {
    let Some(torch) = Torch::with_package() else { return };
    let mut cluster = Cluster::start(1).await;
    let mut command = binaries::command("holdfast-agent");
    command.args(["run", "--store", &cluster.list(), "--job", "unseen", "--"]);
    command.arg(&torch.python).args(["-c", SERVES_UNSEEN]);
    let _program = Script::start_command(&mut cluster, "unseen", command);
    cluster.logged("unseen", "serves a TCPStore that was not opened with Python's TCPStore").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_looks_for_a_store_that_nobody_serves_is_named() {
    let Some(torch) = Torch::older() else { return };
    is_named(&torch, "tcp", &[], &["waits in PyTorch for a store", "tcp://"]).await;
}

/// Fails at its first import, then lacks what the hook changes.
const HALF_IMPORTED: &str = "
import builtins
if not hasattr(builtins, 'tried'):
    builtins.tried = True
    raise ImportError('half imported')
";

/// Prints whether the hook has left both kinds of stores alone.
const WITHOUT_A_PART: &str = "
import sys, types
import holdfast_capture

class Store:
    host = port = property(lambda self: None)
    def __init__(self): pass

class FileStore(Store):
    def __init__(self): pass

before = Store.__init__, FileStore.__init__
name = 'torch._C._distributed_c10d'
sys.modules[name] = types.SimpleNamespace(TCPStore=Store, FileStore=FileStore)
rendezvous = types.SimpleNamespace(_create_c10d_store=print)
holdfast_capture.attempt(holdfast_capture.change, rendezvous)
print(Store.__init__ is before[0], FileStore.__init__ is before[1])
";

#[tokio::test(flavor = "multi_thread")]
async fn the_hook_breaks_no_program_and_costs_little_without_pytorch() {
    let folder = with_hook();
    let package = folder.path().join("torch/distributed");
    std::fs::create_dir_all(&package).expect("a folder of its own");
    for (file, text) in [
        ("torch/__init__.py", ""),
        ("torch/distributed/__init__.py", ""),
        ("torch/distributed/rendezvous.py", HALF_IMPORTED),
    ] {
        std::fs::write(folder.path().join(file), text).expect("a folder of its own");
    }
    let run = async |variables: &[(&str, &str)], code: &str| {
        let mut python = binaries::without_settings("python3");
        python.env("PYTHONPATH", folder.path()).envs(variables.iter().copied());
        python.args(["-c", code]);
        Ended::of(python).await
    };
    let control = ("HOLDFAST_CONTROL", "/nonexistent/agent.sock");
    let loaded = "import sys; print(*[m for m in ('holdfast_capture', 'json', 'torch') \
                  if m in sys.modules])";
    for (variables, expected) in [
        (&[][..], ""),
        (&[control, ("HOLDFAST_CAPTURE", "off")], ""),
        (&[control], "holdfast_capture"),
    ] {
        let ended = run(variables, loaded).await;
        assert_eq!((ended.code, ended.stdout.trim()), (Some(0), expected), "{ended:?}");
    }
    let names = "
import holdfast_capture
for host in ('localhost', 'LOCALHOST', '[::1]', '127.0.0.2', '::ffff:127.0.0.1', '0.0.0.0', 'node0', '10.0.0.1', None):
    print(holdfast_capture.of_launcher(host, 29400), end=' ')
print(holdfast_capture.of_launcher('localhost', 29401))";
    let rank = [("TORCHELASTIC_RUN_ID", "x"), ("MASTER_PORT", "29400")];
    for (address, expected) in [
        (Some("127.0.0.1"), "True True True True True True False False False False"),
        (Some("Node0"), "False False False False False False True False False False"),
        (None, "False False False False False False False False False False"),
    ] {
        let address = address.map(|address| ("MASTER_ADDR", address));
        let variables: Vec<_> = rank.into_iter().chain(address).chain([control]).collect();
        let ended = run(&variables, names).await;
        assert_eq!((ended.code, ended.stdout.trim()), (Some(0), expected), "{ended:?}");
    }
    // A PyTorch that lacks a part of what is changed stays as it is.
    let ended = run(&[control], WITHOUT_A_PART).await;
    assert_eq!((ended.code, ended.stdout.trim()), (Some(0), "True True"), "{ended:?}");
    assert!(ended.stderr.contains("are not on Holdfast: AttributeError"), "{ended:?}");
    // The program sees its own error; later it is notified that the hook is of no use,
    // and goes on.
    let twice = "
try:
    import torch.distributed.rendezvous
except ImportError as error:
    print(error)
import torch.distributed.rendezvous as module
print(type(module.__spec__.loader).__name__, type(module.__loader__).__name__)";
    let ended = run(&[control], twice).await;
    let said = "half imported\nSourceFileLoader SourceFileLoader\n";
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), said), "{ended:?}");
    assert!(ended.stderr.contains("are not on Holdfast: ModuleNotFoundError"), "{ended:?}");
}

/// A connection to the agent, as the hook makes one.
struct Asking(BufReader<UnixStream>);

impl Asking {
    async fn send(control: &Path, request: Value) -> Asking {
        let stream = UnixStream::connect(control).await.expect("the agent listens");
        let mut asking = Asking(BufReader::new(stream));
        asking.ask(request).await;
        asking
    }

    async fn ask(&mut self, request: Value) {
        self.0.write_all(format!("{request}\n").as_bytes()).await.expect("the agent reads");
    }

    async fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).await.expect("the agent answers");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// The address that was answered, and a client there.
    async fn connect(&mut self) -> TcpStore {
        let answer = self.answer().await;
        let address = answer["store"]["address"].as_str();
        TcpStore::connect(address.unwrap_or_else(|| panic!("{answer}"))).await
    }
}

fn store(host: &str, port: u64, is_master: bool) -> Value {
    let timeout_ms = 100_000;
    json!({"store": {"host": host, "port": port, "is_master": is_master, "timeout_ms": timeout_ms}})
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keys_of_a_store_are_deleted_also_when_its_agent_has_ended() {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "over", "--run", "r", "--attempts-kept", "20s"];
    let stays = Command::start(&mut cluster, "stays", &flags).await;
    let folder = cluster.folder().join("other-host").display().to_string();
    let elsewhere = [("HOLDFAST_RUNTIME_DIR", folder.as_str())];
    let ends = Command::start_with(&mut cluster, "ends", &elsewhere, &flags).await;
    let mut asking = Asking::send(&ends.control, store("node7", 12355, true)).await;
    let mut owner = asking.connect().await;
    assert_eq!(owner.add("key", 1).await, 1);
    let keys = async |prefix: &str| {
        cluster.cli_ok(&["--job", "over", "--run", "r", "kv", "list", prefix]).await
    };
    assert!(keys("@node7.").await.contains("#0:"));
    drop((owner, asking));
    eventually("its end to be noted", async || {
        (!keys("@store:node7").await.contains("12355:1")).then_some(())
    })
    .await;
    ends.end(0).await;
    assert!(keys("@node7.").await.contains("#0:"), "they stay readable");
    eventually("its keys to be deleted", async || {
        (!keys("@node7.").await.contains("#0:")).then_some(())
    })
    .await;
    eventually("nothing to be left", async || {
        (!keys("@store-over:").await.contains("node7")).then_some(())
    })
    .await;
    stays.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_open_for_as_long_as_its_master_and_begins_empty() {
    let mut cluster = Cluster::start(3).await;
    let command = Command::start(&mut cluster, "stores", &["--job", "stores"]).await;
    let ask =
        async |host, port, master| Asking::send(&command.control, store(host, port, master)).await;

    // An early client waits for the master, under all names of this host.
    let mut early = ask("127.0.0.1", 12355, false).await;
    let mut opening = ask("localhost", 12355, true).await;
    let mut master = opening.connect().await;
    master.set("k", b"first").await;
    assert!(master.check(&["k"]).await);
    let mut client = early.connect().await;
    assert_eq!(client.get("k").await, b"first");
    opening.ask(json!({"workers": {"workers": 2, "timeout_ms": 1}})).await;
    let missing = opening.answer().await;
    assert!(missing["refused"]["reason"].as_str().is_some_and(|why| why.contains("2 workers")));
    drop((opening, early));

    // No other process is its master in between.
    let refused = ask("localhost", 12355, true).await.answer().await;
    let reason = refused["refused"]["reason"].as_str().unwrap_or_default();
    for part in ["localhost:12355", "EADDRINUSE", "address already in use"] {
        assert!(reason.contains(part), "{part:?} is missing in: {refused}");
    }
    // Another port is another store, and so is that of the ranks.
    let mut other = ask("localhost", 12356, true).await.connect().await;
    assert!(!other.check(&["k"]).await);
    let (host, port) = command.address.rsplit_once(':').expect("an address has a port");
    let agents = ask(host, port.parse().expect("a number"), true).await.answer().await;
    assert_eq!(agents["store"]["is_agent"], true, "{agents}");

    // It ends with its master, even while clients are connected: the next one is empty.
    // This one is asked for at once, before the agent can have seen the end.
    drop(master);
    let mut again = ask("localhost", 12355, true).await.connect().await;
    assert!(!again.check(&["k"]).await, "keys of the store before");
    again.set("k", b"second").await;
    assert!(again.check(&["k"]).await);
    let mut late = ask("localhost", 12355, false).await.connect().await;
    assert_eq!(late.get("k").await, b"second");
    assert_eq!(client.get("k").await, b"first", "who is connected stays");
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_at_any_port_is_found_by_the_port_that_its_master_was_told() {
    let mut cluster = Cluster::start(1).await;
    let command = Command::start(&mut cluster, "any", &["--job", "any"]).await;
    let mut opening = Asking::send(&command.control, store("node0", 0, true)).await;
    let answer = opening.answer().await;
    let port = answer["store"]["port"].as_u64().expect("a number");
    let address = answer["store"]["address"].as_str().expect("an address");
    let mut master = TcpStore::connect(address).await;
    master.set("k", b"v").await;
    assert!(master.check(&["k"]).await);
    let mut finding = Asking::send(&command.control, store("node0", port, false)).await;
    assert_eq!(finding.connect().await.get("k").await, b"v");
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_of_all_names_and_in_all_numbers() {
    let Some(torch) = Torch::with_package() else { return };
    let mut cluster = Cluster::start(1).await;
    let port = cluster.port();
    let file = cluster.folder().join("file-store");
    let mut command = binaries::command("holdfast-agent");
    command.args(["run", "--store", &cluster.list(), "--job", "names", "--"]);
    command.arg(&torch.python).arg(script("store_names.py")).args([&port.to_string()]).arg(&file);
    let program = Script::start_command(&mut cluster, "names", command);
    let said = program.succeeds().await;
    assert_eq!(said.last().map(String::as_str), Some("all as they should be"), "{said:?}");
    // No program waits for a file in silence; once is enough.
    let log = std::fs::read_to_string(cluster.folder().join("names.log")).expect("it was kept");
    let named = format!("opens FileStore({:?})", file.display().to_string()).replace('"', "'");
    assert!(log.contains(&named) && log.contains("env://"), "{log}");
    assert_eq!(log.matches("opens FileStore").count(), 1, "{log}");
}

/// Its ranks meet in a file.
const MEETS_IN_A_FILE: &str = "
import sys
import torch.distributed as dist
dist.init_process_group('gloo', init_method='file://' + sys.argv[1], rank=0, world_size=1)
dist.destroy_process_group()";

#[tokio::test(flavor = "multi_thread")]
async fn a_program_whose_ranks_meet_in_a_file_is_named() {
    let Some(torch) = Torch::with_package() else { return };
    let mut cluster = Cluster::start(1).await;
    let file = cluster.folder().join("met");
    let mut command = binaries::command("holdfast-agent");
    command.args(["run", "--store", &cluster.list(), "--job", "file", "--"]);
    command.arg(&torch.python).args(["-c", MEETS_IN_A_FILE]).arg(&file);
    Script::start_command(&mut cluster, "file", command).succeeds().await;
    let log = std::fs::read_to_string(cluster.folder().join("file.log")).expect("it was kept");
    assert!(log.contains("opens FileStore(") && log.contains("env://"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_opens_ten_thousand_stores_is_told_so_and_others_go_on() {
    const STORES: u64 = 10_000;
    /// As many as one program may have.
    const STORES_MAX: usize = 128;
    let mut cluster = Cluster::start(1).await;
    let command = Command::start(&mut cluster, "many", &["--job", "many"]).await;
    let (mut kept, mut refused) = (Vec::new(), 0);
    for port in 1..=STORES {
        let mut asking = Asking::send(&command.control, store("many", port, true)).await;
        let answer = asking.answer().await;
        if answer["store"].is_object() {
            kept.push(asking);
            continue;
        }
        let why = answer["refused"]["reason"].as_str().unwrap_or_default();
        assert!(why.contains("has 128 stores open already"), "{answer}");
        refused += 1;
    }
    assert_eq!((kept.len(), refused), (STORES_MAX, STORES as usize - STORES_MAX));
    let mut ranks = TcpStore::connect(&command.address).await;
    assert_eq!(ranks.add("n", 1).await, 1);
    drop(kept);
    command.end(0).await;
}

/// More than the ports that an agent has for stores of programs.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_opens_stores_one_after_the_other_is_served_each_time() {
    const STORES: u64 = 1_100;
    let mut cluster = Cluster::start(1).await;
    let command = Command::start(&mut cluster, "row", &["--job", "row"]).await;
    for port in 1..=STORES {
        let mut asking = Asking::send(&command.control, store("row", port, true)).await;
        let mut master = asking.connect().await;
        assert_eq!(master.add("n", 1).await, 1, "{port}");
    }
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_of_any_byte_is_a_store_or_refused_and_reads_no_other() {
    let mut cluster = Cluster::start(1).await;
    let command = Command::start(&mut cluster, "bytes", &["--job", "bytes"]).await;
    let mut opened = 0;
    for byte in 0..=u8::MAX {
        let stream = UnixStream::connect(&command.control).await.expect("the agent listens");
        let mut asking = Asking(BufReader::new(stream));
        let line = [
            br#"{"store":{"host":"h"#.as_slice(),
            &[byte],
            br#"","port":7,"is_master":true,"timeout_ms":9000}}"#,
            b"\n",
        ];
        asking.0.write_all(&line.concat()).await.expect("the agent reads");
        let mut answer = String::new();
        asking.0.read_line(&mut answer).await.expect("the agent answers");
        if answer.contains("refused") || answer.is_empty() {
            continue;
        }
        let answer: Value = serde_json::from_str(&answer).expect("a document");
        let address = answer["store"]["address"].as_str().unwrap_or_else(|| panic!("{answer}"));
        let mut client = TcpStore::connect(address).await;
        assert_eq!(client.add("n", 1).await, 1, "{byte}");
        opened += 1;
    }
    // Values that JSON can hold unchanged.
    assert!(opened >= 90, "{opened}");
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_that_claim_one_store_with_different_worlds_are_told_so() {
    let mut cluster = Cluster::start(1).await;
    let command = Command::start(&mut cluster, "worlds", &["--job", "worlds"]).await;
    let mut first = Asking::send(&command.control, store("node0", 7, true)).await;
    let mut master = first.connect().await;
    assert_eq!(master.count_worker().await, 1);
    let mut second = Asking::send(&command.control, store("node0", 7, true)).await;
    let answer = second.answer().await;
    let why = answer["refused"]["reason"].as_str().unwrap_or_default();
    assert!(why.contains("EADDRINUSE") && why.contains("still connected"), "{answer}");
    let mut other = Asking::send(&command.control, store("node0", 7, false)).await;
    let mut client = other.connect().await;
    assert_eq!(client.count_worker().await, 2);
    // One has a world of two, which is there, the other one of three.
    first.ask(json!({"workers": {"workers": 2, "timeout_ms": 60_000}})).await;
    assert!(first.answer().await["come"].is_object());
    other.ask(json!({"workers": {"workers": 3, "timeout_ms": 100}})).await;
    let answer = other.answer().await;
    let why = answer["refused"]["reason"].as_str().unwrap_or_default();
    assert!(why.contains("not all 3 workers have connected"), "{answer}");
    assert_eq!(master.add("n", 1).await, 1);
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_ranks_have_keys_of_their_own_in_the_store_of_their_launcher() {
    let mut cluster = Cluster::start(1).await;
    let command = Command::start(&mut cluster, "restarts", &["--job", "restarts"]).await;
    let mut opening = Asking::send(&command.control, store("localhost", 29400, true)).await;
    let mut launcher = opening.connect().await;
    launcher.set("k", b"launcher").await;
    assert!(launcher.check(&["k"]).await);
    let rank = async |attempt: u32, of_launcher: bool| {
        let mut wanted = store("localhost", 29400, false);
        wanted["store"]["attempt"] = attempt.into();
        wanted["store"]["of_launcher"] = of_launcher.into();
        Asking::send(&command.control, wanted).await.connect().await
    };
    for (attempt, of_launcher, sees) in
        [(0, true, true), (1, true, false), (1, false, true), (2, true, false)]
    {
        let mut rank = rank(attempt, of_launcher).await;
        assert_eq!(rank.check(&["k"]).await, sees, "{attempt} {of_launcher}");
        rank.set("k", attempt.to_string().as_bytes()).await;
        assert!(rank.check(&["k"]).await);
        launcher.set("k", b"launcher").await;
        assert!(launcher.check(&["k"]).await);
    }
    // All ranks of an attempt meet, also when others of it have exited.
    assert_eq!(rank(1, true).await.get("k").await, b"1");
    assert_eq!(rank(2, true).await.get("k").await, b"2");
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_attempt_that_a_process_tells_selects_its_keys_at_the_port_of_the_ranks() {
    let mut cluster = Cluster::start(1).await;
    let command = Command::start(&mut cluster, "tells", &["--job", "tells"]).await;
    let (_, port) = command.address.rsplit_once(':').expect("an address has a port");
    let port: u64 = port.parse().expect("a port is a number");
    let own = std::process::id();
    let connect = async || {
        let mut store = TcpStore::connect_as(&command.address, own).await;
        assert_eq!(store.number_or_end::<4>("a PING").await, Some(own.to_le_bytes()));
        store
    };
    let tell = async |told: Value| {
        let mut wanted = store("localhost", port, true);
        let fields = told.as_object().expect("fields of a request").clone();
        wanted["store"].as_object_mut().expect("a request").extend(fields);
        let answer = Asking::send(&command.control, wanted).await.answer().await;
        assert_eq!(answer["store"]["is_agent"], true, "{answer}");
    };
    // As a function that a launcher calls in another process: its variables say nothing.
    let mut before = connect().await;
    before.set("k", b"of attempt 0").await;
    assert!(before.check(&["k"]).await);
    for (told, sees) in
        [(json!({"attempt": 1}), false), (json!({"namespace": "n"}), true), (json!({}), true)]
    {
        tell(told.clone()).await;
        assert_eq!(connect().await.check(&["k"]).await, sees, "{told}");
    }
    command.end(0).await;
}

/// The ranks are on another host than their launcher: no other program there uses its store.
#[tokio::test(flavor = "multi_thread")]
async fn restarted_ranks_go_on_in_the_store_of_their_launcher_when_their_agent_is_killed() {
    /// As long as an agent keeps ports for programs that had asked the one before it.
    const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
    let mut cluster = Cluster::start(1).await;
    let folders = ["h0", "h1"].map(|host| cluster.folder().join(host).display().to_string());
    let mut commands = Vec::new();
    for folder in &folders {
        let set = [("HOLDFAST_RUNTIME_DIR", folder.as_str())];
        let name = format!("killed-{}", commands.len());
        let flags = ["--job", "killed", "--run", "one"];
        commands.push(Command::start_with(&mut cluster, &name, &set, &flags).await);
    }
    let mut opening = Asking::send(&commands[0].control, store("node0", 29400, true)).await;
    let mut launcher = opening.connect().await;
    launcher.set("k", b"launcher").await;
    assert!(launcher.check(&["k"]).await);
    let control = commands[1].control.clone();
    let rank = async || {
        let mut wanted = store("node0", 29400, false);
        wanted["store"]["attempt"] = 1.into();
        wanted["store"]["of_launcher"] = true.into();
        Asking::send(&control, wanted).await.connect().await
    };
    let mut first = rank().await;
    assert!(!first.check(&["k"]).await);
    assert_eq!(first.add("n", 1).await, 1);

    let before = process_at(&control).await;
    kill(Pid::from_raw(before), Signal::SIGKILL).expect("it is ours");
    let mut expected = 1;
    let killed = std::time::Instant::now();
    while killed.elapsed() < CONNECT_TIME_MAX + Duration::from_secs(3) {
        expected += 1;
        assert_eq!(first.add("n", 1).await, expected);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_ne!(process_at(&control).await, before);
    let mut second = rank().await;
    assert_eq!(second.add("n", 1).await, expected + 1, "ranks of one attempt meet");
    assert!(!second.check(&["k"]).await);
    for command in commands {
        command.end(0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_found_after_its_host_was_away_and_its_end_is_told_after_an_outage() {
    let mut cluster = Cluster::start(3).await;
    let folders = ["h0", "h1"].map(|host| cluster.folder().join(host).display().to_string());
    let flags = ["--job", "away", "--run", "one", "--lease-ttl", "1s"];
    let mut commands = Vec::new();
    for folder in &folders {
        let set = [("HOLDFAST_RUNTIME_DIR", folder.as_str())];
        let name = format!("away-{}", commands.len());
        commands.push(Command::start_with(&mut cluster, &name, &set, &flags).await);
    }
    let ask = async |host: usize, master| {
        Asking::send(&commands[host].control, store("node0", 12355, master)).await
    };
    let mut master = ask(0, true).await.connect().await;
    master.set("k", b"v").await;
    assert!(master.check(&["k"]).await);

    // Longer than its lease lasts: it has another one then.
    let record = async || {
        let listed =
            cluster.cli_ok(&["--job", "away", "-o", "json", "kv", "list", "@store:"]).await;
        let (_, rest) = listed.split_once("lease")?;
        let id = rest.trim_start_matches(|c: char| !c.is_ascii_hexdigit());
        let id: String = id.chars().take_while(char::is_ascii_hexdigit).collect();
        id.parse::<LeaseId>().ok()
    };
    let before = record().await.expect("its record is there");
    let agent = Pid::from_raw(process_at(&commands[0].control).await);
    kill(agent, Signal::SIGSTOP).expect("it is ours");
    let client = cluster.client();
    eventually("its lease to end", async || {
        let feed = Read::Feed { lease: before, since: u64::MAX, have: Vec::new() };
        let read = client.read(feed, Consistency::Linearizable, soon()).await;
        read.is_err_and(|error| error.code() == Code::LeaseEnded).then_some(())
    })
    .await;
    eventually("the other host to have lost it", async || {
        let mut opening = ask(1, false).await;
        let found = tokio::time::timeout(Duration::from_millis(500), opening.answer()).await;
        found.is_err().then_some(())
    })
    .await;
    kill(agent, Signal::SIGCONT).expect("it is ours");
    eventually("the record to name the lease of now", async || {
        record().await.filter(|now| *now != before)
    })
    .await;
    assert_eq!(ask(1, false).await.connect().await.get("k").await, b"v");

    // No quorum while it ends, for longer than one try.
    let killed: Vec<_> = cluster.ids().into_iter().skip(1).collect();
    for node in &killed {
        cluster.kill(*node);
    }
    drop(master);
    eventually("a try in vain", async || {
        commands[0].agent.said().contains("is not noted yet").then_some(())
    })
    .await;
    for node in killed {
        cluster.restart(node).await;
    }
    eventually("the store to be over", async || {
        let answer = ask(1, true).await.answer().await;
        answer["store"]["address"].as_str().map(str::to_owned)
    })
    .await;
    for command in commands {
        command.end(0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_meet_in_a_store_by_its_name() {
    let mut cluster = Cluster::start(3).await;
    // Two agents of one run stand for two hosts.
    let folders = ["h0", "h1"].map(|host| cluster.folder().join(host).display().to_string());
    let flags = ["--job", "hosts", "--run", "one"];
    let mut commands = Vec::new();
    for folder in &folders {
        let set = [("HOLDFAST_RUNTIME_DIR", folder.as_str())];
        let name = format!("host-{}", commands.len());
        commands.push(Command::start_with(&mut cluster, &name, &set, &flags).await);
    }
    let ask = async |host: usize, name, master| {
        Asking::send(&commands[host].control, store(name, 12355, master)).await
    };
    let mut finding = ask(1, "Node0", false).await;
    let mut master = ask(0, "node0", true).await.connect().await;
    master.set("k", b"v").await;
    assert!(master.check(&["k"]).await);
    assert_eq!(finding.connect().await.get("k").await, b"v");
    let refused = ask(1, "node0", true).await.answer().await;
    assert!(refused.to_string().contains("EADDRINUSE"), "{refused}");
    // Once it is over there, it may be opened here.
    drop(master);
    eventually("the store to be over", async || {
        let answer = ask(1, "node0", true).await.answer().await;
        answer["store"]["address"].as_str().map(str::to_owned)
    })
    .await;
    for command in commands {
        command.end(0).await;
    }
}
