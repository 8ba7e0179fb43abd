//! The launch table on several hosts, each with a network of its own: a job
//! whose ranks share one loopback proves nothing about hosts. And the hosts
//! themselves.

use std::process::Command;

use holdfast_tests::job::TORCHRUN;
use holdfast_tests::{Cluster, Ended, Host, Job, Names, Network, Torch, eventually};

/// Setting for gloo where a host's own name means its loopback.
const INTERFACE: &str = "GLOO_SOCKET_IFNAME=eth0";

/// Three nodes of the store, each on a host of its own.
async fn cluster(network: &mut Network) -> Cluster {
    let hosts = [1, 2, 3].map(|n| network.host(&format!("store-{n}"), Names::Real));
    Cluster::start_on(&hosts, &["--insecure"]).await
}

/// Each host has an agent of its own, and clients came to it.
async fn each_host_has_its_agent(cluster: &Cluster, job: &str, hosts: &[Host]) {
    eventually("each host's agent to be listed with its clients", async || {
        let list = cluster.cli_ok(&["-o", "json", "--job", job, "agent", "list"]).await;
        let list: serde_json::Value = serde_json::from_str(&list).expect("JSON was asked for");
        let agents = list["agents"].as_array().expect("a list").clone();
        let of = |host: &Host| {
            let own = agents.iter().filter(|agent| agent["host"] == host.name());
            let served = |agent: &&serde_json::Value| {
                agent["clients"].as_array().is_some_and(|clients| !clients.is_empty())
            };
            own.filter(served).count() == 1
        };
        (agents.len() == hosts.len() && hosts.iter().all(of)).then_some(())
    })
    .await;
}

async fn torchrun_on_two_nodes(network: &mut Network, torch: &Torch) {
    let mut cluster = cluster(network).await;
    let nodes: [Host; 2] = network.hosts(Names::Real);
    let mut job = Job::new(&cluster, torch, "two-nodes");
    for (n, node) in nodes.iter().enumerate() {
        let rank = format!("--node-rank={n}");
        let options = ["--nnodes=2", &rank, "--nproc-per-node=2", "JOB"];
        let command = [&TORCHRUN[..], &options].concat();
        let command = job.command(&cluster, &["--run", "r"], &command);
        job.start_on(node, &mut cluster, command);
    }
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    each_host_has_its_agent(&cluster, "two-nodes", &nodes).await;
    let keys = cluster.cli_ok(&["--job", "two-nodes", "kv", "list"]).await;
    assert!(keys.contains("beat/3/1") && keys.contains("torchelastic"), "{keys}");
    job.finishes("with 4 ranks").await;
}

#[test]
fn torchrun_static_on_two_nodes() {
    Network::test(async |network| torchrun_on_two_nodes(network, &Torch::newest()).await);
}

#[test]
fn an_older_torchrun_static_on_two_nodes() {
    let Some(torch) = Torch::older().filter(|torch| torch.version >= (2, 7)) else { return };
    Network::test(async |network| torchrun_on_two_nodes(network, &torch).await);
}

#[test]
fn ranks_on_two_hosts_that_are_told_their_place_in_variables() {
    Network::test(async |network| {
        let mut cluster = cluster(network).await;
        let nodes: [Host; 2] = network.hosts(Names::Loopback);
        let mut job = Job::new(&cluster, &Torch::newest(), "env");
        for (n, node) in nodes.iter().enumerate() {
            let rank = format!("RANK={n}");
            let command = ["env", "WORLD_SIZE=2", &rank, INTERFACE, "PYTHON", "JOB"];
            let command = job.command(&cluster, &["--run", "r"], &command);
            job.start_on(node, &mut cluster, command);
        }
        job.goes_on_without_its_leader(&mut cluster, 0).await;
        each_host_has_its_agent(&cluster, "env", &nodes).await;
        job.finishes("with 2 ranks").await;
    });
}

async fn second_store_on_two_hosts(network: &mut Network, torch: &Torch) {
    let mut cluster = cluster(network).await;
    let nodes: [Host; 2] = network.hosts(Names::Loopback);
    let mut job = Job::new(&cluster, torch, "second");
    for (n, node) in nodes.iter().enumerate() {
        let rank = format!("RANK={n}");
        let command = ["env", "WORLD_SIZE=2", &rank, INTERFACE, "PYTHON", "JOB", "second-store"];
        let flags = ["--run", "r", "--tcpstore", "127.0.0.1:29500-29501"];
        let command = job.command(&cluster, &flags, &command);
        job.start_on(node, &mut cluster, command);
    }
    job.goes_on_without_its_leader(&mut cluster, 0).await;
    each_host_has_its_agent(&cluster, "second", &nodes).await;
    let keys = cluster.cli_ok(&["--job", "second", "kv", "list"]).await;
    assert!(keys.contains("@29501#0:/beat/1/1"), "{keys}");
    job.finishes("with 2 ranks").await;
}

