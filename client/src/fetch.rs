//! One question by plain HTTP, to one node: for what a node answers for itself
//! and a stream does not carry.

use std::time::Duration;

use bytes::Bytes;
use http::{StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;

use crate::connection;
use crate::credentials::Credentials;

/// Longest answer that is read, in bytes.
pub const FETCH_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The file with the token is of no use.
    #[error("{0}")]
    Token(String),
    /// The connection could not be made.
    #[error("cannot connect: {0}")]
    Connect(std::io::Error),
    /// It took too long.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// It does not speak HTTP, broke off, or sent too much.
    #[error("it does not answer as a node does: {0}")]
    Http(String),
    /// The answer could not be written where it belongs.
    #[error("{0}")]
    Kept(std::io::Error),
}

/// The answer of a node.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// HTTP status of the answer.
    pub status: StatusCode,
    /// Body of the answer.
    pub body: Bytes,
}

/// GETs a path from the node at `address` on a connection of its own, with the
/// token from a file if there is one.
pub async fn fetch(
    address: &str,
    path: &str,
    credentials: &Credentials,
    timeout: Duration,
) -> Result<Fetched, FetchError> {
    let read = async |status, body: Incoming| {
        let body = Limited::new(body, FETCH_BYTES_MAX).collect().await;
        Ok(Fetched { status, body: body.map_err(http_error)?.to_bytes() })
    };
    let exchange = get(address, path, credentials, timeout, read);
    tokio::time::timeout(timeout, exchange).await.unwrap_or(Err(FetchError::TimedOut(timeout)))
}

/// Like [`fetch`], for an answer of any length: a good one is handed to `take` piece
/// by piece, each within `timeout`, and not kept; another one is answered whole.
pub async fn download(
    address: &str,
    path: &str,
    credentials: &Credentials,
    timeout: Duration,
    mut take: impl FnMut(Bytes) -> std::io::Result<()>,
) -> Result<Fetched, FetchError> {
    let read = async |status: StatusCode, mut body: Incoming| {
        if !status.is_success() {
            let body = Limited::new(body, FETCH_BYTES_MAX).collect().await;
            return Ok(Fetched { status, body: body.map_err(http_error)?.to_bytes() });
        }
        loop {
            let next = tokio::time::timeout(timeout, body.frame()).await;
            match next.map_err(|_| FetchError::TimedOut(timeout))? {
                None => return Ok(Fetched { status, body: Bytes::new() }),
                Some(frame) => {
                    if let Ok(piece) = frame.map_err(http_error)?.into_data() {
                        take(piece).map_err(FetchError::Kept)?;
                    }
                }
            }
        }
    };
    get(address, path, credentials, timeout, read).await
}

/// Asks, each step up to the answer's head within `timeout`, and has the rest read.
async fn get(
    address: &str,
    path: &str,
    credentials: &Credentials,
    timeout: Duration,
    read: impl AsyncFnOnce(StatusCode, Incoming) -> Result<Fetched, FetchError>,
) -> Result<Fetched, FetchError> {
    let opening = async {
        let token = connection::token(credentials.token_file.clone()).await;
        let token = token.map_err(|error| FetchError::Token(error.to_string()))?;
        let opening = connection::open(address, credentials.tls.as_ref());
        let stream = opening.await.map_err(FetchError::Connect)?;
        let mut request = http::Request::get(path).header(header::HOST, address);
        if let Some(token) = &token {
            request = request.header(header::AUTHORIZATION, token.authorization());
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(http_error)?;
        let opened = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        opened.map(|opened| (opened, request)).map_err(http_error)
    };
    let late = |_| FetchError::TimedOut(timeout);
    let ((mut sender, driver), request) =
        tokio::time::timeout(timeout, opening).await.map_err(late)??;
    let answer = async {
        let answer = tokio::time::timeout(timeout, sender.send_request(request)).await;
        let answer = answer.map_err(late)?.map_err(http_error)?;
        let status = answer.status();
        read(status, answer.into_body()).await
    };
    let (mut driver, mut answer) = (std::pin::pin!(driver), std::pin::pin!(answer));
    tokio::select! {
        answer = &mut answer => answer,
        _ = &mut driver => answer.await,
    }
}

fn http_error(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> FetchError {
    FetchError::Http(connection::with_causes(&*error.into()))
}
