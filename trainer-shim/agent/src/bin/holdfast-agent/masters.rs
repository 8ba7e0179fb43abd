//! Ports at which a program may be the master of a store of its own.
//!
//! `TCPStore(host, port, is_master=True)` listens at the port on all addresses, and
//! then connects to it. Where an agent listens at 127.0.0.1 that fails, and PyTorch
//! forgives it at MASTER_PORT alone. But where `[::]` cannot be had, PyTorch takes
//! `0.0.0.0`, and that goes beside an agent that listens at `::1`: the master's own
//! server stays without clients, and its client, which gets `::1`, meets those of all hosts on
//! Holdfast.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use holdfast_agent::ports::Bound;
use tracing::warn;

/// Where `run` listens, given these addresses: the first port on both loopback
/// addresses, the others on that of IPv6. Addresses other than IPv4's loopback
/// stay as they are; so does one port by itself.
pub fn beside_masters(told: &[SocketAddr]) -> Vec<SocketAddr> {
    if !is_for_masters(told) {
        return told.to_vec();
    }
    if let Err(error) = Bound::take(SocketAddr::from((Ipv6Addr::LOCALHOST, 0))) {
        warn!(
            "this host has no IPv6 loopback ({error}): a program that opens a TCPStore at one of \
             the ports after the first with is_master=True finds it in use"
        );
        return told.to_vec();
    }
    expanded(told)
}

fn is_for_masters(told: &[SocketAddr]) -> bool {
    let fits = |address: &SocketAddr| address.ip() == Ipv4Addr::LOCALHOST && address.port() > 0;
    told.len() > 1 && told.iter().all(fits)
}

fn expanded(told: &[SocketAddr]) -> Vec<SocketAddr> {
    let beside = told.iter().map(|address| (Ipv6Addr::LOCALHOST, address.port()).into());
    told.iter().take(1).copied().chain(beside).collect()
}

/// The address that a command gets, where its agent listens here and its first
/// port is this: at that address it also meets the others of the list.
pub fn address_for_command(listens: &[SocketAddr], first: SocketAddr) -> SocketAddr {
    let beside = SocketAddr::from((Ipv6Addr::LOCALHOST, first.port()));
    let is_there = listens.contains(&first) && listens.contains(&beside);
    let has_others = listens.iter().any(|address| address.port() != first.port());
    if is_there && has_others && first.ip() == Ipv4Addr::LOCALHOST { beside } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn ports_behind_the_first_leave_masters_room() {
        let told = addresses(&["127.0.0.1:29500", "127.0.0.1:29501", "127.0.0.1:29502"]);
        assert!(is_for_masters(&told));
        let listens = expanded(&told);
        let expected = ["127.0.0.1:29500", "[::1]:29500", "[::1]:29501", "[::1]:29502"];
        assert_eq!(listens, addresses(&expected));
        assert_eq!(address_for_command(&listens, told[0]), listens[1]);
        // An agent that was there before serves another port first.
        let other = "127.0.0.1:20000".parse().unwrap();
        assert_eq!(address_for_command(&listens, other), other);
    }

    #[test]
    fn what_was_meant_otherwise_stays() {
        for told in [
            &[][..],
            &["127.0.0.1:29500"],
            &["127.0.0.1:29500", "127.0.0.1:0"],
            &["0.0.0.0:29500", "0.0.0.0:29501"],
            &["127.0.0.1:29500", "[::1]:29500"],
            &["[::1]:29500", "[::1]:29501"],
        ] {
            let told = addresses(told);
            assert_eq!(beside_masters(&told), told);
            if let Some(first) = told.first() {
                assert_eq!(address_for_command(&told, *first), *first);
            }
        }
    }
}
