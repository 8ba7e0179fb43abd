//! Delays, reorders and doubles packets where the kernel has no netem.
//!
//! Each host of the network, and the run itself, gets a TUN device, and routes to all others
//! that lead there instead of to the bridge. This program reads what one sends from its
//! device, holds it back as its [`Wire`] says, and writes it to the device of its receiver.
//! TUN devices have no offloads: packets come with their checksums, and are not larger than
//! the MTU.
//!
//! All devices are up before the first route leads to one, and all routes are deleted before the
//! first device is closed: no packet is lost on the way in or out, and open connections go by
//! the bridge again. The kernel removes the routes of a device that is closed, too. So nothing is
//! left if this program is killed, and nothing is recorded for `heal`.

use std::collections::BTreeMap;
use std::fmt;
use std::future;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{self, Instant};
use tokio_tun::Tun;

use super::ip;
use super::wire::{self, Carried, Shape, Wire};
use crate::programs;

/// Longest packet of IPv4.
const PACKET_LENGTH_MAX: usize = 65_535;

/// The devices, by the addresses of their hosts.
type Devices = BTreeMap<Ipv4Addr, Tun>;

/// A host whose packets are shaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its address.
    pub address: Ipv4Addr,
    /// The network namespace that it is; none if it is this machine's own.
    pub namespace: Option<String>,
    /// Name of its device. It is made outside the namespace: this machine has none of the name.
    pub device: String,
}

/// The wires, by the addresses of their senders.
type Wires = BTreeMap<Ipv4Addr, Arc<Mutex<Wire>>>;

/// Shapes packets until it ends or is dropped.
pub struct Shaper {
    hosts: Vec<Host>,
    shape: Shape,
    devices: Arc<Devices>,
    tasks: JoinSet<()>,
    wires: Wires,
}

impl Shaper {
    /// Sends what these hosts send to each other through this program. Must be called within
    /// a runtime.
    pub fn start(hosts: Vec<Host>, shape: Shape, seed: u64) -> anyhow::Result<Shaper> {
        let made = hosts.iter().map(|host| anyhow::Ok((host.address, host.device()?)));
        let devices = Arc::new(made.collect::<anyhow::Result<Devices>>()?);
        let (tasks, wires) = (JoinSet::new(), Wires::new());
        let mut shaper = Shaper { hosts, shape, devices, tasks, wires };
        for (host, n) in shaper.hosts.iter().zip(0..) {
            let wire = Arc::new(Mutex::new(Wire::new(shape, seed.wrapping_add(n))));
            shaper.wires.insert(host.address, wire.clone());
            shaper.tasks.spawn(carry(host.address, shaper.devices.clone(), wire));
        }
        let hosts = &shaper.hosts;
        hosts.iter().try_for_each(Host::up)?;
        hosts.iter().try_for_each(|host| host.batch(&host.routes("add", hosts)))?;
        Ok(shaper)
    }

    /// Ends it once the packets that are under way have arrived. Answers what became of all, see
    /// [`sum`].
    pub async fn end(
        mut self,
        is_there: impl Fn(Ipv4Addr) -> bool,
    ) -> anyhow::Result<Option<Carried>> {
        let hosts = self.hosts;
        let left: Vec<Host> = hosts.iter().filter(|host| is_there(host.address)).cloned().collect();
        let unrouted = apart(move || {
            let deleted = left.iter().map(|host| host.batch(&host.routes("delete", &hosts)));
            // All of them are deleted, also if one cannot be.
            deleted.collect::<Vec<_>>().into_iter().collect::<anyhow::Result<()>>()
        })
        .await;
        time::sleep(self.shape.delay + self.shape.jitter).await;
        self.tasks.shutdown().await;
        let devices = self.devices;
        // The kernel takes its time.
        apart(move || drop(devices)).await?;
        unrouted??;
        Ok(sum(&self.wires, is_there))
    }
}

/// What became of the packets on all wires; none if one of the hosts that are there sent nothing,
/// or did not get a packet.
fn sum(wires: &Wires, is_there: impl Fn(Ipv4Addr) -> bool) -> Option<Carried> {
    let mut sum = Carried::default();
    for (from, wire) in wires {
        let wire = wire.lock();
        let carried = wire.carried();
        let is_silent = carried.packets == 0 && is_there(*from);
        if is_silent || wire.count_lost(&is_there) > 0 {
            return None;
        }
        sum.add(carried);
    }
    Some(sum)
}

/// Does what blocks on a thread of its own.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<T> {
    let mut tasks = JoinSet::new();
    tasks.spawn_blocking(work);
    tasks.join_next().await.context("the task was started")?.context("a task that blocks")
}

