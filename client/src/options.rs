//! Options of a client, and how a list of endpoints is written.

use std::path::PathBuf;
use std::time::Duration;

use crate::credentials::{Credentials, Tls};

/// Most endpoints in one list.
pub const ENDPOINTS_MAX: usize = 64;

/// How a client finds its cluster, and its timeouts.
#[derive(Debug, Clone)]
pub struct Options {
    /// Nodes to ask first, `host:port` each. One is enough: the others are
    /// learned from it.
    pub endpoints: Vec<String>,
    /// File with the token that the cluster asks for. Read for each connection:
    /// a token that was replaced there is used from the next one on.
    pub token_file: Option<PathBuf>,
    /// How connections are made with TLS; none: plain.
    pub tls: Option<Tls>,
    /// Bound on one attempt to connect, from the first packet to the node's
    /// [`Hello`](holdfast_api::Hello). Twice that after a failure of the same node, then
    /// four times.
    pub connect_timeout: Duration,
    /// First pause after repeated failures of one node.
    pub backoff_min: Duration,
    /// Longest pause between attempts.
    pub backoff_max: Duration,
    /// Idle time after which the cluster may forget the session; the cluster
    /// clamps it to its limits. While the client exists it keeps the session.
    pub session_ttl: Duration,
    /// Bound on calls that take no deadline of their own: setting up a watch.
    pub call_timeout: Duration,
    /// A connection with open calls that is silent for this long is probed.
    pub probe_after: Duration,
    /// A probe that is not answered within this time ends the connection.
    pub probe_timeout: Duration,
    /// Seed of the client's random choices (jitter, the session's nonce); none
    /// = from the operating system. Two clients of one cluster must never
    /// share a seed: they would share a session.
    pub seed: Option<u64>,
}

impl Options {
    /// The defaults, for these nodes.
    pub fn new(endpoints: Vec<String>) -> Options {
        Options {
            endpoints,
            token_file: None,
            tls: None,
            connect_timeout: Duration::from_secs(1),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_millis(500),
            session_ttl: Duration::from_secs(600),
            call_timeout: Duration::from_secs(30),
            probe_after: Duration::from_millis(400),
            probe_timeout: Duration::from_secs(1),
            seed: None,
        }
    }

    /// What the client shows to the nodes, and which nodes it trusts.
    pub fn credentials(&self) -> Credentials {
        Credentials { token_file: self.token_file.clone(), tls: self.tls.clone() }
    }
}

/// Why a text is not a list of endpoints.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// There is nothing in it.
    #[error("no endpoint given; write at least one as host:port, several separated by commas")]
    Empty,
    /// There are too many.
    #[error(
        "{count} endpoints given, at most {ENDPOINTS_MAX} are of use: a client learns the others"
    )]
    TooMany {
        /// How many endpoints the list has.
        count: usize,
    },
    /// One cannot be understood.
    #[error(
        "{endpoint:?} is not an endpoint ({why}); write host:port, for instance 127.0.0.1:21001"
    )]
    Invalid {
        /// The part of the list.
        endpoint: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Reads a list of endpoints: `host:port`, separated by commas, each with an
/// optional `http://` or `https://` in front, which says nothing: [`Options::tls`] does. IPv6 addresses stand in brackets. Duplicates
/// are dropped.
pub fn parse_endpoints(list: &str) -> Result<Vec<String>, EndpointError> {
    let mut endpoints: Vec<String> = Vec::new();
    for part in list.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let endpoint = parse_endpoint(part)
            .map_err(|why| EndpointError::Invalid { endpoint: part.to_owned(), why })?;
        if !endpoints.contains(&endpoint) {
            endpoints.push(endpoint);
        }
    }
    match endpoints.len() {
        0 => Err(EndpointError::Empty),
        count if count > ENDPOINTS_MAX => Err(EndpointError::TooMany { count }),
        _ => Ok(endpoints),
    }
}

fn parse_endpoint(part: &str) -> Result<String, &'static str> {
    let scheme = ["https://", "http://"].into_iter().find_map(|scheme| part.strip_prefix(scheme));
    let address = scheme.unwrap_or(part);
    let address = address.strip_suffix('/').unwrap_or(address);
    let (host, port) = address.rsplit_once(':').ok_or("the port is missing")?;
    let bracketed = host.starts_with('[') && host.ends_with(']');
    if host.is_empty() || host == "[]" {
        return Err("the host is missing");
    }
    if host.contains(':') && !bracketed {
        return Err("an IPv6 address stands in brackets");
    }
    if host.contains(|c: char| c.is_whitespace() || c.is_control() || "/@?#".contains(c)) {
        return Err("the host has a character that no host has");
    }
    if !port.bytes().all(|b| b.is_ascii_digit()) {
        return Err("the port is not a number");
    }
    match port.parse::<u16>() {
        Ok(0) | Err(_) => Err("the port is not between 1 and 65535"),
        Ok(port) => Ok(format!("{host}:{port}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_may_have_spaces_prefixes_and_duplicates() {
        let parsed =
            parse_endpoints("127.0.0.1:21001, http://node2:21002/,https://[::1]:80,node2:21002,");
        assert_eq!(parsed.unwrap(), ["127.0.0.1:21001", "node2:21002", "[::1]:80"]);
    }

    #[test]
    fn what_cannot_be_an_endpoint_is_named_with_the_reason() {
        for (list, why) in [
            ("node1", "port is missing"),
            (":21001", "host is missing"),
            ("[]:1", "host is missing"),
            ("::1:21001", "brackets"),
            ("node1:port", "not a number"),
            ("node1:+1", "not a number"),
            ("node1:", "between 1 and 65535"),
            ("node1:0", "between 1 and 65535"),
            ("node1:65536", "between 1 and 65535"),
            ("https://node1", "port is missing"),
            ("a b:1", "no host has"),
            ("user@host:1", "no host has"),
            ("good:1,bad", "\"bad\""),
        ] {
            let error = parse_endpoints(list).unwrap_err().to_string();
            assert!(error.contains(why), "{list:?}: {error}");
        }
    }

    #[test]
    fn an_empty_or_endless_list_is_refused() {
        assert_eq!(parse_endpoints(" , ").unwrap_err(), EndpointError::Empty);
        let long: Vec<_> = (1..=65).map(|port| format!("n:{port}")).collect();
        let error = parse_endpoints(&long.join(",")).unwrap_err();
        assert_eq!(error, EndpointError::TooMany { count: 65 });
    }
}
