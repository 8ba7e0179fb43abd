//! Delays, reorders and doubles packets where the kernel has no netem.
//!
//! Each host of the network, and the run itself, gets a TUN device, and routes to all others
//! that lead there instead of to the bridge. This program reads what one sends from its
//! device, holds it back as its [`Wire`] says, and writes it to the device of its receiver.
//! TUN devices have no offloads: packets come with their checksums, and are not larger than
//! the MTU.
//!
//! When a device is closed, the kernel removes it with its routes, and open connections go
//! by the bridge again. So nothing is left if this program is killed, and nothing is recorded
//! for `heal`.

use std::collections::BTreeMap;
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

/// Shapes packets until it ends or is dropped.
#[derive(Debug)]
pub struct Shaper {
    // They own the devices.
    tasks: JoinSet<()>,
    wires: Vec<Arc<Mutex<Wire>>>,
}

impl Shaper {
    /// Sends what these hosts send to each other through this program. Must be called within
    /// a runtime.
    pub fn start(hosts: &[Host], shape: Shape, seed: u64) -> anyhow::Result<Shaper> {
        let made = hosts.iter().map(|host| anyhow::Ok((host.address, host.device()?)));
        let devices = Arc::new(made.collect::<anyhow::Result<Devices>>()?);
        let mut shaper = Shaper { tasks: JoinSet::new(), wires: Vec::new() };
        for (host, n) in hosts.iter().zip(0..) {
            let wire = Arc::new(Mutex::new(Wire::new(shape, seed.wrapping_add(n))));
            shaper.wires.push(wire.clone());
            shaper.tasks.spawn(carry(host.address, devices.clone(), wire));
        }
        // Last: no packet comes to a device that nobody reads.
        hosts.iter().try_for_each(|host| host.route(hosts))?;
        Ok(shaper)
    }

    /// Ends it, as if packets that are under way were lost. Answers what became of the others;
    /// none if one of the hosts sent nothing.
    pub async fn end(mut self) -> Option<Carried> {
        self.tasks.shutdown().await;
        let mut sum = Carried::default();
        for wire in &self.wires {
            let carried = wire.lock().carried();
            if carried.packets == 0 {
                return None;
            }
            sum.add(carried);
        }
        Some(sum)
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

    /// Lets routes to the other hosts lead to its device.
    fn route(&self, hosts: &[Host]) -> anyhow::Result<()> {
        let mut command = Command::new("ip");
        if let Some(namespace) = &self.namespace {
            command.args(["-n", namespace]);
        }
        command.args(["-batch", "-"]);
        programs::output_of(&mut command, &self.commands(hosts), programs::TIME_MAX).map(drop)
    }

    /// The commands for that, in the syntax of `ip -batch`.
    fn commands(&self, hosts: &[Host]) -> String {
        let Host { address, device, .. } = self;
        let others = hosts.iter().map(|host| host.address).filter(|other| other != address);
        let routes = others.map(|to| format!("route add {to}/32 dev {device} src {address}\n"));
        [format!("link set dev {device} up\n")].into_iter().chain(routes).collect()
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
                // The namespace was deleted.
                let Ok(length) = read else { return };
                let packet = &buffer[..length];
                // The kernel itself sends packets of IPv6 to each device.
                if wire::destination(packet).is_some_and(|to| devices.contains_key(&to)) {
                    wire.lock().send(packet, Instant::now());
                }
            }
        }
        let arrived = wire.lock().arrivals(Instant::now());
        for packet in arrived {
            if let Some(to) = wire::destination(&packet).and_then(|to| devices.get(&to)) {
                // A host that cannot take a packet loses it.
                let _ = to.try_send(&packet);
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

    #[test]
    fn the_routes_of_a_host_lead_to_all_others_from_its_address() {
        let host = |n: u8| Host {
            address: Ipv4Addr::new(198, 18, 77, n),
            namespace: None,
            device: format!("tun{n}"),
        };
        let hosts = [host(1), host(2), host(254)];
        assert_eq!(
            hosts[1].commands(&hosts),
            "link set dev tun2 up\n\
             route add 198.18.77.1/32 dev tun2 src 198.18.77.2\n\
             route add 198.18.77.254/32 dev tun2 src 198.18.77.2\n"
        );
    }
}
