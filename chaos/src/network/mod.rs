//! A network of its own for the nodes of a run: a Linux network namespace for
//! each, joined by a bridge in one more, on which rules cut, lose and reset what
//! travels.
//!
//! All namespaces are called `hf-chaos-RUN-N`, 0 being that of the bridge; the
//! run itself has an address on it.
//!
//! Packets are delayed, reordered and doubled by the kernel's netem. Many kernels are
//! built without it: then this program does it, see [`shaper`].

pub mod rules;
pub mod shaper;
pub mod wire;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use holdfast_api::NodeId;

use self::rules::{Queued, Rule};
use self::shaper::{Host, Shaper};
use self::wire::Shape;
use crate::cluster::binaries::without_settings;
use crate::cluster::disks;
use crate::cluster::state::StateFile;
use crate::programs;

/// Where `ip` keeps them.
const NAMESPACES: &str = "/var/run/netns";
/// How the namespaces of all runs begin.
const PREFIX: &str = "hf-chaos-";
/// The host part of the run's own address.
const OWN_HOST: u8 = 254;
/// Hosts of one network.
const HOSTS_MAX: u64 = 200;
/// The table of rules that tests whether rules are possible.
const TABLE: &str = "chaos";

/// The queueing disciplines of faults.
const DISCIPLINES: [&str; 2] = ["netem", "tbf"];

/// An environment variable: this tool's own layer is used also where the kernel has netem.
const NO_NETEM: &str = "HOLDFAST_CHAOS_NO_NETEM";

/// What delays, reorders and doubles packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// The kernel's queueing discipline.
    Netem,
    /// This program, between TUN devices.
    Tun,
}

impl Layer {
    /// Its name, for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Layer::Netem => "tc netem",
            Layer::Tun => "this tool, through TUN devices",
        }
    }

    /// The one that this machine has, tried in a namespace that is deleted afterwards.
    fn find(namespace: &str) -> anyhow::Result<Layer> {
        let Err(no_netem) = try_netem(namespace) else { return Ok(Layer::Netem) };
        match ip(&["-n", namespace, "tuntap", "add", "dev", "probe", "mode", "tun"]) {
            Ok(_) => Ok(Layer::Tun),
            Err(no_tun) => bail!("neither tc netem ({no_netem:#}) nor TUN devices ({no_tun:#})"),
        }
    }
}

/// What shapes packets now, by its layer.
#[derive(Debug)]
pub enum Shaping {
    /// Disciplines at the wires of these hosts.
    Netem(Vec<NodeId>),
    /// This program.
    Tun(Shaper),
}

impl Shaping {
    /// The layer that does it.
    pub fn layer(&self) -> Layer {
        match self {
            Shaping::Netem(_) => Layer::Netem,
            Shaping::Tun(_) => Layer::Tun,
        }
    }
}

/// The network of one run.
#[derive(Debug)]
pub struct Network {
    run: u32,
    /// The first three parts of all addresses.
    prefix: [u8; 3],
    hosts: BTreeMap<NodeId, Ipv4Addr>,
}

impl Network {
    /// Makes the bridge, and a route to it from this machine.
    pub fn make(state: &mut StateFile) -> anyhow::Result<Network> {
        let run = std::process::id();
        let network = Network { run, prefix: free_prefix()?, hosts: BTreeMap::new() };
        let bridge = network.namespace(0);
        state.makes_namespace(&bridge)?;
        ip(&["netns", "add", &bridge])?;
        let inside = |arguments: &[&str]| ip(&[&["-n", bridge.as_str()], arguments].concat());
        inside(&["link", "add", "br0", "type", "bridge"])?;
        inside(&["link", "set", "br0", "up"])?;
        let port = network.own_port();
        ip(&["link", "add", &port, "type", "veth", "peer", "name", "own", "netns", &bridge])?;
        inside(&["link", "set", "own", "master", "br0", "up"])?;
        ip(&["address", "add", &format!("{}/24", network.own_address()), "dev", &port])?;
        ip(&["link", "set", &port, "up"])?;
        Ok(network)
    }

    fn own_port(&self) -> String {
        format!("hfc{}", self.run)
    }

    fn namespace(&self, host: NodeId) -> String {
        format!("{PREFIX}{}-{host}", self.run)
    }

    fn address(&self, host: u8) -> Ipv4Addr {
        let [a, b, c] = self.prefix;
        Ipv4Addr::new(a, b, c, host)
    }

    /// Address of the run's clients.
    pub fn own_address(&self) -> Ipv4Addr {
        self.address(OWN_HOST)
    }

