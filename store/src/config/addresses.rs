//! Addresses in settings: checked, not looked up.

use std::collections::BTreeMap;
use std::net::IpAddr;

use holdfast_api::NodeId;

use super::{ConfigError, wrong};
use crate::formation::Plan;
use crate::http::host::EVERY_HOST;

/// Checks `host:port`; the name is looked up only when it is used.
pub(crate) fn check_address(what: &'static str, address: &str) -> Result<(), ConfigError> {
    let (host, port) =
        address.rsplit_once(':').ok_or_else(|| wrong(what, address, "it must read HOST:PORT"))?;
    if host.is_empty() {
        return Err(wrong(what, address, "the host is missing (0.0.0.0 for all interfaces)"));
    }
    match port.parse::<u16>() {
        Ok(_) => Ok(()),
        Err(_) => Err(wrong(what, address, "the port must be a number up to 65535")),
    }
}

/// Where the others reach this node; none if it was not set and is not needed.
pub(super) fn advertised(
    node: NodeId,
    listen: &str,
    advertise: Option<String>,
    plan: &Option<Plan>,
) -> Result<Option<String>, ConfigError> {
    if let Some(advertise) = &advertise {
        check_reachable("--advertise", advertise)?;
    }
    match plan {
        Some(Plan::Found { initial }) => {
            let listed = initial[&node].clone();
            match advertise {
                Some(advertised) if advertised != listed => {
                    let mut corrected = initial.clone();
                    corrected.insert(node, advertised.clone());
                    let corrected = crate::formation::written(&corrected);
                    Err(ConfigError::Misplaced { node, listed, advertised, corrected })
                }
                _ => Ok(Some(listed)),
            }
        }
        Some(Plan::Join { .. }) if advertise.is_none() => {
            check_reachable("--listen", listen)?;
            Ok(Some(listen.to_owned()))
        }
        Some(Plan::Join { .. }) | None => Ok(advertise),
    }
}

/// Refuses an address that can be listened on but not connected to.
fn check_reachable(what: &'static str, address: &str) -> Result<(), ConfigError> {
    check_address(what, address)?;
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let host = host.trim_matches(['[', ']']);
    if port.parse() == Ok(0u16) || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified()) {
        let why = "other nodes cannot connect to it; add --advertise HOST:PORT with this host's name or address";
        return Err(wrong(what, address, why));
    }
    Ok(())
}

/// A name of a host, or `*`.
pub(super) fn host_name(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if text == EVERY_HOST || text.bytes().all(allowed) {
        return Ok(text.to_owned());
    }
    Err("it must be the name of a host, without a port, or `*`".to_owned())
}

/// Whether only this machine reaches the address. A name could resolve to any
/// host.
pub(crate) fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let ip = host.parse::<IpAddr>().map(|ip| ip.to_canonical());
    host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback())
}

pub(super) fn parse_addresses(what: &'static str, list: &str) -> Result<Vec<String>, ConfigError> {
    let addresses: Vec<String> =
        list.split(',').map(str::trim).filter(|a| !a.is_empty()).map(str::to_owned).collect();
    for address in &addresses {
        check_address(what, address)?;
    }
    if addresses.is_empty() {
        return Err(wrong(what, list, "it names no node"));
    }
    Ok(addresses)
}

/// Parses `1=host:port,2=host:port`; each id and each address may be there once.
pub(crate) fn parse_nodes(
    what: &'static str,
    list: &str,
) -> Result<BTreeMap<NodeId, String>, ConfigError> {
    let mut nodes = BTreeMap::new();
    for part in list.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (id, address) =
            part.split_once('=').ok_or_else(|| wrong(what, part, "it must read ID=HOST:PORT"))?;
        let id: NodeId = id
            .trim()
            .parse()
            .ok()
            .filter(|id| *id > 0)
            .ok_or_else(|| wrong(what, part, "the id must be a number from 1"))?;
        let address = address.trim().to_owned();
        check_address(what, &address)?;
        if nodes.values().any(|other| *other == address) {
            return Err(wrong(what, list, &format!("{address} appears twice")));
        }
        if nodes.insert(id, address).is_some() {
            return Err(wrong(what, list, &format!("node {id} appears twice")));
        }
    }
    if nodes.is_empty() {
        return Err(wrong(what, list, "it names no node"));
    }
    Ok(nodes)
}
