//! What a process is attached to, from its joining to its leaving: nothing of it
//! is left over, however it ends.

use std::path::PathBuf;
use std::time::Duration;

use holdfast_api::{Cause, Scope};
use holdfast_client::{Client, Deadline, Options};
use holdfast_trainer_shim::{Error, Host, HostOptions, Join, Process, Wanted};
use tokio::runtime::Handle;

/// Time limit for reporting that a process leaves.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(2);

/// Where a process is to be attached.
pub enum Place {
    /// The agent of this host.
    Agent { control: PathBuf, meant: Wanted, patience: Duration },
    /// A lease of its own.
    Own { options: Box<Options>, scope: Scope, host: HostOptions },
}

/// A process that has joined.
#[derive(Clone)]
pub struct Held {
    pub process: Process,
    /// Client of a lease of its own.
    client: Option<Client>,
}

/// What an unfinished join has taken; given back if it is dropped, within the runtime.
pub struct Taken(Option<(Host, Option<Client>)>);

impl Place {
    /// Attaches to the lease.
    pub async fn take(self) -> Result<Taken, Error> {
        match self {
            Place::Agent { control, meant, patience } => {
                Ok(Taken(Some((Host::attach(&control, meant, patience).await?, None))))
            }
            Place::Own { options, scope, host } => {
                let client = Client::new(*options);
                let host = Host::grant(client.clone(), scope, host).await?;
                Ok(Taken(Some((host, Some(client)))))
            }
        }
    }
}

impl Taken {
    /// The job and the run.
    pub fn scope(&self) -> Option<Scope> {
        self.0.as_ref().map(|(host, _)| host.scope().clone())
    }

    /// Registers. A join that fails or is cancelled leaves nothing over.
    pub async fn join(mut self, join: Join, patience: Deadline) -> Result<Held, Error> {
        let (host, _) = self.0.as_ref().ok_or(Error::Closed)?;
        let patience = Some(patience);
        let joined = host.join(Join { patience, ..join }).await;
        let (host, client) = self.0.take().ok_or(Error::Closed)?;
        match joined {
            Ok(process) => Ok(Held { process, client }),
            Err(error) => {
                give_back(host, client).await;
                Err(error)
            }
        }
    }

    /// Gives the lease back, or leaves the agent.
    pub async fn give_back(mut self) {
        if let Some((host, client)) = self.0.take() {
            give_back(host, client).await;
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some((host, client)) = self.0.take() {
            Handle::current().spawn(give_back(host, client));
        }
    }
}

impl Held {
    /// Leaves for good, and gives the lease back.
    pub async fn leave(self, cause: Cause) {
        let Held { process, client } = self;
        // Without this report its end is recorded as that of its lease, which is as final.
        let _ = tokio::time::timeout(LEAVE_TIME_MAX, process.end(cause)).await;
        give_back(process.host().clone(), client).await;
    }
}

async fn give_back(host: Host, client: Option<Client>) {
    host.close().await;
    if let Some(client) = client {
        client.close().await;
    }
}