impl fmt::Debug for Shaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A device shows nothing of itself.
        let Shaper { hosts, shape, wires, .. } = self;
        let mut shown = f.debug_struct("Shaper");
        shown.field("hosts", hosts).field("shape", shape).field("wires", wires);
        shown.finish_non_exhaustive()
    }
}

impl Host {
    /// Makes its device, which is down.
    fn device(&self) -> anyhow::Result<Tun> {
        let device = &self.device;
        let made = Tun::builder().name(device).close_on_exec().build();
        let made = made.map_err(|error| anyhow!("cannot make TUN device {device}: {error}"))?;
        let tun = made.into_iter().next().context("no TUN device was made")?;
        if let Some(namespace) = &self.namespace {
            ip(&["link", "set", "dev", device, "netns", namespace])?;
        }
        Ok(tun)
    }

    fn up(&self) -> anyhow::Result<()> {
        self.batch(&format!("link set dev {} up\n", self.device))
    }

    /// Runs commands of `ip` where its device is.
    fn batch(&self, commands: &str) -> anyhow::Result<()> {
        let mut command = Command::new("ip");
        if let Some(namespace) = &self.namespace {
            command.args(["-n", namespace]);
        }
        command.args(["-batch", "-"]);
        programs::output_of(&mut command, commands, programs::TIME_MAX).map(drop)
    }

    /// Commands that add or delete the routes to the other hosts that lead to its device.
    fn routes(&self, verb: &str, hosts: &[Host]) -> String {
        let Host { address, device, .. } = self;
        let others = hosts.iter().map(|host| host.address).filter(|other| other != address);
        others.map(|to| format!("route {verb} {to}/32 dev {device} src {address}\n")).collect()
    }
}

/// Carries what one host sends, until its device is gone.
async fn carry(from: Ipv4Addr, devices: Arc<Devices>, wire: Arc<Mutex<Wire>>) {
    let Some(own) = devices.get(&from) else { return };
    let mut buffer = vec![0; PACKET_LENGTH_MAX];
    loop {
        let (next, has_room) = {
            let wire = wire.lock();
            (wire.next_arrival(), wire.has_room())
        };
        tokio::select! {
            biased;
            () = until(next) => {}
            // While the wire has no room the packets wait in the device, which drops some.
            read = own.recv(&mut buffer), if has_room => {
                let Ok(length) = read else {
                    // The namespace was deleted: what this host sends and gets is lost.
                    return wire.lock().lost(from);
                };
                let packet = &buffer[..length];
                // The kernel itself sends packets of IPv6 to each device.
                if let Some(to) = wire::destination(packet).filter(|to| devices.contains_key(to)) {
                    wire.lock().send(to, packet, Instant::now());
                }
            }
        }
        let arrived = wire.lock().arrivals(Instant::now());
        for packet in arrived {
            let sent = devices.get(&packet.to).map(|to| to.try_send(&packet.bytes));
            match sent {
                Some(Ok(_)) => wire.lock().arrived(&packet, Instant::now()),
                // A host that cannot take a packet loses it.
                _ => wire.lock().lost(packet.to),
            }
        }
    }
}

/// Waits until then; for ever if there is no time.
async fn until(then: Option<Instant>) {
    match then {
        Some(then) => time::sleep_until(then).await,
        None => future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u8) -> Host {
        let address = Ipv4Addr::new(198, 18, 77, n);
        Host { address, namespace: None, device: format!("tun{n}") }
    }

    #[test]
    fn the_routes_of_a_host_lead_to_all_others_from_its_address() {
        let hosts = [host(1), host(2), host(254)];
        assert_eq!(
            hosts[1].routes("add", &hosts),
            "route add 198.18.77.1/32 dev tun2 src 198.18.77.2\n\
             route add 198.18.77.254/32 dev tun2 src 198.18.77.2\n"
        );
        assert_eq!(
            hosts[0].routes("delete", &hosts[..2]),
            "route delete 198.18.77.2/32 dev tun1 src 198.18.77.1\n"
        );
    }

    #[test]
    fn silence_and_losses_void_the_evidence_unless_the_host_has_gone() {
        let [one, two, gone] = [1, 2, 3].map(|n| host(n).address);
        let is_there = |address: Ipv4Addr| address != gone;
        let wires: Wires = [one, two, gone]
            .map(|from| (from, Arc::new(Mutex::new(Wire::new(Shape::default(), 1)))))
            .into();
        let send = |from: Ipv4Addr, to: Ipv4Addr| {
            wires[&from].lock().send(to, b"packet", Instant::now());
        };
        send(one, two);
        assert_eq!(sum(&wires, is_there), None);
        send(two, one);
        wires[&one].lock().lost(gone);
        assert_eq!(sum(&wires, is_there).unwrap().packets, 2);
        assert_eq!(sum(&wires, |_| true), None);
        wires[&one].lock().lost(two);
        assert_eq!(sum(&wires, is_there), None);
    }
}
