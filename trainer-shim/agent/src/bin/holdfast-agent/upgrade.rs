//! `holdfast-agent upgrade`

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use holdfast_agent::control::client::Connection;
use holdfast_agent::control::protocol::{Request, Response};
use tokio::time::timeout;

/// How long an agent may take to be replaced.
const REPLACED_TIME_MAX: Duration = Duration::from_secs(30);

/// Has the agent at this socket replaced by the program that is at its path now.
pub async fn upgrade(control: &Path) -> anyhow::Result<u8> {
    let open = async || {
        let connection = Connection::open(control).await;
        connection.with_context(|| format!("cannot reach an agent at {}", control.display()))
    };
    let mut connection = open().await?;
    match connection.ask(&Request::Upgrade {}).await.context("the agent does not answer")? {
        Response::Upgrading { version } => {
            println!("holdfast-agent: replacing the agent, which is of version {version}");
        }
        Response::Refused(refused) => bail!(refused.reason),
        _ => bail!("the agent is too old to be replaced"),
    }
    if !matches!(timeout(REPLACED_TIME_MAX, connection.closed()).await, Ok(true)) {
        bail!(
            "the agent was not replaced in {REPLACED_TIME_MAX:?}; its log says why, as that the \
             program at its path does not start"
        );
    }
    let next = timeout(REPLACED_TIME_MAX, async {
        open().await?.ask(&Request::Status {}).await.context("the next agent does not answer")
    });
    match next.await {
        Ok(Ok(Response::Status { is_installed: Some(false), .. })) => bail!(
            "the program at the agent's path did not come up, and the former one serves again; its \
             log says why"
        ),
        Ok(Ok(Response::Status { version, connections, .. })) => {
            let version = version.unwrap_or_default();
            println!("holdfast-agent: version {version} serves {connections} connections");
            Ok(0)
        }
        Ok(Err(error)) => Err(error),
        _ => bail!("no agent serves in its place after {REPLACED_TIME_MAX:?}; its log says why"),
    }
}
