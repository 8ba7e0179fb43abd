//! The manifest in `trainer-shim/docs/kubernetes.yaml`: it is valid, and is run as a
//! kubelet would run it, each container with processes of its own.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use holdfast_tests::python::script;
use holdfast_tests::{
    Cluster, Ended, Host, Mount, Names, Network, Process, Script, TcpStore, Torch, binaries,
    eventually,
};
use serde_json::Value;

/// The oldest Kubernetes with native sidecars, and the newest whose schemas
/// the tests have.
const VERSIONS: [&str; 2] = ["1.29", "1.37"];
const TOKEN: &str = "the-token-of-the-secret";

fn manifest() -> PathBuf {
    binaries::workspace().join("trainer-shim/docs/kubernetes.yaml")
}

/// `manifest.py`; none, with a word about it, if there is no Python with what
/// it imports.
fn reader(arguments: &[&str]) -> Option<Command> {
    let named = std::env::var_os("HOLDFAST_PYTHON_TOOLS").filter(|named| !named.is_empty());
    let installed = || binaries::workspace().join("target/python/bin/python");
    let python = named.map_or_else(installed, PathBuf::from);
    if !python.exists() {
        eprintln!(
            "SKIPPED: the schemas of Kubernetes are missing: there is no {}; \
             `tests/prepare hosts` installs them",
            python.display()
        );
        return None;
    }
    let mut command = Command::new(python);
    command.arg(script("manifest.py")).args(arguments);
    Some(command)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the paths of tests are text")
}

/// A manifest is valid, and each of these changes in it is found.
async fn is_valid_and_wrong_if_changed(path: &Path, changes: &[(&str, &str, &str)]) {
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let right = std::fs::read_to_string(path).expect("it is there");
    for version in VERSIONS {
        let Some(command) = reader(&["check", text(path), version]) else { return };
        let ended = Ended::of(command).await;
        assert_eq!(ended.code, Some(0), "{ended:#?}");
        assert_eq!(ended.stdout.trim(), format!("valid for Kubernetes {version}"));
    }
    for (there, instead, found) in changes {
        let wrong = right.replacen(there, instead, 1);
        assert_ne!(wrong, right, "{there:?} is not in the manifest");
        let path = folder.path().join("wrong.yaml");
        std::fs::write(&path, wrong).expect("the folder is ours");
        let Some(command) = reader(&["check", text(&path), VERSIONS[1]]) else { return };
        let ended = Ended::of(command).await;
        assert_eq!(ended.code, Some(1), "{there:?} => {instead:?}: {ended:#?}");
        assert!(ended.stdout.contains(found), "{found:?} is missing: {ended:#?}");
    }
}

#[tokio::test]
async fn the_manifest_is_valid_and_a_wrong_one_is_not() {
    let changes = [
        ("startupProbe:", "startUpProbe:", "startUpProbe"),
        ("  completions: 2\n", "", "an indexed Job has completions"),
        ("restartPolicy: Never", "restartPolicy: Sometimes", "Never or OnFailure"),
        ("periodSeconds: 1", "periodSeconds: soon", "soon"),
        ("mountPath: /run/holdfast", "path: /run/holdfast", "mountPath"),
        ("name: token\n          secret", "name: tokens\n          secret", "no volume token"),
        ("job-completion-index']", "index']", "nobody writes"),
        ("$(NAMESPACE).", "$(NAMESPACES).", "a reference to no variable"),
        ("clusterIP: None", "clusterIP: 10.0.0.1", "headless"),
        ("subdomain: train", "subdomain: trains", "subdomain"),
    ];
    is_valid_and_wrong_if_changed(&manifest(), &changes).await;
}

#[tokio::test]
async fn the_nodes_manifest_is_valid_and_a_wrong_one_is_not() {
    let path = binaries::workspace().join("store/docs/kubernetes.yaml");
    let changes = [
        ("podManagementPolicy: Parallel", "podManagementPolicy: OrderedReady", "start at once"),
        ("replicas: 3", "replicas: 5", "list of nodes"),
        ("readinessProbe:", "readyProbe:", "readyProbe"),
        ("publishNotReadyAddresses: true", "publishNotReadyAddresses: false", "before they are"),
        ("serviceName: holdfast", "serviceName: nodes", "the service is the set's"),
        ("        name: data\n", "        name: date\n", "mounts have volumes"),
    ];
    is_valid_and_wrong_if_changed(&path, &changes).await;
}

/// A pod of the manifest's Job, as far as this one machine can be a cluster.
struct Pod {
    name: String,
    sidecar: Container,
    trainer: Container,
}

struct Container {
    host: Host,
    plan: Value,
}

