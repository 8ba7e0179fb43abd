//! One question by plain HTTP, to one node: for what a node answers for itself
//! and a stream does not carry.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use holdfast_net::Stream;
use http::{StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;

use crate::connection;

/// Longest answer that is read, in bytes.
pub const FETCH_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The file with the token is of no use.
    #[error("{0}")]
    Token(String),
    /// No connection.
    #[error("cannot connect: {0}")]
    Connect(std::io::Error),
    /// It took too long.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// It does not speak HTTP, broke off, or said too much.
    #[error("it does not answer as a node does: {0}")]
    Http(String),
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// Its status.
    pub status: StatusCode,
    /// Its body.
    pub body: Bytes,
}

/// GETs a path from the node at `address` on a connection of its own, with the
/// token from a file if there is one.
pub async fn fetch(
    address: &str,
    path: &str,
    token_file: Option<&Path>,
    timeout: Duration,
) -> Result<Fetched, FetchError> {
    let exchange = async {
        let token = connection::token(token_file.map(Path::to_owned)).await;
        let token = token.map_err(|error| FetchError::Token(error.to_string()))?;
        let stream = Stream::connect(address).await.map_err(FetchError::Connect)?;
        stream.set_nodelay(true).map_err(FetchError::Connect)?;
        let mut request = http::Request::get(path).header(header::HOST, address);
        if let Some(token) = &token {
            request = request.header(header::AUTHORIZATION, token.authorization());
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(http_error)?;
        let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(http_error)?;
        let answer = async {
            let answer = sender.send_request(request).await.map_err(http_error)?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), FETCH_BYTES_MAX).collect().await;
            Ok(Fetched { status, body: body.map_err(http_error)?.to_bytes() })
        };
        let (mut driver, mut answer) = (std::pin::pin!(driver), std::pin::pin!(answer));
        tokio::select! {
            answer = &mut answer => answer,
            _ = &mut driver => answer.await,
        }
    };
    tokio::time::timeout(timeout, exchange).await.unwrap_or(Err(FetchError::TimedOut(timeout)))
}

fn http_error(error: impl std::fmt::Display) -> FetchError {
    FetchError::Http(error.to_string())
}
