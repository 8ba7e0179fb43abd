//! One HTTP request on a connection of its own: a client that knows one node and
//! learns of no other.

use std::time::Duration;

use anyhow::Context;
use holdfast_api::{Status, routes};
use holdfast_client::Credentials;
use holdfast_net::Stream;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Bound on a question to a node: on a machine short of processors it takes seconds.
const LOOK_TIME_MAX: Duration = Duration::from_secs(5);

/// A request to a node.
#[derive(Debug, Clone, Default)]
pub struct Request<'a> {
    /// The method, such as `GET` or `POST`.
    pub method: &'static str,
    /// The path, with its query.
    pub path: &'a str,
    /// The token, and how TLS is spoken, if it is.
    pub credentials: Credentials,
    /// Headers besides the usual ones.
    pub headers: Vec<(&'static str, String)>,
    /// The body: JSON, or empty.
    pub body: String,
}

/// A whole answer of a node.
#[derive(Debug, Clone)]
pub struct Response {
    /// The HTTP status code.
    pub status: u16,
    /// Its body, as bytes.
    pub body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// The request was not sent.
    #[error("no connection to {address}: {why}")]
    NotSent {
        /// Address of the node.
        address: String,
        /// Why no connection was made, or that it took too long.
        why: String,
    },
    /// It was sent, and may have arrived.
    #[error("no answer from {address}: {why}")]
    NoAnswer {
        /// Address of the node.
        address: String,
        /// Why no whole answer came, or that it took too long.
        why: String,
    },
}

impl Response {
    /// The body as JSON; null if it is something else.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

/// Sends a request and reads its answer, within a time.
pub async fn send(
    address: &str,
    request: &Request<'_>,
    time_max: Duration,
) -> Result<Response, Lost> {
    let deadline = tokio::time::Instant::now() + time_max;
    let not_sent = |why: String| Lost::NotSent { address: address.to_owned(), why };
    let connecting = async {
        let stream = Stream::connect(address).await?;
        match &request.credentials.tls {
            Some(tls) => {
                tls.refreshed().await;
                tls.secure(stream, address).await
            }
            None => Ok(stream),
        }
    };
    let mut stream = match tokio::time::timeout_at(deadline, connecting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(not_sent(error.to_string())),
        Err(_) => return Err(not_sent(format!("not within {time_max:?}"))),
    };
    let lost = |why: String| Lost::NoAnswer { address: address.to_owned(), why };
    match tokio::time::timeout_at(deadline, exchange(&mut stream, address, request)).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => Err(lost(error.to_string())),
        Err(_) => Err(lost(format!("not within {time_max:?}"))),
    }
}

async fn exchange(
    stream: &mut Stream,
    address: &str,
    request: &Request<'_>,
) -> anyhow::Result<Response> {
    let Request { method, path, credentials, headers, body } = request;
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    if let Some(token) = token(credentials) {
        head.push_str(&format!("authorization: Bearer {token}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        head.push_str("content-type: application/json\r\n");
    }
    head.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    stream.write_all(head.as_bytes()).await?;
    // TLS may hold back what the socket had no room for, and reading does not send it.
    stream.flush().await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    parse(&answer)
}

/// The token, as its file has it now.
fn token(credentials: &Credentials) -> Option<String> {
    let text = std::fs::read_to_string(credentials.token_file.as_ref()?).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

/// Parses an answer whose connection has been closed.
fn parse(answer: &[u8]) -> anyhow::Result<Response> {
    let end =
        answer.windows(4).position(|it| it == b"\r\n\r\n").context("the answer has no head")?;
    let head = std::str::from_utf8(&answer[..end])?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("no status line")?;
    let status = status.parse()?;
    let (mut length, mut is_in_chunks) = (None, false);
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.trim().parse::<usize>()?);
        }
        is_in_chunks |= name.eq_ignore_ascii_case("transfer-encoding")
            && value.trim().eq_ignore_ascii_case("chunked");
    }
    let body = &answer[end + 4..];
    if is_in_chunks {
        return Ok(Response { status, body: joined(body)? });
    }
    let length = length.context("the answer does not say how long it is")?;
    anyhow::ensure!(body.len() == length, "the answer was cut off");
    Ok(Response { status, body: body.to_vec() })
}

