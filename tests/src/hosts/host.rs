//! One host.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;

use super::namespaces::Namespaces;
use super::network::ip;
use crate::cluster::Cluster;
use crate::process::Process;
use crate::python::Script;

/// The host's first process. It takes what was plugged in as its network, and
/// ends when the test's end of the pipe is closed; bash waits for orphans.
const FIRST: &str = r#"set -e
echo "$1" > /proc/sys/kernel/hostname
mount --bind "$2" /etc/hosts
ip link set lo up
echo made
read -r plugged
ip address add "$3/24" dev eth0
ip link set eth0 up
echo ready
while read -r line; do :; done"#;
/// The same for a container, which has the network, the name and the names of
/// its host. Its `/run` is empty; what to do with a source and a path follow, by
/// three.
const FIRST_OF_CONTAINER: &str = r#"set -e
mount -t tmpfs tmpfs /run
while [ $# -gt 0 ]; do
  mkdir -p "$3"
  case "$1" in
    empty) mount -t tmpfs tmpfs "$3" ;;
    *) mount --bind "$2" "$3"; mount -o "remount,bind,$1" "$3" ;;
  esac
  shift 3
done
echo ready
while read -r line; do :; done"#;

/// The content of a container's path.
#[derive(Debug, Clone, Copy)]
pub enum Mount<'a> {
    /// An empty folder of its own.
    Empty,
    /// This folder, which it cannot change.
    ReadOnly(&'a Path),
    /// This folder, which it can change.
    Shared(&'a Path),
}

/// A host of a [`super::Network`]. It ends, with all its processes, when the last copy of
/// this value and of its containers' is dropped.
#[derive(Debug, Clone)]
pub struct Host(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    name: String,
    address: Ipv4Addr,
    /// Like `/run/user/UID`: the machine's would be one for all hosts.
    runtime_dir: PathBuf,
    first: Mutex<First>,
    namespaces: Namespaces,
    /// The network's end of its wire; none for a container.
    port: Option<(Arc<Namespaces>, String)>,
    /// The host of this container.
    _host: Option<Host>,
}

/// Settings of a new host.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub name: &'a str,
    pub address: Ipv4Addr,
    pub hosts_file: &'a Path,
    pub runtime_dir: PathBuf,
    pub network: Arc<Namespaces>,
    /// The interface at the network's end of the wire.
    pub port: String,
    pub switch: &'a str,
}

impl Host {
    pub(super) fn make(plan: Plan<'_>) -> Host {
        let arguments = ["--net", "--uts", "--mount", "--pid", "--mount-proc", "--kill-child"];
        let mut first = Command::new("unshare");
        first.args(arguments).args(["bash", "-c", FIRST, "first", plan.name]);
        first.arg(plan.hosts_file).arg(plan.address.to_string());
        let mut first = First::start(first);
        first.says("made");
        let (port, pid) = (plan.port.as_str(), first.child.id().to_string());
        ip(&["link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", &pid]);
        ip(&["link", "set", port, "master", plan.switch, "up"]);
        first.tell("plugged");
        first.says("ready");
        Host::new(
            plan.name,
            plan.address,
            plan.runtime_dir,
            first,
            Some((plan.network, plan.port)),
            None,
        )
    }

    fn new(
        name: &str,
        address: Ipv4Addr,
        runtime_dir: PathBuf,
        first: First,
        port: Option<(Arc<Namespaces>, String)>,
        host: Option<Host>,
    ) -> Host {
        std::fs::create_dir(&runtime_dir).expect("each host has a folder of its own");
        let namespaces = Namespaces::of(first.child.id()).expect("a host has namespaces");
        let first = Mutex::new(first);
        let name = name.to_owned();
        Host(Arc::new(Parts { name, address, runtime_dir, first, namespaces, port, _host: host }))
    }

