//! Short HTTP exchanges with other nodes.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use bytes::Bytes;
use holdfast_net::Stream;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::sync::Semaphore;

use crate::foreign_text::shown;
use crate::tls::Tls;

/// Longest time for a connection to open. An address that drops packets must not
/// look like a node that took a request and went silent.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(1);

/// The same for a connection that stays: its caller tries again at once, and a
/// lost packet must not delay reaching a host that is back.
const STAYING_CONNECT_TIME_MAX: Duration = Duration::from_millis(300);

/// How long the other host of a connection that stays may acknowledge nothing
/// before it is closed: TCP's own pauses between retries would outlast the
/// trouble. A host that is up but does not read counts as well.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// For short messages, or ones soon repeated.
    Short,
    /// For long transfers, which start again if interrupted.
    Long,
}

impl Patience {
    fn time(self) -> Duration {
        match self {
            Patience::Short => Duration::from_secs(1),
            Patience::Long => Duration::from_secs(10),
        }
    }
}

/// A silent host is probed after this time, at this interval, and this many times
/// before it counts as dead.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(2);
const KEEPALIVES_MAX: u32 = 2;

/// Most names that are looked up at once.
const LOOKUPS_MAX: usize = 16;

static LOOKUPS: Semaphore = Semaphore::const_new(LOOKUPS_MAX);

/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No address for the name, which proves nothing about the node: nothing was sent.
    #[error("cannot connect to {address}: {why}")]
    LookUp {
        /// Address of the node, `host:port`.
        address: String,
        /// Error of the look-up.
        why: io::Error,
    },
    /// No connection: nothing was sent.
    #[error("cannot connect to {address}: {why}")]
    Connect {
        /// Address of the node, `host:port`.
        address: String,
        /// The operating system's error.
        why: io::Error,
    },
    /// The exchange was interrupted: what was sent may have had an effect.
    #[error("{address} broke off: {why}")]
    Broken {
        /// Address of the node, `host:port`.
        address: String,
        /// The HTTP client's error.
        why: String,
    },
    /// The node refused the upgrade.
    #[error("{address} refused with {status}: {}", shown(body))]
    Refused {
        /// Address of the node, `host:port`.
        address: String,
        /// HTTP status of the answer.
        status: StatusCode,
        /// Body of the answer.
        body: String,
    },
    /// Time limit exceeded: what was sent may have had an effect.
    #[error("{address} did not answer within {after:?}")]
    Timeout {
        /// Address of the node, `host:port`.
        address: String,
        /// The time limit within which there was no answer.
        after: Duration,
    },
}

fn broken(address: &str, why: impl std::error::Error) -> DialError {
    // The outermost error seldom names the cause.
    let (mut words, mut cause) = (why.to_string(), why.source());
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    DialError::Broken { address: address.to_owned(), why: words }
}

/// Opens a connection. A name is looked up anew for each: its node may have
/// moved.
pub(crate) async fn connect(tls: &Tls, address: &str) -> Result<Stream, DialError> {
    connect_within(tls, address, CONNECT_TIME_MAX).await
}

async fn connect_within(tls: &Tls, address: &str, limit: Duration) -> Result<Stream, DialError> {
    let failed = |why| DialError::Connect { address: address.to_owned(), why };
    let late = |_| failed(ErrorKind::TimedOut.into());
    let unknown = |why| DialError::LookUp { address: address.to_owned(), why };
    let found = tokio::time::timeout(CONNECT_TIME_MAX, look_up(address)).await;
    let found = found.map_err(|_| unknown(look_up_late()))?.map_err(unknown)?;
    let connecting = tokio::time::timeout(limit, Stream::connect_any(&found)).await;
    let stream = connecting.map_err(late)?.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    keep_alive(&stream).map_err(failed)?;
    let Some(dialer) = tls.dialer() else { return Ok(stream) };
    let shaking = tokio::time::timeout(CONNECT_TIME_MAX, dialer.secure(stream, address)).await;
    shaking.map_err(late)?.map_err(failed)
}

/// Lets the system notice when the other host goes silent.
pub(crate) fn keep_alive(stream: &Stream) -> io::Result<()> {
    let Some(stream) = stream.as_tcp() else { return Ok(()) };
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVES_MAX);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

fn look_up_late() -> io::Error {
    let why = format!("the name was not looked up within {CONNECT_TIME_MAX:?}");
    io::Error::new(ErrorKind::TimedOut, why)
}

/// The addresses of a name. The system's look-up cannot be stopped: one that
/// hangs keeps its thread and its place, and its caller stops waiting.
pub(crate) async fn look_up(address: &str) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let place = LOOKUPS.acquire().await.map_err(io::Error::other)?;
    let name = address.to_owned();
    let looking_up = tokio::task::spawn_blocking(move || {
        let _place = place;
        name.to_socket_addrs().map(Vec::from_iter)
    });
    let found = looking_up.await.map_err(io::Error::other)?;
    found.map_err(|why| io::Error::new(why.kind(), format!("the name cannot be looked up: {why}")))
}

