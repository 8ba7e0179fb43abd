//! The network between the hosts of one test.

use std::net::Ipv4Addr;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;
use tokio::runtime::Builder;

use super::host::{self, Host, Plan};
use super::namespaces::Namespaces;

/// Of the test itself; hosts follow.
const FIRST_ADDRESS: [u8; 4] = [10, 77, 0, 1];
const SWITCH: &str = "switch";
/// All hosts are in one /24.
const HOSTS_MAX: usize = 250;
/// Threads of a test on a network.
const THREADS: usize = 4;

/// The meaning of a host's own name on itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// Its address on the network, as in a pod of Kubernetes and on most
    /// clusters.
    Real,
    /// `127.0.1.1`, as Debian installs it: what a program learns from its host
    /// name is of no use to other hosts.
    Loopback,
}

/// A network of its own, with the test on it at 10.77.0.1.
#[derive(Debug)]
pub struct Network {
    namespace: Arc<Namespaces>,
    members: Vec<Member>,
    folder: TempDir,
}

#[derive(Debug)]
struct Member {
    name: String,
    address: Ipv4Addr,
    names: Names,
    hosts_file: PathBuf,
}

impl Network {
    /// Runs a test that needs hosts. What it starts without naming a host runs
    /// on the network, too. Says `SKIPPED` where `tests/prepare hosts` has found
    /// that there can be no network.
    ///
    /// # Panics
    ///
    /// If `tests/prepare hosts` has not run, or a network that should work cannot be made.
    pub fn test(test: impl AsyncFnOnce(&mut Network) + Send) {
        let tested =
            std::thread::scope(|scope| scope.spawn(|| Network::on_this_thread(test)).join());
        tested.unwrap_or_else(|panic| resume_unwind(panic));
    }

    fn on_this_thread(test: impl AsyncFnOnce(&mut Network)) {
        match std::env::var("HOLDFAST_HOSTS").as_deref() {
            Ok("yes") => {}
            Ok("no") => {
                eprintln!("SKIPPED: `tests/prepare hosts` says why there can be no hosts here");
                return;
            }
            _ => panic!("run `tests/prepare hosts` and source target/environment"),
        }
        leave_for_a_new_network();
        let namespace = Namespaces::network_of_this_thread().expect("a thread has a network");
        let namespace = Arc::new(namespace);
        let entered = Arc::clone(&namespace);
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .enable_all()
            .on_thread_start(move || entered.enter())
            .build()
            .expect("a runtime can be made");
        let folder = tempfile::Builder::new().prefix("holdfast-net-").tempdir();
        let folder = folder.expect("the folder for temporary files can be written");
        let mut network = Network { namespace, members: Vec::new(), folder };
        runtime.block_on(test(&mut network));
    }

    /// A new host. The others know its name.
    ///
    /// # Panics
    ///
    /// If it cannot be made, or the name is taken.
    pub fn host(&mut self, name: &str, names: Names) -> Host {
        assert!(self.members.len() < HOSTS_MAX, "a network has at most {HOSTS_MAX} hosts");
        assert!(self.members.iter().all(|other| other.name != name), "{name} is taken");
        let number = u32::try_from(self.members.len() + 1).expect("there are few");
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::from(FIRST_ADDRESS)) + number);
        let hosts_file = self.folder.path().join(format!("{name}.hosts"));
        let member = Member { name: name.to_owned(), address, names, hosts_file };
        self.members.push(member);
        for member in &self.members {
            host::write_names(&member.hosts_file, &self.names_on(member));
        }
        let member = &self.members[self.members.len() - 1];
        Host::make(Plan {
            name,
            address,
            hosts_file: &member.hosts_file,
            runtime_dir: self.folder.path().join(name),
            network: Arc::clone(&self.namespace),
            port: format!("port{number}"),
            switch: SWITCH,
        })
    }

    /// Hosts `node-1`, `node-2`, …
    pub fn hosts<const N: usize>(&mut self, names: Names) -> [Host; N] {
        std::array::from_fn(|n| self.host(&format!("node-{}", n + 1), names))
    }

    /// Drops every packet from the test itself to an address.
    pub fn lose_what_goes_to(&self, address: Ipv4Addr) {
        self.namespace.inside(|| ip(&["route", "add", "blackhole", &format!("{address}/32")]));
    }

    /// The test's packets to this address arrive again.
    pub fn reach_again(&self, address: Ipv4Addr) {
        self.namespace.inside(|| ip(&["route", "del", "blackhole", &format!("{address}/32")]));
    }

    /// The test's own address.
    pub fn own_address() -> Ipv4Addr {
        Ipv4Addr::from(FIRST_ADDRESS)
    }

    fn names_on(&self, own: &Member) -> Vec<String> {
        let mut lines = vec!["127.0.0.1 localhost".to_owned()];
        for member in &self.members {
            let itself = member.name == own.name && own.names == Names::Loopback;
            let address = if itself { Ipv4Addr::new(127, 0, 1, 1) } else { member.address };
            lines.push(format!("{address} {}", member.name));
        }
        lines
    }
}

/// Moves this thread into a new network that has only a switch with the test's own address.
fn leave_for_a_new_network() {
    unshare(CloneFlags::CLONE_NEWNET).expect("a thread can have a network of its own");
    let address = format!("{}/24", Ipv4Addr::from(FIRST_ADDRESS));
    ip(&["link", "set", "lo", "up"]);
    ip(&["link", "add", SWITCH, "type", "bridge"]);
    ip(&["address", "add", &address, "dev", SWITCH]);
    ip(&["link", "set", SWITCH, "up"]);
}

/// Runs `ip` in the network of this thread.
///
/// # Panics
///
/// If it fails.
pub(super) fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("cannot run ip: {error}"));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`ip {}`: {}", arguments.join(" "), words.trim());
}
