//! Nodes of etcd: how they are started, and what they say of themselves.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::Value;

use super::http::{self, Request};
use super::system::Seat;

/// Its server.
pub const PROGRAM: &str = "etcd";

/// The folder of the path in which its server is.
pub fn folder() -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).find(|folder| folder.join(PROGRAM).is_file());
    found.context("etcd is not on the PATH (Debian: apt install etcd-server)")
}

/// Adds the flags of a node: its name, folder, addresses for clients and for peers.
pub(super) fn flags(command: &mut Command, name: &str, data_dir: &Path, address: &str, peer: &str) {
    let url = |address: &str| format!("http://{address}");
    command.args(["--name", name]).arg("--data-dir").arg(data_dir);
    command.args(["--listen-client-urls", &url(address)]);
    command.args(["--advertise-client-urls", &url(address)]);
    command.args(["--listen-peer-urls", &url(peer)]);
    command.args(["--initial-advertise-peer-urls", &url(peer)]);
    command.args(["--initial-cluster-state", "new"]);
}

/// What a node says of its place; none if it does not answer in time.
pub(super) async fn seat(address: String) -> Option<Seat> {
    let path = "/v3/maintenance/status";
    let request = Request { method: "POST", path, body: "{}".to_owned(), ..Request::default() };
    let response = http::look(&address, &request).await?;
    (response.status == 200).then(|| read_seat(&response.json())).flatten()
}

/// Whether a node is well: it has a leader, and a read works.
pub(super) async fn is_ready(address: &str) -> bool {
    let request = Request { method: "GET", path: "/health", ..Request::default() };
    let response = http::look(address, &request).await;
    response.is_some_and(|response| response.json()["health"] == "true")
}

/// Numbers come as text, and those that are 0 not at all.
fn read_seat(status: &Value) -> Option<Seat> {
    let number = |value: &Value| value.as_str().map_or(Some(0), |text| text.parse::<u64>().ok());
    let own = number(&status["header"]["member_id"])?;
    Some(Seat {
        leads: own != 0 && number(&status["leader"])? == own,
        term: number(&status["header"]["raft_term"])?,
        version: status["version"].as_str().map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_leads_if_it_names_itself() {
        let status = |leader: Option<&str>| {
            let header = json!({"member_id": "77", "raft_term": "3"});
            read_seat(&json!({"header": header, "version": "3.4.23", "leader": leader}))
        };
        let seat = |leads| Some(Seat { leads, term: 3, version: Some("3.4.23".to_owned()) });
        assert_eq!(status(Some("77")), seat(true));
        assert_eq!(status(Some("78")), seat(false));
        assert_eq!(status(None), seat(false));
        assert_eq!(read_seat(&json!({"header": {"member_id": "x"}})), None);
    }
}