impl Container {
    fn words(&self, what: &str) -> Vec<&str> {
        let words = self.plan[what].as_array().expect("the manifest has it");
        words.iter().map(|word| word.as_str().expect("words are text")).collect()
    }

    /// A command of the manifest, with no more variables than it names. Of its
    /// words those are replaced that name what an image holds.
    fn command(&self, what: &str, image: &[(&str, Vec<PathBuf>)]) -> Command {
        let words = self.words(what).into_iter().flat_map(|word| {
            let held = image.iter().find(|(name, _)| *name == word);
            held.map_or_else(|| vec![PathBuf::from(word)], |(_, words)| words.clone())
        });
        let words: Vec<PathBuf> = words.collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", "/");
        for (name, value) in self.plan["environment"].as_object().expect("a map") {
            command.env(name, value.as_str().expect("variables are text"));
        }
        command
    }
}

impl Pod {
    fn new(host: &Host, uid: &str, plan: &Value, folder: &Path) -> Pod {
        let containers = plan["containers"].as_array().expect("a list");
        let [sidecar, trainer] = containers.as_slice() else { panic!("{containers:#?}") };
        assert!(sidecar["sidecar"] == true && trainer["sidecar"] == false, "{containers:#?}");
        // The volume that both containers see.
        let control = folder.join(format!("control-{uid}-{}", host.name()));
        std::fs::create_dir_all(&control).expect("the folder is ours");
        let make = |plan: &Value| {
            let mounts = plan["mounts"].as_array().expect("a list").iter();
            let mounts: Vec<(&str, Mount<'_>)> = mounts
                .map(|one| {
                    let mount = match (one["secret"].as_str(), one["shared"].as_str()) {
                        (Some(secret), _) => Mount::ReadOnly(Path::new(secret)),
                        (None, Some("control")) => Mount::Shared(&control),
                        (None, _) => Mount::Empty,
                    };
                    (one["path"].as_str().expect("a path"), mount)
                })
                .collect();
            let name = format!("{uid}-{}", plan["name"].as_str().expect("a name"));
            let container = host.container(&name, &mounts);
            if plan["read_only"] == true {
                container.make_read_only(folder);
            }
            Container { host: container, plan: plan.clone() }
        };
        Pod { name: host.name().to_owned(), sidecar: make(sidecar), trainer: make(trainer) }
    }

    /// Starts the agent, and waits for its start-up probe.
    async fn start_agent(&self, cluster: &mut Cluster, uid: &str) -> Script {
        let agent = ("holdfast-agent", vec![binaries::path("holdfast-agent")]);
        let name = format!("{}-{uid}", self.name);
        let command = self.sidecar.command("command", &[agent]);
        let agent = self.sidecar.host.program(cluster, &format!("agent-{name}"), command);
        eventually("the start-up probe to succeed", async || {
            let probe = self.sidecar.command("probe", &[]);
            let ended = self.sidecar.host.inside(|| Ended::start(probe)).await;
            (ended.code == Some(0)).then_some(())
        })
        .await;
        agent
    }

    /// Starts the agent, then the trainer.
    async fn start(
        &self,
        cluster: &mut Cluster,
        uid: &str,
        torch: &Torch,
        orders: &Path,
    ) -> Running {
        let agent = self.start_agent(cluster, uid).await;
        let torchrun = ["-m", "torch.distributed.run"].map(PathBuf::from);
        let image = [
            ("torchrun", [&[torch.python.clone()][..], &torchrun].concat()),
            ("/app/train.py", vec![script("launch_job.py"), orders.to_owned()]),
        ];
        for (word, _) in &image {
            assert!(self.trainer.words("command").contains(word), "{word} is not in the manifest");
        }
        let command = self.trainer.command("command", &image);
        let name = format!("trainer-{}-{uid}", self.name);
        let trainer = self.trainer.host.program(cluster, &name, command);
        Running { agent, trainer }
    }
}

struct Running {
    agent: Script,
    trainer: Script,
}

/// A Job that was created with this uid: its two pods, and all that runs in
/// them.
async fn create(
    cluster: &mut Cluster,
    hosts: &[Host; 2],
    uid: &str,
    orders: &Path,
) -> Option<Vec<(Pod, Running)>> {
    let secrets = cluster.folder().join("secrets");
    let (path, torch) = (manifest(), Torch::newest());
    let mut pods = Vec::new();
    for (n, host) in hosts.iter().enumerate() {
        let index = n.to_string();
        let ended = Ended::of(reader(&["pod", text(&path), &index, uid, text(&secrets)])?).await;
        assert_eq!(ended.code, Some(0), "{ended:#?}");
        let plan: Value = serde_json::from_str(&ended.stdout).expect("a plan is JSON");
        assert_eq!(plan["host"], host.name());
        let pod = Pod::new(host, uid, &plan, cluster.folder());
        let running = pod.start(cluster, uid, &torch, orders).await;
        pods.push((pod, running));
    }
    Some(pods)
}

/// How many connections the agent of this host shows, and whether it knows a process for
/// any of them.
async fn clients(cluster: &Cluster, run: &str, host: &str) -> (u64, bool) {
    let list = cluster.cli_ok(&["-o", "json", "--job", "default.train", "agent", "list"]).await;
    let list: Value = serde_json::from_str(&list).expect("JSON was asked for");
    let agents = list["agents"].as_array().expect("a list");
    let found = agents.iter().find(|agent| agent["host"] == host && agent["run"] == run);
    let none = Vec::new();
    let clients = found.and_then(|agent| agent["clients"].as_array()).unwrap_or(&none);
    let connections = clients.iter().filter_map(|client| client["connections"].as_u64()).sum();
    (connections, clients.iter().any(|client| client["pid"].is_u64()))
}

#[test]
fn the_manifests_job_trains_through_a_dying_leader_and_its_dead_ranks_are_closed_sockets() {
    Network::test(async |network| {
        let nodes = [0, 1, 2].map(|n| network.host(&format!("holdfast-{n}.holdfast"), Names::Real));
        let hosts = [0, 1].map(|n| network.host(&format!("train-{n}"), Names::Real));
        let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
        let token = folder.path().join("token");
        std::fs::write(&token, TOKEN).expect("the folder is ours");
        let closed = PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&token, closed).expect("it is ours");
        let mut cluster =
            Cluster::start_on(&nodes, &["--insecure", "--token-file", text(&token)]).await;
        cluster.use_token(&token);
        // The secret, as the kubelet lays it down.
        let secret = cluster.folder().join("secrets/holdfast-token");
        std::fs::create_dir_all(&secret).expect("the folder is ours");
        std::fs::copy(&token, secret.join("token")).expect("both folders are ours");

        let orders = cluster.folder().join("orders-1");
        std::fs::create_dir(&orders).expect("the folder is ours");
        let Some(mut first) = create(&mut cluster, &hosts, "uid-1", &orders).await else { return };
        let speaker = &mut first[0].1.trainer;
        speaker.says("attempt 0 step").await;
        let leader = cluster.leader().await;
        cluster.kill(leader);
        speaker.says_anew("attempt 0 step").await;
        cluster.restart(leader).await;
        std::fs::write(orders.join("finish"), "").expect("the folder is ours");
        speaker.says("trained").await;
        for (_, running) in first {
            running.trainer.succeeds().await;
            // Sidecars are asked to end after the trainer has.
            running.agent.signal(nix::sys::signal::Signal::SIGTERM);
            running.agent.succeeds().await;
        }

        // Created anew it has another uid, and meets no key of the other.
        let orders = cluster.folder().join("orders-2");
        std::fs::create_dir(&orders).expect("the folder is ours");
        let Some(mut second) = create(&mut cluster, &hosts, "uid-2", &orders).await else { return };
        second[0].1.trainer.says("attempt 0 step 1").await;
        let connected = eventually("clients of the second pod to be listed", async || {
            let (connections, known) = clients(&cluster, "uid-2", "train-1").await;
            (connections > 0).then_some(known)
        });
        assert!(!connected.await, "processes of another container are not seen");
        second[1].0.trainer.host.power_off();
        eventually("the sockets of the dead ranks to be closed", async || {
            (clients(&cluster, "uid-2", "train-1").await.0 == 0).then_some(())
        })
        .await;
    });
}

