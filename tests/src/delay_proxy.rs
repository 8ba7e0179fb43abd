//! A proxy to a store that can hold answers back: requests arrive, and their callers do not know.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Awaited before each piece of an answer is passed on.
pub type Gate = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// A proxy; it runs until it is dropped.
#[derive(Debug)]
pub struct DelayProxy {
    address: String,
    _connections: JoinSet<()>,
}

impl DelayProxy {
    /// From `address`, which is free, to the store at `store`.
    pub async fn open(address: String, store: String, gate: Gate) -> DelayProxy {
        let listener = TcpListener::bind(&address).await.expect("a free port");
        let mut forwarding = JoinSet::new();
        forwarding.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((asking, _)) = listener.accept().await {
                let answering = TcpStream::connect(&store).await.expect("the store is there");
                let (mut questions, mut asking) = asking.into_split();
                let (mut answers, mut answering) = answering.into_split();
                connections.spawn(async move {
                    // Either end may go away.
                    let _ = tokio::io::copy(&mut questions, &mut answering).await;
                });
                let gate = gate.clone();
                connections.spawn(async move {
                    let mut bytes = vec![0; 64 * 1024];
                    while let Ok(length @ 1..) = answers.read(&mut bytes).await {
                        gate().await;
                        if asking.write_all(&bytes[..length]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        DelayProxy { address, _connections: forwarding }
    }

    /// Address at which it listens.
    pub fn address(&self) -> &str {
        &self.address
    }
}
