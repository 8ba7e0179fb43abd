//! A raw client of the multiplexed stream: no retries, no session, and the
//! freedom to send what a good client would not.

use holdfast_api::{Hello, Reply, ReplyBody, Request, RequestBody, routes};
use holdfast_client::Tls;
use holdfast_net::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::http::connect;
use crate::patience::patiently;

/// A connection to a node, upgraded to the protocol of clients.
#[derive(Debug)]
pub struct RawStream {
    /// The node's first message.
    pub hello: Hello,
    stream: Stream,
    next_id: u64,
}

impl RawStream {
    /// Connects, upgrades, and reads the node's first frame.
    pub async fn open(address: &str) -> Result<RawStream, String> {
        RawStream::open_with(None, address, &[]).await
    }

    /// The same, with more headers, and with TLS if there is any.
    pub async fn open_with(
        tls: Option<&Tls>,
        address: &str,
        headers: &[(&str, &str)],
    ) -> Result<RawStream, String> {
        let mut stream = upgrade_with(tls, address, headers).await?;
        let hello = read_frame(&mut stream).await?;
        let hello = rmp_serde::from_slice(&hello).map_err(|e| e.to_string())?;
        Ok(RawStream { hello, stream, next_id: 1 })
    }

    /// Sends bytes as they are.
    pub async fn send_raw(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.write_all(bytes).await.map_err(|e| e.to_string())
    }

    /// Asks and waits for the first answer to it.
    pub async fn ask(&mut self, body: RequestBody) -> Result<ReplyBody, String> {
        let id = self.post(body).await?;
        loop {
            let replies = self.replies().await?;
            if let Some(reply) = replies.into_iter().find(|reply| reply.id == id) {
                return Ok(reply.body);
            }
        }
    }

    /// Asks, and does not wait; answers the request's id.
    pub async fn post(&mut self, body: RequestBody) -> Result<u64, String> {
        let id = self.next_id;
        self.next_id += 1;
        let request = rmp_serde::to_vec_named(&vec![Request { id, body }])
            .map_err(|error| error.to_string())?;
        let mut frame =
            u32::try_from(request.len()).map_err(|e| e.to_string())?.to_le_bytes().to_vec();
        frame.extend(request);
        self.send_raw(&frame).await?;
        Ok(id)
    }

    /// The replies in the next frame.
    pub async fn replies(&mut self) -> Result<Vec<Reply>, String> {
        let frame = read_frame(&mut self.stream).await?;
        rmp_serde::from_slice(&frame).map_err(|e| e.to_string())
    }

    /// Waits until the node closes the connection; what it still sends is discarded.
    pub async fn closed(&mut self) {
        let mut chunk = vec![0; 4096];
        let ended = async { while matches!(self.stream.read(&mut chunk).await, Ok(1..)) {} };
        patiently("the node to close a stream", ended).await;
    }
}

/// An upgraded connection, its first frame not yet read.
pub async fn upgrade(address: &str) -> Result<Stream, String> {
    upgrade_with(None, address, &[]).await
}

async fn upgrade_with(
    tls: Option<&Tls>,
    address: &str,
    headers: &[(&str, &str)],
) -> Result<Stream, String> {
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let connecting = async {
        let mut stream = connect(tls, address).await?;
        let head = format!(
            "GET {} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: {}\r\n{more}\r\n",
            routes::STREAM,
            holdfast_api::stream::UPGRADE,
        );
        stream.write_all(head.as_bytes()).await.map_err(|e| e.to_string())?;
        let head = read_head(&mut stream).await?;
        if head.starts_with("HTTP/1.1 101") { Ok(stream) } else { Err(head) }
    };
    patiently("a node to upgrade a connection", connecting).await
}

async fn read_head(stream: &mut Stream) -> Result<String, String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.map_err(|e| e.to_string())?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

async fn read_frame(stream: &mut Stream) -> Result<Vec<u8>, String> {
    let reading = async {
        let length = stream.read_u32_le().await.map_err(|e| e.to_string())?;
        let mut frame = vec![0; length as usize];
        stream.read_exact(&mut frame).await.map_err(|e| e.to_string())?;
        Ok(frame)
    };
    patiently("a frame of a node", reading).await
}
