//! Connections: accepted, bounded, drained.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::recurring::Troubles;

/// Most connections at once; more wait in the listen queue.
pub const CONNECTIONS_MAX: usize = 16_384;

/// Longest time for a request's head to arrive, and for a connection to idle
/// between requests.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);

/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Pause after a failed accept: the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop`, then lets requests under way finish for `grace`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    tasks: TaskTracker,
    stop: CancellationToken,
    grace: Duration,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(HEAD_TIME_MAX));
    let (builder, draining) = (Arc::new(builder), GracefulShutdown::new());
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let troubles = Troubles::default();
    while let Some(accepted) = stop.run_until_cancelled(accept(&listener, &room)).await {
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if troubles.met("accept", &error) {
                    tracing::warn!(%error, "cannot accept connections");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        let (builder, watcher) = (builder.clone(), draining.watcher());
        tasks.spawn(async move {
            // Whoever connects and says nothing is not waited for.
            if tokio::time::timeout(HEAD_TIME_MAX, stream.readable()).await.is_err() {
                return;
            }
            let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
            if let Err(error) = watcher.watch(connection.into_owned()).await {
                tracing::debug!(%error, "a connection ended");
            }
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(grace, draining.shutdown()).await.is_err() {
        tracing::warn!("requests still under way after {grace:?} are cut off");
    }
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> std::io::Result<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = room.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, place))
}