    /// Address of a node.
    pub fn address_of(&self, id: NodeId) -> anyhow::Result<Ipv4Addr> {
        self.hosts.get(&id).copied().with_context(|| format!("node {id} has no host"))
    }

    /// Makes a host for a node; answers its address.
    pub fn host(&mut self, id: NodeId, state: &mut StateFile) -> anyhow::Result<Ipv4Addr> {
        anyhow::ensure!(id <= HOSTS_MAX, "a network has at most {HOSTS_MAX} hosts");
        let address = self.address(u8::try_from(id)?);
        let (bridge, name) = (self.namespace(0), self.namespace(id));
        state.makes_namespace(&name)?;
        ip(&["netns", "add", &name])?;
        self.hosts.insert(id, address);
        let port = format!("p{id}");
        let bridged = |arguments: &[&str]| ip(&[&["-n", bridge.as_str()], arguments].concat());
        bridged(&["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
        bridged(&["link", "set", &port, "master", "br0", "up"])?;
        let inside = |arguments: &[&str]| ip(&[&["-n", name.as_str()], arguments].concat());
        inside(&["link", "set", "lo", "up"])?;
        inside(&["address", "add", &format!("{address}/24"), "dev", "eth0"])?;
        inside(&["link", "set", "eth0", "up"])?;
        Ok(address)
    }

    /// The same command, on the host of a node.
    pub fn inside(&self, id: NodeId, command: &Command) -> Command {
        let mut inside = without_settings(Path::new("ip"));
        inside.args(["netns", "exec", &self.namespace(id)]);
        inside.arg(command.get_program()).args(command.get_args());
        inside
    }

    /// Sets the rules of a fault on the hosts that are named, in the place of those that
    /// it had there. Those of other faults stay.
    pub fn set_rules(&self, fault: &str, rules: &[(NodeId, Rule)]) -> anyhow::Result<()> {
        let mut by_host: BTreeMap<NodeId, Vec<&Rule>> = BTreeMap::new();
        for (host, rule) in rules {
            by_host.entry(*host).or_default().push(rule);
        }
        let table = table(fault);
        for (host, rules) in by_host {
            let text = format!("{}{}", without(&table), rules::text(&table, &rules));
            nft(&self.namespace(host), &text)?;
        }
        Ok(())
    }

    /// Lets the packets of these hosts travel in this way, but not those to a host that is made
    /// later. netem does not choose them by the seed. Must be called within a runtime.
    pub fn shape(&self, ids: &[NodeId], shape: Shape, seed: u64) -> anyhow::Result<Shaping> {
        if try_netem(&self.namespace(0)).is_ok() {
            let words = shape.words();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            for id in ids {
                self.set_netem(*id, &words)?;
            }
            return Ok(Shaping::Netem(ids.to_vec()));
        }
        let own =
            Host { address: self.own_address(), namespace: None, device: self.tun_name(None) };
        let node = |id: &NodeId| {
            let (address, namespace) = (self.address_of(*id)?, Some(self.namespace(*id)));
            anyhow::Ok(Host { address, namespace, device: self.tun_name(Some(*id)) })
        };
        let hosts: Vec<Host> =
            ids.iter().map(node).chain([Ok(own)]).collect::<anyhow::Result<_>>()?;
        Shaper::start(hosts, shape, seed).map(Shaping::Tun)
    }

    /// Name of the TUN device of a node, or of the run itself.
    fn tun_name(&self, id: Option<NodeId>) -> String {
        match id {
            Some(id) => format!("hft{}-{id}", self.run),
            None => format!("hft{}", self.run),
        }
    }

    /// Sets a queueing discipline at the wire of a host: `tc netem`'s words.
    fn set_netem(&self, id: NodeId, words: &[&str]) -> anyhow::Result<()> {
        tc(
            &self.namespace(id),
            &[&["qdisc", "replace", "dev", "eth0", "root", "netem"], words].concat(),
        )
    }

    /// Packets handled by the disciplines of these hosts; none if one is missing or has
    /// handled none.
    pub fn queued(&self, hosts: &[NodeId]) -> anyhow::Result<Option<Queued>> {
        let mut sum = Queued::default();
        for id in hosts {
            let name = self.namespace(*id);
            let shown = ip(&["netns", "exec", &name, "tc", "-s", "qdisc", "show", "dev", "eth0"])?;
            match rules::netem(&shown) {
                Some(one) if one.packets > 0 => {
                    sum.packets += one.packets;
                    sum.requeued += one.requeued;
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(sum))
    }

    /// Takes the rules of a fault away, on all hosts.
    pub fn clear_rules(&self, fault: &str) -> anyhow::Result<()> {
        self.hosts.keys().try_for_each(|id| self.clear_rules_of(*id, fault))
    }

    /// Takes them away on one host.
    pub fn clear_rules_of(&self, id: NodeId, fault: &str) -> anyhow::Result<()> {
        nft(&self.namespace(id), &without(&table(fault)))
    }

    /// Takes all disciplines away.
    pub fn clear_disciplines(&self) -> anyhow::Result<()> {
        for id in self.hosts.keys() {
            let name = self.namespace(*id);
            if tc_has_discipline(&name) {
                tc(&name, &["qdisc", "delete", "dev", "eth0", "root"])?;
            }
        }
        Ok(())
    }

    /// Removes the rules and disciplines of all faults. A [`Shaper`] ends with its fault.
    pub fn clear(&self) -> anyhow::Result<()> {
        for id in self.hosts.keys() {
            nft(&self.namespace(*id), "flush ruleset\n")?;
        }
        self.clear_disciplines()
    }

    /// How many packets the rules of a fault have met, on all hosts.
    pub fn packets_met(&self, fault: &str) -> anyhow::Result<u64> {
        self.hosts.keys().map(|id| self.packets_met_by(*id, fault)).sum()
    }

    /// How many they have met on one host.
    pub fn packets_met_by(&self, id: NodeId, fault: &str) -> anyhow::Result<u64> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(id)]);
        command.args(["nft", "list", "table", "inet", &table(fault)]);
        // A host on which it has no rules has no such table.
        let listed = programs::run(&mut command, "", programs::TIME_MAX)?.stdout;
        Ok(rules::packets(&listed))
    }

    /// Lets a host send at most that much in a second, in the words of `tc`.
    pub fn set_rate(&self, id: NodeId, rate: &str) -> anyhow::Result<()> {
        let words = [&["qdisc", "replace", "dev", "eth0", "root"][..], &bucket(rate)].concat();
        tc(&self.namespace(id), &words)
    }

    /// How many packets had to wait until their wire was free; none if none had to.
    pub fn waited(&self) -> anyhow::Result<Option<u64>> {
        let mut sum = 0;
        for id in self.hosts.keys() {
            let name = self.namespace(*id);
            let shown = ip(&["netns", "exec", &name, "tc", "-s", "qdisc", "show", "dev", "eth0"])?;
            sum += rules::waited(&shown).unwrap_or(0);
        }
        Ok((sum > 0).then_some(sum))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for id in self.hosts.keys().chain([&0]) {
            if let Err(error) = delete(&self.namespace(*id)) {
                eprintln!("{error:#}; `holdfast-chaos heal` tries again");
            }
        }
    }
}

/// Deletes a namespace of a run; answers whether it was there. Its processes must have ended.
pub fn delete(name: &str) -> anyhow::Result<bool> {
    anyhow::ensure!(name.starts_with(PREFIX), "{name} is not a network namespace of a run");
    let listed = ip(&["netns", "list"])?;
    let is_there = listed.lines().any(|line| line.split_whitespace().next() == Some(name));
    if is_there {
        ip(&["netns", "delete", name])?;
    }
    Ok(is_there)
}

/// Whether there is a namespace of this name: `ip` keeps a file for each.
pub fn exists(name: &str) -> bool {
    Path::new(NAMESPACES).join(name).exists()
}

/// Capabilities of a machine.
#[derive(Debug, Clone, Default)]
pub struct Permitted {
    /// Why there can be no network; none if there can.
    pub no_network: Option<String>,
    /// What delays, doubles and reorders packets; none if that cannot be done.
    pub layer: Option<Layer>,
    /// Why that cannot be done.
    pub no_layer: Option<String>,
    /// Why wires cannot be slow.
    pub no_tbf: Option<String>,
    /// Why connections cannot be reset.
    pub no_reset: Option<String>,
    /// Why open connections cannot be distinguished from new ones.
    pub no_tracking: Option<String>,
    /// Why nodes cannot have file systems of their own.
    pub no_disks: Option<String>,
}

impl Permitted {
    /// Tries what this machine permits: networks, and file systems for nodes.
    pub fn find() -> Permitted {
        Permitted { no_disks: disks::forbidden(), ..Permitted::on_network() }
    }

