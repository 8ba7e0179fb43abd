//! Faults alone and in pairs, as the seed has it, until all are healed.

use std::sync::atomic::Ordering;

use holdfast_api::NodeId;
use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};

use crate::host::HostId;
use crate::node::host_of;
use crate::simulation::{Power, Simulation};
use crate::workload::Order;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process of the leader, or of any node, is killed; its disk's cache stays.
    Kill { leader: bool },
    /// A host loses its power, and what was not synced.
    PowerLoss { leader: bool },
    /// All nodes lose their power at one moment.
    PowerLossAll,
    /// A process gets no turns, while its kernel answers.
    Pause { leader: bool },
    /// The leader is paused for less than its leader lease, the longest election timeout.
    ShortPause,
    /// The nodes fall into parts.
    Partition,
    /// The leader and one host of trainers are cut off from all others.
    LeaderAlone,
    /// A node receives from no other, or no other receives from it.
    OneWay { leader: bool },
    /// A firewall answers a follower's connects to the leader with refusals, and
    /// its connections to and from it are reset.
    Rejected,
    /// Connections between two nodes are reset, again and again.
    Resets,
    /// One end of all connections of a host forgets them.
    HalfOpen,
    /// Segments are lost, late and so out of order between connections.
    Lossy,
    /// A link of few bytes.
    SlowLink,
    /// A disk that is slow, or stalls.
    SlowDisk,
    /// The disks of all nodes are slow, as on an overloaded machine.
    SlowDisks,
    /// Writes fail: an error of the medium, or no space.
    FailingDisk,
    /// A bit of what lies on a disk flips, while its node is down.
    BitFlip,
    /// Clocks go faster or slower.
    Drift,
    /// A node is replaced by a new one.
    Replace,
    /// Leadership is handed over by an operator.
    HandOver,
    /// A node gets SIGTERM, as for an upgrade.
    Restart,
    /// A host of trainers is killed.
    KillTrainer,
    /// A host of trainers is paused for longer than its lease and its session last.
    PauseTrainer,
    /// A trainer host cannot reach the leader; nothing else is affected.
    CutTrainer,
    /// Large puts at once.
    Burst,
}

const FAULTS: [Fault; 29] = [
    Fault::Kill { leader: true },
    Fault::Kill { leader: false },
    Fault::PowerLoss { leader: true },
    Fault::PowerLoss { leader: false },
    Fault::PowerLossAll,
    Fault::Pause { leader: true },
    Fault::Pause { leader: false },
    Fault::ShortPause,
    Fault::Partition,
    Fault::LeaderAlone,
    Fault::OneWay { leader: true },
    Fault::OneWay { leader: false },
    Fault::Rejected,
    Fault::Resets,
    Fault::HalfOpen,
    Fault::Lossy,
    Fault::SlowLink,
    Fault::SlowDisk,
    Fault::SlowDisks,
    Fault::FailingDisk,
    Fault::BitFlip,
    Fault::Drift,
    Fault::Replace,
    Fault::HandOver,
    Fault::Restart,
    Fault::KillTrainer,
    Fault::PauseTrainer,
    Fault::CutTrainer,
    Fault::Burst,
];

impl Fault {
    /// Whether the leader keeps its term during this fault alone.
    pub fn spares_leader(self) -> bool {
        matches!(
            self,
            Fault::ShortPause
                | Fault::Rejected
                | Fault::SlowDisks
                | Fault::Burst
                | Fault::CutTrainer
                | Fault::KillTrainer
                | Fault::PauseTrainer
        )
    }

    /// Whether one election follows from this fault, which leaves links and clocks alone. Not so
    /// of a hand-over: it may be late, and one that takes long is asked for again by the client.
    pub fn unseats_leader(self) -> bool {
        matches!(self, Fault::Kill { leader: true })
    }