/// Its master is on one host, and the other finds it at its own loopback.
#[test]
fn a_second_store_at_the_next_port_on_two_hosts() {
    Network::test(async |network| second_store_on_two_hosts(network, &Torch::newest()).await);
}

#[test]
fn an_older_torchs_second_store_at_the_next_port_on_two_hosts() {
    let Some(torch) = Torch::older() else { return };
    Network::test(async |network| second_store_on_two_hosts(network, &torch).await);
}

/// Without the ports, where each host's agent has one of its own.
async fn second_store_that_nobody_spoke_of(
    network: &mut Network,
    torch: &Torch,
) -> (Cluster, Job, [Host; 2]) {
    let mut cluster = cluster(network).await;
    let nodes: [Host; 2] = network.hosts(Names::Loopback);
    let mut job = Job::new(&cluster, torch, "unspoken");
    for (n, node) in nodes.iter().enumerate() {
        let rank = format!("RANK={n}");
        let command = ["env", "WORLD_SIZE=2", &rank, INTERFACE, "PYTHON", "JOB", "second-store"];
        let command = job.command(&cluster, &["--run", "r"], &command);
        job.start_on(node, &mut cluster, command);
    }
    (cluster, job, nodes)
}

/// No program waits for a time-out in silence: both hosts say the line to use.
#[test]
fn a_second_store_that_nobody_spoke_of_is_named_on_both_hosts() {
    Network::test(async |network| {
        let (cluster, _job, _nodes) =
            second_store_that_nobody_spoke_of(network, &Torch::newest()).await;
        for (n, way) in [(0, "serves a TCPStore itself"), (1, "waits in PyTorch for a store")] {
            let log = cluster.folder().join(format!("unspoken-{n}.log"));
            eventually("the host to say it", async || {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                let line = said.lines().find(|line| line.contains("bypasses Holdfast"))?;
                assert!(line.contains(way) && line.contains("MASTER_PORT + 1"), "{line}");
                assert!(line.contains("--tcpstore 127.0.0.1:"), "{line}");
                Some(())
            })
            .await;
        }
    });
}

#[test]
fn a_second_store_that_nobody_spoke_of_is_on_holdfast_where_the_wheel_is() {
    let Some(torch) = Torch::with_package() else { return };
    Network::test(async |network| {
        let (mut cluster, mut job, _nodes) =
            second_store_that_nobody_spoke_of(network, &torch).await;
        job.goes_on_without_its_leader(&mut cluster, 0).await;
        let keys = cluster.cli_ok(&["--job", "unspoken", "kv", "list", "@"]).await;
        assert!(keys.contains("#0:/beat/1/1"), "{keys}");
        job.finishes("with 2 ranks").await;
    });
}

#[test]
fn ranks_on_two_hosts_of_a_program_that_binds_the_master_address() {
    Network::test(async |network| {
        let mut cluster = cluster(network).await;
        let nodes: [Host; 2] = network.hosts(Names::Real);
        let mut job = Job::new(&cluster, &Torch::newest(), "binds");
        let master = format!("MASTER_ADDR={}", nodes[0].name());
        for (n, node) in nodes.iter().enumerate() {
            let rank = format!("RANK={n}");
            let command = ["PYTHON", "JOB", "kept-master-addr"];
            let flags = ["--run", "r", "--keep-master-addr"];
            let mut run = job.command(&cluster, &flags, &command);
            for variable in [&master, "MASTER_PORT=29400", "WORLD_SIZE=2", &rank] {
                let (name, value) = variable.split_once('=').expect("a variable");
                run.env(name, value);
            }
            job.start_on(node, &mut cluster, run);
        }
        job.goes_on_without_its_leader(&mut cluster, 0).await;
        each_host_has_its_agent(&cluster, "binds", &nodes).await;
        job.finishes("with 2 ranks").await;
    });
}

#[test]
fn tasks_of_a_slurm_step_on_two_hosts() {
    Network::test(async |network| {
        let mut cluster = cluster(network).await;
        let nodes: [Host; 2] = network.hosts(Names::Real);
        let mut job = Job::new(&cluster, &Torch::newest(), "step");
        for (n, node) in nodes.iter().enumerate() {
            let number = format!("--node={n}");
            let options = ["--nodes=2", &number, "--ntasks-per-node=2", "--job-id=812"];
            let srun = job.under_srun(&cluster, &options, &["PYTHON", "JOB"]);
            job.start_on(node, &mut cluster, srun);
        }
        job.goes_on_without_its_leader(&mut cluster, 0).await;
        each_host_has_its_agent(&cluster, "step", &nodes).await;
        let runs = cluster.cli_ok(&["--job", "step", "run", "list"]).await;
        assert!(runs.contains("slurm-812.0.0") && !runs.contains("r1"), "{runs}");
        job.finishes("with 4 ranks").await;
    });
}

