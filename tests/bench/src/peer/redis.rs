//! Redis that syncs every write.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::find;
use crate::child::{Child, free_ports};
use crate::load::{KEYS, VALUE_BYTES, Worker, within};

const START_TIME_MAX: Duration = Duration::from_secs(20);

/// A server of its own.
pub struct Redis {
    /// `redis-server` as a child process.
    pub child: Child,
    address: String,
}

impl Redis {
    /// Starts it, if it is installed.
    pub async fn start(folder: &Path) -> anyhow::Result<Option<Redis>> {
        let Some(program) = find("redis-server") else { return Ok(None) };
        let port = free_ports(1)?[0].to_string();
        let data = folder.join("redis");
        std::fs::create_dir_all(&data)?;
        let data = data.display().to_string();
        let arguments = [
            "--port",
            &port,
            "--bind",
            "127.0.0.1",
            "--dir",
            &data,
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
        ];
        let mut child = Child::start("redis", &program, arguments, folder)?;
        let address = format!("127.0.0.1:{port}");
        let deadline = Instant::now() + START_TIME_MAX;
        while TcpStream::connect(&address).await.is_err() {
            child.check()?;
            if Instant::now() > deadline {
                bail!("Redis does not listen: {}", child.said());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Some(Redis { child, address }))
    }

    /// Opens so many connections to it.
    pub async fn connect(&self, count: usize) -> anyhow::Result<Vec<Connection>> {
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count {
            let stream = TcpStream::connect(&self.address).await?;
            stream.set_nodelay(true)?;
            connections.push(Connection(BufReader::new(stream)));
        }
        Ok(connections)
    }
}

/// A connection that carries one command at a time.
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    /// A command with a one-line answer.
    async fn command(&mut self, words: &[&[u8]]) -> anyhow::Result<()> {
        let mut out = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            out.extend(format!("${}\r\n", word.len()).into_bytes());
            out.extend(*word);
            out.extend(b"\r\n");
        }
        self.0.get_mut().write_all(&out).await?;
        let mut answer = String::new();
        self.0.read_line(&mut answer).await?;
        ensure!(answer.starts_with(['+', ':']), "Redis answered {answer:?}");
        Ok(())
    }
}

/// Sets 128 bytes under keys of 16 bytes.
pub struct RedisSet(pub Connection);

impl Worker for RedisSet {
    async fn once(&mut self, n: u64) -> anyhow::Result<()> {
        let key = crate::load::key(n);
        within(self.0.command(&[b"SET", &key, &[b'v'; VALUE_BYTES]])).await
    }
}

/// Increments one of many counters.
pub struct RedisIncrement(pub Connection);

impl Worker for RedisIncrement {
    async fn once(&mut self, n: u64) -> anyhow::Result<()> {
        let key = format!("counter-{:08}", n % KEYS);
        within(self.0.command(&[b"INCR", key.as_bytes()])).await
    }
}