/// The body that was sent in these chunks.
fn joined(mut chunks: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line =
            chunks.windows(2).position(|it| it == b"\r\n").context("no length of a chunk")?;
        let length = std::str::from_utf8(&chunks[..line])?;
        let length = usize::from_str_radix(length.split(';').next().unwrap_or_default(), 16)?;
        if length == 0 {
            return Ok(body);
        }
        let chunk = chunks.get(line + 2..).and_then(|rest| rest.split_at_checked(length));
        let (chunk, rest) = chunk.context("the answer was cut off")?;
        body.extend_from_slice(chunk);
        chunks = rest.strip_prefix(b"\r\n").context("a chunk does not end")?;
    }
}

/// What a node answers in time; none if it does not.
pub(super) async fn look(address: &str, request: &Request<'_>) -> Option<Response> {
    send(address, request, LOOK_TIME_MAX).await.ok()
}

/// A node's view of the cluster; none if it does not answer in time.
pub async fn status(address: &str) -> Option<Status> {
    status_with(address, Credentials::default()).await
}

/// The same of a node that asks for a token, or speaks TLS.
pub async fn status_with(address: &str, credentials: Credentials) -> Option<Status> {
    let request =
        Request { method: "GET", path: routes::STATUS, credentials, ..Request::default() };
    let response = send(address, &request, LOOK_TIME_MAX).await.ok()?;
    (response.status == 200).then(|| serde_json::from_slice(&response.body).ok()).flatten()
}

/// A number that a node measures; none if it does not answer in time.
pub async fn metric(address: &str, name: &str) -> Option<f64> {
    let request = Request { method: "GET", path: routes::METRICS, ..Request::default() };
    let response = send(address, &request, LOOK_TIME_MAX).await.ok()?;
    measured(&String::from_utf8_lossy(&response.body), name)
}

/// The value of a metric without labels.
fn measured(text: &str, name: &str) -> Option<f64> {
    let mut values = text.lines().filter_map(|line| line.split_once(' '));
    values.find(|(found, _)| found.trim_end_matches("_total") == name)?.1.trim().parse().ok()
}

/// Whether a node answers at all.
pub async fn is_alive(address: &str) -> bool {
    let request = Request { method: "GET", path: routes::LIVEZ, ..Request::default() };
    send(address, &request, LOOK_TIME_MAX).await.is_ok()
}

/// Whether a node reports that it is ready.
pub async fn is_ready(address: &str) -> bool {
    let request = Request { method: "GET", path: routes::READYZ, ..Request::default() };
    send(address, &request, LOOK_TIME_MAX).await.is_ok_and(|response| response.status == 200)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let text = "# HELP hf_a_total x\nhf_ab 3\nhf_a_total 5\nhf_l{x=\"y\"} 7\n";
        assert_eq!(measured(text, "hf_a"), Some(5.0));
        assert_eq!(measured(text, "hf_b"), None);
    }

    #[test]
    fn an_answer_is_whole_or_none() {
        let whole = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}";
        let response = parse(whole).unwrap();
        assert_eq!((response.status, response.body.as_slice()), (404, &b"{}"[..]));
        assert!(parse(&whole[..whole.len() - 1]).is_err());
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[1\r\na;x=y\r\n, 2, 3, 4]\r\n0\r\n\r\n";
        assert_eq!(parse(chunked).unwrap().body, b"[1, 2, 3, 4]");
        assert!(parse(&chunked[..chunked.len() - 5]).is_err());
        assert!(parse(&chunked[..chunked.len() - 12]).is_err());
        assert!(parse(b"HTTP/1.1 200 OK").is_err());
        assert!(parse(b"rubbish\r\n\r\n").is_err());
    }
}
