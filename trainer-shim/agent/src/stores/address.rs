//! Which store an address means that a program names.

use std::net::{IpAddr, SocketAddr};

use crate::namespace::Namespace;

/// Longest host that is taken: a DNS name has at most 253 bytes.
pub const HOST_BYTES_MAX: usize = 255;
/// Most bytes of a host in a namespace's name.
const SHOWN_BYTES_MAX: usize = 64;
/// How far above the port of its ranks a program's further stores lie.
const BEHIND_MAX: u16 = 16;

/// Names that mean the host itself, beside loopback addresses.
const LOCAL_NAMES: [&str; 4] = ["", "localhost", "localhost.localdomain", "ip6-localhost"];

/// Meaning of an address on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meaning {
    /// The agent listens there.
    Agent(SocketAddr),
    /// A store of the whole run, or of this host: the same text is the same store.
    Store(String),
}

/// Meaning of `host` and `port` where the agent serves these namespaces. `local`
/// distinguishes this host's network from all others.
pub fn meaning(host: &str, port: u16, served: &[(SocketAddr, Namespace)], local: &str) -> Meaning {
    let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
    let is_local = is_local(&host);
    let ip: Option<IpAddr> = host.parse().ok().map(|ip: IpAddr| ip.to_canonical());
    let is_ours = |at: &SocketAddr| {
        let here = at.ip().is_loopback() || at.ip().is_unspecified();
        (is_local && here) || ip == Some(at.ip())
    };
    let ours = || served.iter().filter(|(at, _)| is_ours(at));
    if let Some((at, _)) = ours().find(|(at, _)| at.port() == port) {
        return Meaning::Agent(SocketAddr::new(reached_at(at.ip()), port));
    }
    // Ports that a program counts on from its MASTER_PORT, which may be another
    // one on each host.
    let ranks = ours().filter(|(_, namespace)| !namespace.is_of_store());
    let behind = ranks.filter_map(|(at, namespace)| {
        let behind = port.checked_sub(at.port()).filter(|behind| *behind <= BEHIND_MAX)?;
        Some((behind, namespace))
    });
    if let Some((behind, namespace)) = behind.min_by_key(|(behind, _)| *behind) {
        let name = namespace.name().map_or("", |name| name.as_str());
        return Meaning::Store(format!("MASTER_PORT+{behind}@{name}"));
    }
    Meaning::Store(own(&host, port, local))
}

/// The store at a port outside those of the ranks.
pub fn own(host: &str, port: u16, local: &str) -> String {
    let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
    if is_local(&host) { format!("localhost:{port}@{local}") } else { format!("{host}:{port}") }
}

/// Beginning of the names of a store's namespaces.
pub fn readable(host: &str, port: u16) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let host: String = host.chars().take(SHOWN_BYTES_MAX).map(plain).collect();
    let host = host.trim_start_matches(['.', '-']);
    format!("{}.{port}", if host.is_empty() { "localhost" } else { host })
}

fn is_local(host: &str) -> bool {
    let ip = host.parse().map(|ip: IpAddr| ip.to_canonical());
    LOCAL_NAMES.contains(&host) || ip.is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
}

/// A listener at any address is reached at loopback.
fn reached_at(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) if v4.is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// Distinguishes this host's loopback from that of all others: the kernel's
/// start, and the network namespace.
pub fn local_network() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}/{}/{}", host.trim(), boot.trim(), network.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::Side;

    fn served() -> Vec<(SocketAddr, Namespace)> {
        let at = |text: &str| text.parse().unwrap();
        vec![
            (at("127.0.0.1:29500"), Namespace::first()),
            (at("127.0.0.1:29504"), Namespace::named("group-7".parse().unwrap())),
            (at("127.0.0.1:25000"), Namespace::of_store("x.1.1".parse().unwrap(), Side::Others)),
        ]
    }

    #[test]
    fn the_agents_own_ports_are_known_by_all_names_of_this_host() {
        for host in ["localhost", "127.0.0.1", "LOCALHOST", "::1", "[::1]", "0.0.0.0", ""] {
            for port in [29500, 29504, 25000] {
                let at = SocketAddr::from(([127, 0, 0, 1], port));
                assert_eq!(meaning(host, port, &served(), "here"), Meaning::Agent(at), "{host}");
            }
        }
        let Meaning::Store(other) = meaning("10.0.0.1", 29500, &served(), "here") else {
            panic!("another host's port is not the agent's")
        };
        assert_eq!(other, "10.0.0.1:29500");
        let any = [("0.0.0.0:29500".parse().unwrap(), Namespace::first())];
        let at = "127.0.0.1:29500".parse().unwrap();
        assert_eq!(meaning("localhost", 29500, &any, "here"), Meaning::Agent(at));
    }

    #[test]
    fn stores_of_hosts_and_of_the_run_are_told_apart() {
        for (host, port, label) in [
            ("localhost", 12355, "localhost:12355@here"),
            ("127.0.0.1", 12355, "localhost:12355@here"),
            ("Node0", 12355, "node0:12355"),
            ("10.0.0.1", 12355, "10.0.0.1:12355"),
            ("fd00::1", 12355, "fd00::1:12355"),
            // After the ranks' port: the same on hosts where that is another one.
            ("127.0.0.1", 29501, "MASTER_PORT+1@"),
            ("localhost", 29506, "MASTER_PORT+2@group-7"),
            ("localhost", 29521, "localhost:29521@here"),
            ("localhost", 25001, "localhost:25001@here"),
        ] {
            let found = meaning(host, port, &served(), "here");
            assert_eq!(found, Meaning::Store(label.to_owned()), "{host}:{port}");
        }
        assert_eq!(own("::1", 7, "here"), "localhost:7@here");
    }

    #[test]
    fn whatever_a_host_is_called_its_namespace_has_a_name() {
        let long = "x".repeat(300);
        for host in ["node0.cluster", "", "-..", "\u{1b}[2J", "ä/b c", "fd00::1", &long] {
            let name = format!("{}.{}-{:08x}", readable(host, u16::MAX), i64::MAX, u32::MAX);
            assert!(name.parse::<holdfast_api::Name>().is_ok(), "{name}");
        }
        assert_eq!(readable("node0.cluster", 7), "node0.cluster.7");
    }
}
