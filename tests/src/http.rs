//! Plain HTTP requests.

use std::time::{Duration, Instant};

use bytes::Bytes;
use holdfast_client::Tls;
use holdfast_net::Stream;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::task::JoinSet;

/// Bound on one request.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(20);

/// How long a cluster may take to elect a leader, many times over.
const SERVED_WITHIN: Duration = Duration::from_secs(60);

/// Pause between a request that was not served and the next.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A whole answer of a node.
#[derive(Debug, Clone)]
pub struct Response {
    /// The HTTP status code.
    pub status: u16,
    /// All headers of the answer.
    pub headers: HeaderMap,
    /// The body, read to its end.
    pub body: Bytes,
}

impl Response {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    ///
    /// If it is something else.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.text()))
    }
}

/// Sends a GET without headers.
pub async fn get(address: &str, path: &str) -> Result<Response, String> {
    send(address, Method::GET, path, &[], "").await
}

/// GET without headers, as [`send_until_served`].
pub async fn get_until_served(address: &str, path: &str) -> Result<Response, String> {
    send_until_served(address, Method::GET, path, &[], "").await
}

/// One request, sent again while the node answers that it cannot serve it now
/// (503) and that it has done nothing: on a loaded machine there may be an
/// election at any time. Answers what came last.
pub async fn send_until_served(
    address: &str,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Result<Response, String> {
    send_until_served_over(None, address, method, path, headers, body).await
}

/// The same, with TLS if there is any.
pub async fn send_until_served_over(
    tls: Option<&Tls>,
    address: &str,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Result<Response, String> {
    let (body, began) = (body.into(), Instant::now());
    loop {
        let answer = send_over(tls, address, method.clone(), path, headers, body.clone()).await?;
        let unserved =
            answer.status == 503 && (method == Method::GET || answer.json()["outcome"] == "none");
        if !unserved || began.elapsed() > SERVED_WITHIN {
            return Ok(answer);
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

/// One request on a connection of its own.
pub async fn send(
    address: &str,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Result<Response, String> {
    send_over(None, address, method, path, headers, body).await
}

async fn send_over(
    tls: Option<&Tls>,
    address: &str,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Result<Response, String> {
    let exchange = async {
        let mut connection = Connection::open_over(tls, address).await?;
        connection.send(&method, path, headers, body).await
    };
    match tokio::time::timeout(REQUEST_TIME_MAX, exchange).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer from {address} within {REQUEST_TIME_MAX:?}")),
    }
}

/// A connection for one request after the other.
pub struct Connection {
    address: String,
    sender: SendRequest<Full<Bytes>>,
    connection: http1::Connection<TokioIo<Stream>, Full<Bytes>>,
}

impl Connection {
    /// Opens a connection in plain text.
    pub async fn open(address: &str) -> Result<Connection, String> {
        Connection::open_over(None, address).await
    }

    async fn open_over(tls: Option<&Tls>, address: &str) -> Result<Connection, String> {
        let stream = connect(tls, address).await?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|e| e.to_string())?;
        Ok(Connection { address: address.to_owned(), sender, connection })
    }

    /// Sends one request, and reads the whole answer.
    pub async fn send(
        &mut self,
        method: &Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Response, String> {
        let mut request = Request::builder().method(method).uri(path);
        if headers.iter().all(|(name, _)| *name != "host") {
            request = request.header("host", &self.address);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).map_err(|e| e.to_string())?;
        let Connection { sender, connection, .. } = self;
        let answer = async {
            sender.ready().await.map_err(|e| e.to_string())?;
            let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
            let (head, body) = response.into_parts();
            let body = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
            Ok(Response { status: head.status.as_u16(), headers: head.headers, body })
        };
        let mut answer = std::pin::pin!(answer);
        tokio::select! {
            answer = &mut answer => answer,
            // A connection may end together with its answer.
            _ = connection => answer.await,
        }
    }
}

/// Bytes of each answer that an HTTP/2 node may send before some of it is read.
const WINDOW_BYTES: u32 = 64 * 1024;

/// A connection for many requests at a time, by HTTP/2. What is not read stays at the node.
pub struct Multiplexed {
    address: String,
    sender: http2::SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

impl Multiplexed {
    /// Opens a connection in plain text.
    pub async fn open(address: &str) -> Result<Multiplexed, String> {
        let stream = connect(None, address).await?;
        let mut client = http2::Builder::new(TokioExecutor::new());
        client.initial_stream_window_size(WINDOW_BYTES);
        let (sender, connection) =
            client.handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // A broken connection shows in the request that it breaks.
            drop(connection.await);
        });
        Ok(Multiplexed { address: address.to_owned(), sender, _driver: driver })
    }

    /// Sends a request; its answer begins some time.
    pub fn ask(
        &self,
        method: Method,
        path: &str,
        body: &'static str,
    ) -> impl Future<Output = Result<http::Response<Incoming>, String>> + Send + use<> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from_static(body.as_bytes())));
        let mut sender = self.sender.clone();
        async move {
            let request = request.map_err(|e| e.to_string())?;
            sender.ready().await.map_err(|e| e.to_string())?;
            sender.send_request(request).await.map_err(|e| e.to_string())
        }
    }

    /// Whether the node has closed it.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

/// A connection, with TLS if there is any.
pub async fn connect(tls: Option<&Tls>, address: &str) -> Result<Stream, String> {
    let stream = Stream::connect(address).await.map_err(|e| e.to_string())?;
    match tls {
        Some(tls) => tls.secure(stream, address).await.map_err(|e| e.to_string()),
        None => Ok(stream),
    }
}
