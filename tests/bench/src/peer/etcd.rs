//! Three etcd nodes, asked by gRPC.
//!
//! The four messages in use are so small that they are encoded and decoded by hand here.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::find;
use crate::child::{Child, free_ports};
use crate::load::{KEYS, VALUE_BYTES, Worker, within};

const START_TIME_MAX: Duration = Duration::from_secs(30);
/// Puts in flight while the keys are filled in.
const FILL_IN_FLIGHT: u64 = 64;
const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";
const STATUS: &str = "/etcdserverpb.Maintenance/Status";

/// Three nodes of etcd on this machine.
pub struct Etcd {
    nodes: Vec<Child>,
    leader: String,
}

impl Etcd {
    /// Starts it with its default settings, if it is installed.
    pub async fn start(folder: &Path) -> anyhow::Result<Option<Etcd>> {
        let Some(program) = find("etcd") else { return Ok(None) };
        let ports = free_ports(6)?;
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let members: Vec<String> =
            (0..3).map(|node| format!("etcd-{node}={}", url(ports[3 + node]))).collect();
        let mut nodes = Vec::new();
        for node in 0..3 {
            let (name, client, peer) =
                (format!("etcd-{node}"), url(ports[node]), url(ports[3 + node]));
            let data = folder.join(format!("{name}-data")).display().to_string();
            let members = members.join(",");
            let arguments = [
                "--name",
                &name,
                "--data-dir",
                &data,
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
                "--initial-cluster",
                &members,
                "--initial-cluster-state",
                "new",
            ];
            nodes.push(Child::start(&name, &program, arguments, folder)?);
        }
        let deadline = Instant::now() + START_TIME_MAX;
        loop {
            for port in &ports[..3] {
                let address = format!("127.0.0.1:{port}");
                if is_leader(&address).await.unwrap_or(false) {
                    return Ok(Some(Etcd { nodes, leader: address }));
                }
            }
            for node in &mut nodes {
                node.check()?;
            }
            if Instant::now() > deadline {
                bail!("etcd has no leader: {}", nodes[0].said());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Processor time of all nodes.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        self.nodes.iter().map(Child::cpu).sum()
    }

    /// Puts all keys once, so that a read finds each.
    pub async fn fill(&self) -> anyhow::Result<()> {
        let channel = Channel::open(&self.leader).await?;
        let mut filling = JoinSet::new();
        for first in 0..FILL_IN_FLIGHT {
            let mut put = EtcdPut(channel.sender());
            filling.spawn(async move {
                for n in (first..KEYS).step_by(FILL_IN_FLIGHT as usize) {
                    put.once(n).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(filled) = filling.join_next().await {
            filled.context("filling ended abnormally")??;
        }
        Ok(())
    }

    /// Opens connections to the leader.
    pub async fn connect(&self, count: usize) -> anyhow::Result<Vec<Channel>> {
        let mut channels = Vec::with_capacity(count);
        for _ in 0..count {
            channels.push(Channel::open(&self.leader).await?);
        }
        Ok(channels)
    }
}

async fn is_leader(address: &str) -> anyhow::Result<bool> {
    let channel = Channel::open(address).await?;
    let status = within(channel.sender().call(STATUS, Vec::new())).await?;
    let header = field(&status, 1).context("no header")?;
    let (Value::Bytes(header), Some(Value::Number(leader))) = (header, field(&status, 4)) else {
        return Ok(false);
    };
    Ok(matches!(field(header, 2), Some(Value::Number(member)) if member == leader && leader != 0))
}

/// One HTTP/2 connection; closed when dropped.
pub struct Channel {
    sender: Sender,
    _connection: JoinSet<()>,
}

impl Channel {
    async fn open(address: &str) -> anyhow::Result<Channel> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // A broken connection shows in the call that it breaks.
            drop(connection.await);
        });
        let sender = Sender { sender, authority: address.to_owned() };
        Ok(Channel { sender, _connection: driver })
    }

    /// A handle for one caller.
    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }
}

/// Calls over a channel.
#[derive(Clone)]
pub struct Sender {
    sender: SendRequest<Full<Bytes>>,
    authority: String,
}

impl Sender {
    async fn call(&mut self, method: &str, message: Vec<u8>) -> anyhow::Result<Vec<u8>> {
        let mut body = vec![0];
        body.extend(u32::try_from(message.len())?.to_be_bytes());
        body.extend(message);
        let request = http::Request::post(format!("http://{}{method}", self.authority))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(Bytes::from(body)))?;
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        let early = answer.headers().get("grpc-status").cloned();
        let collected = answer.into_body().collect().await?;
        let late = collected.trailers().and_then(|trailers| trailers.get("grpc-status")).cloned();
        let status = early.or(late).context("an answer without grpc-status")?;
        ensure!(status == "0", "etcd answered with grpc-status {status:?}");
        // One byte and a length stand before the message.
        Ok(collected.to_bytes().get(5..).unwrap_or_default().to_vec())
    }
}

fn put_field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push(number << 3 | 2);
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend(bytes);
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, tail) = rest.split_first()?;
        *rest = tail;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// A field of a message.
fn field(message: &[u8], wanted: u64) -> Option<Value<'_>> {
    let mut rest = message;
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut rest)?),
            2 => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                let (bytes, tail) = rest.split_at_checked(length)?;
                rest = tail;
                Value::Bytes(bytes)
            }
            _ => return None,
        };
        if tag >> 3 == wanted {
            return Some(value);
        }
    }
    None
}

/// Puts 128 bytes under keys of 16 bytes.
pub struct EtcdPut(pub Sender);

impl Worker for EtcdPut {
    async fn once(&mut self, n: u64) -> anyhow::Result<()> {
        let mut message = Vec::new();
        put_field(&mut message, 1, &crate::load::key(n));
        put_field(&mut message, 2, &[b'v'; VALUE_BYTES]);
        within(self.0.call(PUT, message)).await?;
        Ok(())
    }
}

/// A worker that gets keys, linearizably.
pub struct EtcdGet(pub Sender);

impl Worker for EtcdGet {
    async fn once(&mut self, n: u64) -> anyhow::Result<()> {
        let mut message = Vec::new();
        put_field(&mut message, 1, &crate::load::key(n));
        let answer = within(self.0.call(RANGE, message)).await?;
        ensure!(field(&answer, 2).is_some(), "a key that was put is not there");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_others() {
        let mut message = vec![8, 0x96, 1];
        put_field(&mut message, 2, &[7; 300]);
        put_field(&mut message, 3, b"end");
        assert!(matches!(field(&message, 1), Some(Value::Number(150))));
        assert!(matches!(field(&message, 2), Some(Value::Bytes(bytes)) if bytes == [7; 300]));
        assert!(matches!(field(&message, 3), Some(Value::Bytes(b"end"))));
        assert!(field(&message, 4).is_none());
        assert!(field(&message[..2], 1).is_none(), "a torn message has no fields");
    }
}