    /// A container of a pod: the network of this host, and processes of its
    /// own, which neither this host nor other containers see in `/proc`. It
    /// sees these folders at these paths.
    ///
    /// # Panics
    ///
    /// If it cannot be made, or a path is neither in `/run`, which every
    /// container has for itself, nor `/dev/shm`.
    pub fn container(&self, name: &str, mounts: &[(&str, Mount<'_>)]) -> Host {
        let mut first = Command::new("unshare");
        first.args(["--mount", "--pid", "--mount-proc", "--kill-child"]);
        first.args(["bash", "-c", FIRST_OF_CONTAINER, "first"]);
        for (path, mount) in mounts {
            let own = path.starts_with("/run/") || *path == "/dev/shm";
            assert!(own, "{path} would be made on the machine");
            let (how, source) = match mount {
                Mount::Empty => ("empty", Path::new("")),
                Mount::ReadOnly(source) => ("ro", *source),
                Mount::Shared(source) => ("rw", *source),
            };
            first.arg(how).arg(source).arg(path);
        }
        let mut first = self.0.namespaces.inside(|| First::start(first));
        first.says("ready");
        let runtime_dir = self.0.runtime_dir.join(name);
        Host::new(name, self.0.address, runtime_dir, first, None, Some(self.clone()))
    }

    /// From here on nothing can be written in this container, neither in its root nor in `/tmp`,
    /// but in its own mounts, and in `logs`: program output is written on this side of it.
    ///
    /// # Panics
    ///
    /// If the system does not do that.
    pub fn make_read_only(&self, logs: &Path) {
        let script = r#"set -e
mount --bind "$1" "$1"
mount --rbind /tmp /tmp
mount -o remount,bind,ro /tmp
mount -o remount,bind,ro /
for place in /tmp /; do
  if touch "$place/written" 2> /dev/null; then
    echo "$place can still be written:" >&2
    cat /proc/self/mountinfo >&2
    exit 1
  fi
done"#;
        let mut command = Command::new("bash");
        command.args(["-c", script, "bash"]).arg(logs);
        let done = self.inside(|| command.status());
        assert!(done.is_ok_and(|status| status.success()), "a container is not made read-only");
    }

    /// Its name, which is its host name unless it is a container.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its address on the network.
    pub fn address(&self) -> Ipv4Addr {
        self.0.address
    }

    /// Runs something on a thread of this host: processes that it starts run
    /// there.
    pub fn inside<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        self.0.namespaces.inside(run)
    }

    /// Starts a process on this host; see [`Process::start`].
    pub fn process(&self, name: &str, mut command: Command, log: &Path) -> Process {
        self.settle(&mut command);
        self.inside(|| Process::start(name, command, log))
    }

    /// Starts a program on this host; see [`Script::start_command`].
    pub fn program(&self, cluster: &mut Cluster, name: &str, mut command: Command) -> Script {
        self.settle(&mut command);
        self.inside(|| Script::start_command(cluster, name, command))
    }

    fn settle(&self, command: &mut Command) {
        // Control sockets are files, which all hosts of one machine would share.
        command.env("HOLDFAST_RUNTIME_DIR", self.0.runtime_dir.join("agents"));
        command.env_remove("HOSTNAME");
    }

    /// Takes its wire out: packets are lost, connections stay open.
    pub fn cut_off(&self) {
        self.wire("down");
    }

    /// Plugs the wire in again.
    pub fn plug_in(&self) {
        self.wire("up");
    }

    /// Drops every packet from this host to an address, answers to connects included.
    pub fn lose_what_goes_to(&self, address: Ipv4Addr) {
        self.inside(|| ip(&["route", "add", "blackhole", &format!("{address}/32")]));
    }

    /// Packets to this address arrive again.
    pub fn reach_again(&self, address: Ipv4Addr) {
        self.inside(|| ip(&["route", "del", "blackhole", &format!("{address}/32")]));
    }

    fn wire(&self, state: &str) {
        let (network, port) = self.0.port.as_ref().expect("a container has no wire of its own");
        network.inside(|| ip(&["link", "set", port, state]));
    }

    /// Ends all of its processes at once, without notice.
    pub fn power_off(&self) {
        self.0.first.lock().end();
    }
}

/// The first process of a host, by the one that made its namespaces.
#[derive(Debug)]
struct First {
    child: Child,
    words: BufReader<std::process::ChildStdout>,
}

impl First {
    fn start(mut command: Command) -> First {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn();
        let mut child = child.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let words = BufReader::new(child.stdout.take().expect("it was asked for"));
        First { child, words }
    }

    fn says(&mut self, word: &str) {
        let mut line = String::new();
        let read = self.words.read_line(&mut line);
        assert!(
            read.is_ok() && line.trim_end() == word,
            "a host was not made ({word:?} is missing, {line:?} came): its words are above"
        );
    }

    fn tell(&mut self, word: &str) {
        let stdin = self.child.stdin.as_mut().expect("it was asked for");
        writeln!(stdin, "{word}").expect("the host listens");
    }

    /// Its child, which is first in the host, gets SIGKILL from the system.
    fn end(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for First {
    fn drop(&mut self) {
        self.end();
    }
}

/// A file of names, as `/etc/hosts`.
pub(super) fn write_names(path: &Path, lines: &[String]) {
    // Written in place: it is mounted.
    let file = File::options().create(true).truncate(true).write(true).open(path);
    let mut file = file.expect("the folder of the network can be written");
    file.write_all((lines.join("\n") + "\n").as_bytes()).expect("a file can be written");
}