/// A trainer of the package's own, which reports where it is and what it can write.
const JOB: &str = r#"
import holdfast
for place in ("/tmp/x", "/x"):
    try:
        open(place, "w").close()
        print("wrote", place, flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
with holdfast.Job.join(process=0, world=1) as job:
    now = job.advance()
    print("rank", now.rank, "of", now.world_size, "in", job.name, job.check(job.fence()), flush=True)
"#;

#[test]
fn a_job_joins_the_sidecar_where_nothing_else_can_be_written() {
    let Some(python) = holdfast_tests::python::with_package() else { return };
    Network::test(async |network| {
        let node = network.host("holdfast-0.holdfast", Names::Real);
        let host = network.host("train-0", Names::Real);
        let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
        let token = folder.path().join("token");
        std::fs::write(&token, TOKEN).expect("the folder is ours");
        let closed = PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&token, closed).expect("it is ours");
        let mut cluster =
            Cluster::start_on(&[node], &["--insecure", "--token-file", text(&token)]).await;
        let secrets = cluster.folder().join("secrets");
        std::fs::create_dir_all(secrets.join("holdfast-token")).expect("the folder is ours");
        std::fs::copy(&token, secrets.join("holdfast-token/token")).expect("both are ours");
        let path = manifest();
        let arguments = ["pod", text(&path), "0", "uid-3", text(&secrets)];
        let Some(command) = reader(&arguments) else { return };
        let ended = Ended::of(command).await;
        assert_eq!(ended.code, Some(0), "{ended:#?}");
        let plan: Value = serde_json::from_str(&ended.stdout).expect("a plan is JSON");
        let pod = Pod::new(&host, "uid-3", &plan, cluster.folder());
        pod.trainer.host.make_read_only(cluster.folder());
        let agent = pod.start_agent(&mut cluster, "uid-3").await;

        let image = [("torchrun", vec![python]), ("/app/train.py", vec!["-c".into(), JOB.into()])];
        let mut command = pod.trainer.command("command", &image);
        // It knows nothing of the store: the agent does.
        command.env_remove("HOLDFAST_STORE");
        let mut trainer = pod.trainer.host.program(&mut cluster, "job-0", command);
        trainer.says("Read-only file system").await;
        trainer.says("Read-only file system").await;
        trainer.says("rank 0 of 1 in default.train True").await;
        trainer.succeeds().await;
        agent.signal(nix::sys::signal::Signal::SIGTERM);
        agent.succeeds().await;
    });
}

