//! The name by which a request calls this node.
//!
//! Without tokens, a page in a browser could reach a node through a name of its
//! own that resolves to this node (DNS rebinding). So names that are not this
//! cluster's are refused; addresses cannot be forged in this way.

use std::net::IpAddr;

use axum::extract::Request;
use holdfast_api::{Code, Problem, stream};
use http::{HeaderValue, header};

use super::App;
use super::peers;

/// What a stream, or a channel between nodes, is upgraded to.
const OURS: [&str; 2] = [stream::UPGRADE, peers::UPGRADE];

/// What allows every name.
pub(crate) const EVERY_HOST: &str = "*";

/// Refuses a request for a host name that is not this node's.
pub(crate) fn check(app: &App, request: &Request) -> Result<(), Problem> {
    // No page can request these upgrades: it is an agent, a client or a node.
    let asked = request.headers().get(header::UPGRADE).map(HeaderValue::as_bytes);
    if asked.is_some_and(|asked| OURS.iter().any(|ours| ours.as_bytes() == asked)) {
        return Ok(());
    }
    let headers = request.headers().get_all(header::HOST);
    let named = headers.iter().map(|value| value.to_str().unwrap_or("?"));
    let mut named = named.chain(request.uri().authority().map(|whole| whole.as_str()));
    named.try_for_each(|named| check_one(app, host_of(named)))
}

fn check_one(app: &App, host: &str) -> Result<(), Problem> {
    if is_local(host) {
        return Ok(());
    }
    let allowed = app.inner.allow_host.iter().map(String::as_str);
    let members = app.node().map(|node| node.view().nodes).unwrap_or_default();
    let machine = this_machine();
    let own = [app.inner.advertise.as_deref(), machine.as_deref()].into_iter().flatten();
    let addresses = app.inner.initial.values().chain(members.values()).map(String::as_str);
    let mut names = allowed.clone().chain(own).chain(addresses).map(host_of);
    if allowed.clone().any(|name| name == EVERY_HOST)
        || names.any(|ours| ours.eq_ignore_ascii_case(host))
    {
        return Ok(());
    }
    let host: String = host.chars().take(255).collect();
    Err(Problem::refused(
        Code::InvalidRequest,
        format!(
            "the request is for the host {host:?}, and no node of this cluster is called that: use an address of the node, or start the nodes with --allow-host {host} if it is a name of yours"
        ),
    ))
}

/// An address, or a name that no other host can have.
fn is_local(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().is_ok()
        || host.eq_ignore_ascii_case("localhost")
        || host.to_ascii_lowercase().ends_with(".localhost")
}

/// The host of `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`.
fn host_of(named: &str) -> &str {
    match named.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => named,
    }
}

fn this_machine() -> Option<String> {
    let name = nix::unistd::gethostname().ok()?;
    name.into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_found_with_and_without_a_port() {
        for (named, host) in [
            ("node1", "node1"),
            ("node1:80", "node1"),
            ("10.0.0.1:7", "10.0.0.1"),
            ("[::1]:7", "[::1]"),
            ("[::1]", "[::1]"),
            ("a:b", "a:b"),
            ("", ""),
        ] {
            assert_eq!(host_of(named), host, "{named}");
        }
    }

    #[test]
    fn addresses_and_the_machine_itself_are_nobody_else_s_names() {
        for host in ["127.0.0.1", "10.1.2.3", "[::1]", "[fd00::7]", "LOCALHOST", "a.localhost"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "::g"]
        {
            assert!(!is_local(host), "{host}");
        }
    }
}
