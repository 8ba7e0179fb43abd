//! A client of the TCPStore protocol, as PyTorch's own speaks it.

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

const MAGIC: u32 = 0x3C85_F7CE;
/// Longest value that is read back, in bytes.
const VALUE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// One connection. Requests and answers are separate, so that many connections can be
/// asked before the first answer is read.
#[derive(Debug)]
pub struct Wire {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
}

impl Wire {
    /// Connects as PyTorch's client does: VALIDATE, then PING.
    pub async fn connect(address: &str) -> anyhow::Result<Wire> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut wire = Wire { stream: BufReader::new(stream), out: Vec::new() };
        let nonce = 0x600d_cafe_u32;
        wire.out.push(0);
        wire.out.extend(MAGIC.to_le_bytes());
        wire.out.push(13);
        wire.out.extend(nonce.to_le_bytes());
        wire.flush().await?;
        ensure!(wire.stream.read_u32_le().await? == nonce, "the server does not echo a ping");
        Ok(wire)
    }

    async fn flush(&mut self) -> anyhow::Result<()> {
        self.stream.get_mut().write_all(&self.out).await?;
        self.out.clear();
        Ok(())
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend((bytes.len() as u64).to_le_bytes());
        self.out.extend(bytes);
    }

    /// Sends a SET, which has no answer.
    pub async fn set(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        self.out.push(1);
        self.bytes(key);
        self.bytes(value);
        self.flush().await
    }

    /// Waits for a key and gets it, in two round trips, as PyTorch's client.
    pub async fn get(&mut self, key: &[u8]) -> anyhow::Result<Vec<u8>> {
        self.ask_wait(key).await?;
        self.released().await?;
        self.out.push(3);
        self.bytes(key);
        self.flush().await?;
        let length = self.stream.read_u64_le().await?;
        ensure!(length <= VALUE_BYTES_MAX, "a value of {length} bytes");
        let mut value = vec![0; length as usize];
        self.stream.read_exact(&mut value).await?;
        Ok(value)
    }

    /// Adds to a number; the sum.
    pub async fn add(&mut self, key: &[u8], delta: i64) -> anyhow::Result<i64> {
        self.ask_add(key, delta).await?;
        self.sum().await
    }

    /// Adds to a number; [`Wire::sum`] reads the answer.
    pub async fn ask_add(&mut self, key: &[u8], delta: i64) -> anyhow::Result<()> {
        self.out.push(4);
        self.bytes(key);
        self.out.extend(delta.to_le_bytes());
        self.flush().await
    }

    /// Hears what an ADD has come to.
    pub async fn sum(&mut self) -> anyhow::Result<i64> {
        self.stream.read_i64_le().await.context("the answer to an ADD")
    }

    /// Whether a key exists.
    pub async fn check(&mut self, key: &[u8]) -> anyhow::Result<bool> {
        self.out.push(5);
        self.out.extend(1u64.to_le_bytes());
        self.bytes(key);
        self.flush().await?;
        Ok(self.stream.read_u8().await.context("the answer to a CHECK")? == 0)
    }

    /// Asks to be notified when a key exists; [`Wire::released`] reads the answer.
    pub async fn ask_wait(&mut self, key: &[u8]) -> anyhow::Result<()> {
        self.out.push(6);
        self.out.extend(1u64.to_le_bytes());
        self.bytes(key);
        self.flush().await
    }

    /// Arrives at a barrier; [`Wire::released`] reads its end.
    pub async fn ask_barrier(&mut self, key: &[u8], parties: i64) -> anyhow::Result<()> {
        self.out.push(18);
        self.bytes(key);
        self.out.extend(parties.to_le_bytes());
        self.flush().await
    }

    /// Hears the end of a wait or a barrier.
    pub async fn released(&mut self) -> anyhow::Result<()> {
        let answer = self.stream.read_u8().await.context("the release of a WAIT")?;
        ensure!(answer == 0, "a WAIT was answered with {answer}");
        Ok(())
    }
}