/// The agent of a pod, as the manifest has it for a Job that was created in this namespace, and
/// where it listens. Of what a cluster would give it, it has the store's addresses, and a port and
/// a control socket of its own in place of the pod's network and volume.
async fn agent_in(
    cluster: &mut Cluster,
    namespace: &str,
    index: &str,
    uid: &str,
) -> Option<(Process, String)> {
    let (path, secrets) = (manifest(), cluster.folder().join("secrets"));
    let arguments = ["pod", text(&path), index, uid, text(&secrets), namespace];
    let ended = Ended::of(reader(&arguments)?).await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    let plan: Value = serde_json::from_str(&ended.stdout).expect("a plan is JSON");
    let variables = plan["containers"][0]["environment"].as_object().expect("a map");
    let name = format!("{namespace}-{index}");
    let address = format!("127.0.0.1:{}", cluster.port());
    let mut command = binaries::command("holdfast-agent");
    command.args(["serve", "--keeper", "--control"]);
    command.arg(cluster.folder().join(format!("{name}.sock")));
    for (name, value) in variables {
        command.env(name, value.as_str().expect("variables are text"));
    }
    command.env("HOLDFAST_STORE", cluster.list()).env("HOLDFAST_TCPSTORE", &address);
    command.env_remove("HOLDFAST_TOKEN_FILE");
    let mut agent = Process::start(&name, command, &cluster.keep_log(&name));
    agent.says(&format!("on {address}")).await;
    Some((agent, address))
}

/// All their agents have the same host name, as pods of such Jobs do.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_one_name_in_two_namespaces_do_not_meet_and_neither_ends_the_other() {
    let mut cluster = Cluster::start(1).await;
    let mut agents = Vec::new();
    let mut stores = Vec::new();
    for (namespace, index, uid) in
        [("default", "0", "uid-1"), ("research", "0", "uid-2"), ("default", "1", "uid-1")]
    {
        let Some((agent, address)) = agent_in(&mut cluster, namespace, index, uid).await else {
            return;
        };
        agents.push(agent);
        stores.push(TcpStore::connect(&address).await);
    }
    let [one, other, peer] = stores.as_mut_slice() else { unreachable!("there are three") };
    one.set("k", b"default").await;
    assert!(one.check(&["k"]).await);
    assert_eq!(peer.get("k").await, b"default", "the pods of one Job meet");
    assert!(!other.check(&["k"]).await, "it is a key of the other Job");
    other.set("k", b"research").await;
    assert_eq!(other.get("k").await, b"research");
    for store in [one, peer] {
        assert_eq!(store.get("k").await, b"default");
        store.set("written", b"").await;
        assert!(store.check(&["written"]).await, "its run is open");
    }
    for job in ["default.train", "research.train"] {
        let runs = cluster.cli_ok(&["--job", job, "run", "list"]).await;
        assert_eq!(runs.lines().skip(1).count(), 1, "{runs}");
    }
    for agent in &mut agents {
        assert!(agent.stop().await.success(), "{}", agent.said());
    }
}