    /// Tries it in a namespace that is deleted again.
    fn on_network() -> Permitted {
        let name = format!("{PREFIX}{}-probe", std::process::id());
        if !nix::unistd::geteuid().is_root() {
            let why = "network namespaces take root: run it with sudo".to_owned();
            return Permitted { no_network: Some(why), ..Permitted::default() };
        }
        // Recorded, so that `heal` finds it if this process is killed.
        let recorded = StateFile::create(None)
            .and_then(|mut state| state.makes_namespace(&name).map(|()| state));
        let state = match recorded {
            Ok(state) => state,
            Err(error) => {
                return Permitted {
                    no_network: Some(format!("{error:#}")),
                    ..Permitted::default()
                };
            }
        };
        let made = ip(&["netns", "add", &name]).and_then(|_| {
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
            let loss = Rule::Lose { percent: 10, from: None };
            nft(&name, &rules::text(TABLE, &[&loss]))
        });
        let permitted = match made {
            Err(error) => {
                let why = format!("no network namespace with ip and nft can be made: {error:#}");
                Permitted { no_network: Some(why), ..Permitted::default() }
            }
            Ok(()) => {
                let replace = ["qdisc", "replace", "dev", "lo", "root"];
                let tbf = [&replace[..], &bucket("1mbit")].concat();
                let layer = Layer::find(&name);
                let lacks = |what: &str, tried: anyhow::Result<()>| {
                    tried.err().map(|error| format!("this machine has no {what}: {error:#}"))
                };
                let rule = |table, rule| nft(&name, &rules::text(table, &[&rule]));
                Permitted {
                    no_disks: None,
                    no_network: None,
                    layer: layer.as_ref().ok().copied(),
                    no_layer: layer.err().map(|error| format!("this machine has {error:#}")),
                    no_tbf: lacks("tc tbf", tc(&name, &tbf)),
                    no_reset: lacks("reject of nft", rule("probe_reset", Rule::Reset)),
                    no_tracking: lacks(
                        "connection tracking of nft",
                        rule("probe_open", Rule::DropOpen),
                    ),
                }
            }
        };
        if let Err(error) = delete(&name) {
            eprintln!("{error:#}; `holdfast-chaos heal` tries again");
        }
        drop(state);
        permitted
    }
}

/// The first /24 of 198.18.0.0/15 from .77 on that this machine does not use.
fn free_prefix() -> anyhow::Result<[u8; 3]> {
    let used = ip(&["-4", "-oneline", "address"])? + &ip(&["-4", "route"])?;
    for third in (77..=255).chain(0..77) {
        if !used.contains(&format!("198.18.{third}.")) {
            return Ok([198, 18, third]);
        }
    }
    bail!("every /24 of 198.18.0.0/16 is in use: run `holdfast-chaos heal`")
}

fn ip(arguments: &[&str]) -> anyhow::Result<String> {
    programs::output(Command::new("ip").args(arguments))
}

fn tc(namespace: &str, arguments: &[&str]) -> anyhow::Result<()> {
    ip(&[&["netns", "exec", namespace, "tc"], arguments].concat()).map(drop)
}

/// Tries netem where nothing travels.
fn try_netem(namespace: &str) -> anyhow::Result<()> {
    anyhow::ensure!(std::env::var_os(NO_NETEM).is_none(), "{NO_NETEM} is set");
    tc(namespace, &["qdisc", "replace", "dev", "lo", "root", "netem", "delay", "1ms"])
}

/// A bucket of tokens for each wire that carries this rate. It holds little more than one
/// packet: two in a row have to wait, also where few are sent.
fn bucket(rate: &str) -> [&str; 7] {
    ["tbf", "rate", rate, "burst", "2kb", "latency", "400ms"]
}

/// The table of the rules of a fault.
fn table(fault: &str) -> String {
    format!("{TABLE}_{}", fault.replace('-', "_"))
}

/// Takes a table away, whether it is there or not.
fn without(table: &str) -> String {
    format!("table inet {table}\ndelete table inet {table}\n")
}

fn tc_has_discipline(namespace: &str) -> bool {
    ip(&["netns", "exec", namespace, "tc", "qdisc", "show", "dev", "eth0"])
        .is_ok_and(|shown| DISCIPLINES.iter().any(|it| shown.contains(it)))
}

fn nft(namespace: &str, rules: &str) -> anyhow::Result<()> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, "nft", "-f", "-"]);
    let ended = programs::run(&mut command, rules, programs::TIME_MAX)?;
    let first = ended.stderr.lines().next().unwrap_or_default();
    anyhow::ensure!(ended.status.success(), "nft: {first}");
    Ok(())
}
