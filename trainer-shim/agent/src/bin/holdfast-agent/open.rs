//! `holdfast-agent open`: a namespace at a port of its own.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use holdfast_agent::control::client::Connection;
use holdfast_agent::control::protocol::{Request, Response};
use holdfast_api::Name;
use tokio::time::timeout;

/// Time limit for the agent, which sends no calls for this.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// Opens the namespace and prints its port.
pub async fn open(control: &Path, name: Name) -> anyhow::Result<u8> {
    let connection = Connection::open(control).await;
    let mut connection = connection.with_context(|| {
        format!(
            "no agent at {}: call this from a command that `holdfast-agent run` started, \
             or name its HOLDFAST_CONTROL with --control",
            control.display()
        )
    })?;
    let answer = timeout(ANSWER_TIME_MAX, connection.ask(&Request::Open { name })).await;
    match answer.map_err(|_| anyhow!("the agent does not answer for {ANSWER_TIME_MAX:?}"))?? {
        Response::Opened { address } => {
            println!("{}", address.port());
            Ok(0)
        }
        Response::Refused(refused) => bail!("{}", refused.reason),
        _ => bail!("the agent answers another question; its version and this one's do not fit"),
    }
}