    /// How long it lasts, at least and at most, in milliseconds.
    fn lasts(self) -> (u64, u64) {
        match self {
            // Time for another to lead, and for a client to change to it.
            Fault::LeaderAlone | Fault::SlowDisks => (1_500, 2_500),
            Fault::ShortPause => (300, 420),
            Fault::PauseTrainer => (1_000, 4_000),
            Fault::Burst | Fault::HandOver => (300, 800),
            Fault::Rejected | Fault::Resets => (500, 1_500),
            _ => (100, 2_500),
        }
    }
}

impl Simulation {
    /// One fault or two at once; now and then one that is to spare the leader, or an election
    /// on slow disks.
    pub fn draw_faults(&mut self) -> Vec<Fault> {
        let (first, drawn, count): (_, fn(Fault) -> bool, _) = match self.random.random_range(0..8)
        {
            0..=2 => (None, |_| true, 2),
            3 | 4 => (None, Fault::spares_leader, 1),
            5 => (Some(Fault::SlowDisks), Fault::unseats_leader, 1),
            _ => (None, |_| true, 1),
        };
        let mut faults: Vec<Fault> = FAULTS.into_iter().filter(|fault| drawn(*fault)).collect();
        faults.shuffle(&mut self.random);
        first.into_iter().chain(faults.into_iter().take(count)).collect()
    }

    /// How long these faults last.
    pub fn draw_time(&mut self, faults: &[Fault]) -> u64 {
        let longest = faults.iter().map(|fault| fault.lasts());
        // A short pause stays short beside anything.
        let (least, most) = longest.min_by_key(|(_, most)| *most).unwrap_or((100, 1_000));
        self.random.random_range(least..=most)
    }

    /// The leader, or any node.
    pub fn victim(&mut self, leader: bool) -> NodeId {
        let members = self.members();
        let anyone = *members.choose(&mut self.random).expect("there are nodes");
        self.leader().map(|(_, node)| node).filter(|_| leader).unwrap_or(anyone)
    }

    fn pair(&mut self) -> (HostId, HostId) {
        let mut members = self.members();
        members.shuffle(&mut self.random);
        (host_of(members[0]), host_of(members[1]))
    }