async fn shell(host: &Host, script: &str) -> Ended {
    let mut command = Command::new("bash");
    command.args(["-c", script]);
    // The end is awaited elsewhere than it was started.
    let ended = host.inside(|| Ended::start(command));
    ended.await
}

#[test]
fn hosts_have_their_own_loopback_names_and_processes() {
    Network::test(async |network| {
        let one = network.host("one", Names::Real);
        let other = network.host("other", Names::Loopback);
        let names = "cat /proc/sys/kernel/hostname; getent hosts one | cut -d' ' -f1; \
                     getent hosts other | cut -d' ' -f1";
        assert_eq!(shell(&one, names).await.stdout, "one\n10.77.0.2\n10.77.0.3\n");
        assert_eq!(shell(&other, names).await.stdout, "other\n10.77.0.2\n127.0.1.1\n");

        // A listener on the loopback of one is not there on the other.
        let mut cluster = Cluster::plan(0, &[]);
        let listens = "import socket, time; s = socket.create_server(('127.0.0.1', 29500)); \
                       print('listens', flush=True); time.sleep(600)";
        let mut python = Command::new("python3");
        python.args(["-c", listens]);
        let mut server = one.program(&mut cluster, "server", python);
        server.says("listens").await;
        let connects = "exec 3<>/dev/tcp/127.0.0.1/29500";
        assert_eq!(shell(&one, connects).await.code, Some(0));
        assert_eq!(shell(&other, connects).await.code, Some(1));

        // A container shares the loopback and sees none of the processes.
        let container = one.container("trainer", &[]);
        assert_eq!(shell(&container, connects).await.code, Some(0));
        let sees = "readlink /proc/[0-9]*/exe | grep -c python";
        assert_eq!(shell(&one, sees).await.stdout, "1\n");
        assert_eq!(shell(&container, sees).await.stdout, "0\n");
    });
}

#[test]
fn a_host_is_cut_off_and_plugged_in_again_and_its_power_fails() {
    Network::test(async |network| {
        let [one, other]: [Host; 2] = network.hosts(Names::Real);
        let mut cluster = Cluster::plan(0, &[]);
        let mut python = Command::new("python3");
        python.args(["-u", "-m", "http.server", "--directory", "/nonexistent", "8000"]);
        let log = cluster.keep_log("server");
        let mut server = one.process("a server", python, &log);
        server.says("Serving").await;
        let connects = format!("exec 3<>/dev/tcp/{}/8000", one.address());
        let within = format!("timeout 1 bash -c '{connects}'");
        assert_eq!(shell(&other, &connects).await.code, Some(0));
        one.cut_off();
        assert_eq!(shell(&other, &within).await.code, Some(124), "packets are lost");
        assert_eq!(shell(&one, &connects).await.code, Some(0), "its own are not");
        one.plug_in();
        assert_eq!(shell(&other, &connects).await.code, Some(0));
        one.power_off();
        server.ended().await;
    });
}

/// Marks the process to be killed.
const VICTIM: &str = "HOLDFAST_TEST_VICTIM";

#[test]
fn nothing_is_left_of_hosts_whose_test_is_killed() {
    if let Some(mark) = std::env::var_os(VICTIM) {
        Network::test(async |network| {
            let host = network.host("victim", Names::Real);
            let mut sleep = Command::new("sleep");
            sleep.arg("600").env("HOLDFAST_MARK", &mark);
            let log = std::path::PathBuf::from("/dev/null");
            let _sleeping = host.process("a sleeper", sleep, &log);
            println!("here");
            std::future::pending().await
        });
        return;
    }
    Network::test(async |network| {
        let mark = format!("HOLDFAST_MARK={}", rand::random::<u64>());
        // On a host, so that it sees its own processes only.
        let host = network.host("outer", Names::Real);
        let mut cluster = Cluster::plan(0, &[]);
        let mut test = Command::new(std::env::current_exe().expect("a program has a file"));
        test.args([
            "--exact",
            "hosts::nothing_is_left_of_hosts_whose_test_is_killed",
            "--nocapture",
        ]);
        test.env(VICTIM, &mark["HOLDFAST_MARK=".len()..]).env("TMPDIR", cluster.folder());
        let log = cluster.keep_log("victim");
        let mut victim = host.process("the victim", test, &log);
        victim.says("here").await;
        let count = format!("grep -lz '^{mark}$' /proc/[0-9]*/environ | wc -l");
        assert_eq!(shell(&host, &count).await.stdout, "1\n", "the sleeper");
        victim.kill();
        eventually("nothing to be left", async || {
            let left = shell(&host, &count).await.stdout;
            (left == "0\n").then_some(())
        })
        .await;
    });
}
