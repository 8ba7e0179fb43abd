//! Short HTTP conversations with other nodes.

use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Longest time for a connection to open. An address that swallows packets
/// must not look like a node that took a request and fell silent.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(1);

/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No connection: nothing was sent.
    #[error("cannot connect to {address}: {why}")]
    Connect {
        /// Where.
        address: String,
        /// Why.
        why: std::io::Error,
    },
    /// The conversation broke off: what was sent may have had an effect.
    #[error("{address} broke off: {why}")]
    Broken {
        /// Where.
        address: String,
        /// Why.
        why: String,
    },
    /// The node refused the upgrade.
    #[error("{address} refused with {status}: {body}")]
    Refused {
        /// Where.
        address: String,
        /// With what.
        status: StatusCode,
        /// Its words.
        body: String,
    },
    /// Too slow: what was sent may have had an effect.
    #[error("{address} did not answer within {after:?}")]
    Timeout {
        /// Where.
        address: String,
        /// How long was waited.
        after: Duration,
    },
}

fn broken(address: &str, why: impl std::fmt::Display) -> DialError {
    DialError::Broken { address: address.to_owned(), why: why.to_string() }
}

async fn connect(address: &str) -> Result<TcpStream, DialError> {
    let failed = |why| DialError::Connect { address: address.to_owned(), why };
    let connecting = tokio::time::timeout(CONNECT_TIME_MAX, TcpStream::connect(address)).await;
    let stream = connecting.map_err(|_| failed(ErrorKind::TimedOut.into()))?.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    Ok(stream)
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
    address: &str,
    method: Method,
    path: &str,
    headers: HeaderMap,
    body: Bytes,
    limit: Duration,
) -> Result<(StatusCode, HeaderMap, Bytes), DialError> {
    within(address, limit, async {
        let stream = connect(address).await?;
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
            let body = body.map_err(|e| broken(address, e))?.to_bytes();
            Ok((parts.status, parts.headers, body))
        };
        drive(connection, exchange).await
    })
    .await
}

/// Turns a new connection into a raw stream; gives the answer's headers too.
pub async fn upgrade(
    address: &str,
    path: &str,
    protocol: &'static str,
    headers: HeaderMap,
    limit: Duration,
) -> Result<(HeaderMap, TokioIo<Upgraded>), DialError> {
    within(address, limit, async {
        let stream = connect(address).await?;
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

/// Runs the exchange while the connection is driven beside it; a connection
/// that ends first leaves the exchange to say what came of it.
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