async fn within<T>(
    address: &str,
    limit: Duration,
    work: impl Future<Output = Result<T, DialError>>,
) -> Result<T, DialError> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(DialError::Timeout { address: address.to_owned(), after: limit }),
    }
}

/// One request on a connection of its own.
pub async fn request(
    tls: &Tls,
    address: &str,
    method: Method,
    path: &str,
    headers: HeaderMap,
    body: Bytes,
    limit: Duration,
) -> Result<(StatusCode, HeaderMap, Bytes), DialError> {
    within(address, limit, async {
        let stream = connect(tls, address).await?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|e| broken(address, e))?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .body(Full::new(body))
            .map_err(|e| broken(address, e))?;
        *request.headers_mut() = headers;
        request.headers_mut().entry(header::HOST).or_insert(host(address)?);
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|e| broken(address, e))?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|e| broken(address, &*e))?.to_bytes();
            Ok((parts.status, parts.headers, body))
        };
        drive(connection, exchange).await
    })
    .await
}

/// Turns a new connection into a raw stream; gives the answer's headers too.
pub(crate) async fn upgrade(
    tls: &Tls,
    address: &str,
    path: &str,
    protocol: &'static str,
    headers: HeaderMap,
    patience: Patience,
    limit: Duration,
) -> Result<(HeaderMap, TokioIo<Upgraded>), DialError> {
    within(address, limit, async {
        let mut stream = connect_within(tls, address, STAYING_CONNECT_TIME_MAX).await?;
        stream.set_user_timeout(patience.time()).map_err(|why| broken(address, why))?;
        let (mut sender, connection) = http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream))
            .await
            .map_err(|e| broken(address, e))?;
        let mut request =
            Request::builder().uri(path).body(Full::default()).map_err(|e| broken(address, e))?;
        *request.headers_mut() = headers;
        let own = request.headers_mut();
        own.insert(header::HOST, host(address)?);
        own.insert(header::CONNECTION, header::HeaderValue::from_static("upgrade"));
        own.insert(header::UPGRADE, header::HeaderValue::from_static(protocol));
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|e| broken(address, e))?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                let status = response.status();
                let body = Limited::new(response.into_body(), 64 * 1024).collect().await;
                let body = body.map(|b| b.to_bytes()).unwrap_or_default();
                let body = String::from_utf8_lossy(&body).into_owned();
                return Err(DialError::Refused { address: address.to_owned(), status, body });
            }
            let headers = response.headers().clone();
            let io = hyper::upgrade::on(response).await.map_err(|e| broken(address, e))?;
            Ok((headers, TokioIo::new(io)))
        };
        drive(connection.with_upgrades(), exchange).await
    })
    .await
}

fn host(address: &str) -> Result<header::HeaderValue, DialError> {
    header::HeaderValue::from_str(address).map_err(|e| broken(address, e))
}

/// Runs the exchange while the connection is driven beside it; if the connection
/// ends first, the exchange reports the result.
async fn drive<T>(
    connection: impl Future<Output = Result<(), hyper::Error>>,
    exchange: impl Future<Output = Result<T, DialError>>,
) -> Result<T, DialError> {
    let (mut connection, mut exchange) = (std::pin::pin!(connection), std::pin::pin!(exchange));
    tokio::select! {
        result = &mut exchange => result,
        _ = &mut connection => exchange.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_are_looked_up_and_addresses_are_not() {
        assert_eq!(look_up("10.1.2.3:4").await.unwrap(), ["10.1.2.3:4".parse().unwrap()]);
        assert_eq!(look_up("[::1]:4").await.unwrap(), ["[::1]:4".parse().unwrap()]);
        let local = look_up("localhost:4").await.unwrap();
        assert!(local.iter().all(|at| at.ip().is_loopback() && at.port() == 4), "{local:?}");
        assert!(!local.is_empty());
    }

    #[tokio::test]
    async fn a_name_that_nobody_knows_is_named() {
        let error = connect(&Tls::default(), "no-such-host.invalid:1").await.unwrap_err();
        assert!(matches!(error, DialError::LookUp { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains("no-such-host.invalid:1"), "{error}");
        assert!(error.contains("looked up"), "{error}");
    }

    #[tokio::test]
    async fn look_ups_that_hang_do_not_pile_up() {
        let hanging = LOOKUPS.acquire_many(LOOKUPS_MAX as u32).await.unwrap();
        let error = connect(&Tls::default(), "localhost:1").await.unwrap_err();
        assert!(
            matches!(error, DialError::LookUp { ref why, .. } if why.kind() == ErrorKind::TimedOut)
        );
        drop(hanging);
    }
}