    /// Notes a fault in the journal, and injects it.
    pub fn harm(&mut self, fault: Fault) {
        self.journal.note(format_args!("FAULT {fault:?}"));
        match fault {
            Fault::Kill { leader } => {
                let node = self.victim(leader);
                self.stop_node(node, Power::Kept);
            }
            Fault::PowerLoss { leader } => {
                let node = self.victim(leader);
                self.stop_node(node, Power::Lost);
            }
            Fault::PowerLossAll => {
                for node in self.members() {
                    self.stop_node(node, Power::Lost);
                }
            }
            Fault::Pause { leader } => {
                let node = self.victim(leader);
                self.pause(host_of(node));
            }
            Fault::ShortPause => {
                let node = self.victim(true);
                self.pause(host_of(node));
            }
            Fault::Partition => {
                let sides = self.hosts().iter().map(|_| self.random.random_bool(0.5)).collect();
                self.partition(sides);
            }
            Fault::LeaderAlone => {
                let alone = [host_of(self.victim(true)), self.a_trainer()];
                let hosts = self.hosts();
                self.partition(hosts.iter().map(|host| alone.contains(host)).collect());
            }
            Fault::OneWay { leader } => {
                let victim = self.victim(leader);
                let hears = self.random.random_bool(0.5);
                for other in self.members().into_iter().filter(|other| *other != victim) {
                    let (victim, other) = (host_of(victim), host_of(other));
                    let (from, to) = if hears { (victim, other) } else { (other, victim) };
                    self.network.change(from, to, |link| link.cut = true);
                }
            }
            Fault::Rejected => {
                let Some((_, leader)) = self.leader() else { return };
                let mut followers = self.members();
                followers.retain(|follower| *follower != leader);
                let follower = *followers.choose(&mut self.random).expect("there are others");
                let (follower, leader) = (host_of(follower), host_of(leader));
                self.network.change(follower, leader, |link| link.rejects = true);
                self.flapping = Some((follower, leader));
            }
            Fault::Resets => self.flapping = Some(self.pair()),
            Fault::HalfOpen => {
                let hosts = self.hosts();
                let host = *hosts.choose(&mut self.random).expect("there are hosts");
                self.network.half_open(host);
            }
            Fault::Lossy => {
                let hosts = self.hosts();
                for (from, to) in pairs(&hosts) {
                    if self.random.random_bool(0.5) {
                        let loss = self.random.random_range(3..30);
                        let most = self.random.random_range(3..120);
                        self.network.change(from, to, |link| {
                            link.loss_one_in = loss;
                            link.delay_ms = (1, most);
                        });
                    }
                }
            }
            Fault::SlowLink => {
                let (one, other) = self.pair();
                let bytes = self.random.random_range(1..50);
                self.network.change(one, other, |link| link.bytes_per_ms = bytes);
                self.network.change(other, one, |link| link.bytes_per_ms = bytes);
            }
            Fault::SlowDisk => {
                let node = self.victim(false);
                let slow = self.random.random_range(20..1_500);
                if let Some(machine) = self.nodes.get(&node) {
                    machine.slow_ms.store(slow, Ordering::Relaxed);
                }
            }
            Fault::SlowDisks => {
                let slow = self.random.random_range(20..=80);
                self.nodes.values().for_each(|node| node.slow_ms.store(slow, Ordering::Relaxed));
            }
            Fault::FailingDisk => {
                let node = self.victim(false);
                let full = self.random.random_bool(0.5);
                if let Some(machine) = self.nodes.get(&node) {
                    machine.disk.fail_writes(Some(match full {
                        true => std::io::ErrorKind::StorageFull,
                        false => std::io::ErrorKind::Other,
                    }));
                }
            }
            Fault::BitFlip => {
                // A majority of whole disks is what the promise rests on.
                let node = self.victim(false);
                if self.flipped.is_none() {
                    self.flipped = Some(node);
                    self.stop_node(node, Power::Kept);
                    let bit = self.random.random();
                    if let Some(machine) = self.nodes.get(&node) {
                        let what = machine.disk.flip(bit);
                        self.journal.note(format_args!("node {node}: a bit flips in {what}"));
                    }
                }
            }
            Fault::Drift => {
                for host in self.hosts() {
                    let ppm = self.random.random_range(-20_000..=20_000);
                    if let Some(host) = self.machines.get_mut(&host) {
                        host.set_drift(ppm);
                    }
                }
            }
            Fault::Replace => {
                let old = self.victim(false);
                self.replace(old);
            }
            Fault::HandOver => self.order(Order::HandOver),
            Fault::Restart => {
                let leader = self.random.random_bool(0.5);
                let node = self.victim(leader);
                if let Some(machine) = self.nodes.get(&node) {
                    machine.slot.tell_to_stop();
                }
            }
            Fault::KillTrainer => {
                let trainer = self.a_trainer();
                self.kill_trainer(trainer);
            }
            Fault::PauseTrainer => {
                let trainer = self.a_trainer();
                self.pause(trainer);
            }
            Fault::CutTrainer => {
                let trainer = self.a_trainer();
                if let Some((_, leader)) = self.leader() {
                    let leader = host_of(leader);
                    self.network.change(trainer, leader, |link| link.cut = true);
                    self.network.change(leader, trainer, |link| link.cut = true);
                }
            }
            Fault::Burst => self.records.lock().burst += 1,
        }
    }

    /// Splits the hosts into two parts, each fully connected: on which side each of them is.
    fn partition(&self, sides: Vec<bool>) {
        let hosts = self.hosts();
        for (at, from) in hosts.iter().enumerate() {
            for (other, to) in hosts.iter().enumerate() {
                if sides[at] != sides[other] {
                    self.network.change(*from, *to, |link| link.cut = true);
                }
            }
        }
    }
}

fn pairs(hosts: &[HostId]) -> Vec<(HostId, HostId)> {
    let with = |from: &HostId| {
        let from = *from;
        hosts.iter().copied().filter(move |to| *to != from).map(move |to| (from, to))
    };
    hosts.iter().flat_map(with).collect()
}
