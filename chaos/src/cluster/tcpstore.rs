//! A client of the TCPStore protocol (torch 2.2 and newer), as PyTorch's speaks
//! it to an agent: written from the protocol, not from the agent.
//!
//! One operation byte, then fields without a frame; integers are little-endian,
//! texts have their length before them. A client never reconnects.

use std::io::{Error, Result};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// First bytes of every connection.
pub const MAGIC: u32 = 0x3C85_F7CE;
/// Longest value that is read: workloads write short ones.
const VALUE_BYTES_MAX: u64 = 1024 * 1024;

/// The numbers of the operations.
pub mod op {
    /// The first message; without an answer.
    pub const VALIDATE: u8 = 0;
    /// Sets a key; without an answer.
    pub const SET: u8 = 1;
    /// Sets a key if it has the expected value; answers a value.
    pub const COMPARE_SET: u8 = 2;
    /// Answers a value, an empty one if there is none.
    pub const GET: u8 = 3;
    /// Adds to a number; answers the sum.
    pub const ADD: u8 = 4;
    /// Answers 0 if all keys exist.
    pub const CHECK: u8 = 5;
    /// Answers 0 when all keys exist.
    pub const WAIT: u8 = 6;
    /// Answers how many were deleted.
    pub const DELETE_KEY: u8 = 8;
    /// Answers 1, after a 0 if the wait was over before.
    pub const CANCEL_WAIT: u8 = 12;
    /// Answers what it carries.
    pub const PING: u8 = 13;
}

/// One connection to an agent.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
}

/// A text as it travels.
fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

/// A key as it travels: PyTorch's client puts a `/` before it.
fn key(name: &str) -> Vec<u8> {
    text(format!("/{name}").as_bytes())
}

fn one_key(name: &str) -> Vec<u8> {
    [&1_u64.to_le_bytes()[..], &key(name)].concat()
}

impl Connection {
    /// Connects, and sends the same first bytes as PyTorch's client.
    pub async fn open(address: &str) -> Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut connection = Connection { stream };
        let nonce = std::process::id().to_le_bytes();
        let hello = [&[op::VALIDATE][..], &MAGIC.to_le_bytes(), &[op::PING], &nonce].concat();
        connection.stream.write_all(&hello).await?;
        let mut answer = [0; 4];
        connection.stream.read_exact(&mut answer).await?;
        match answer == nonce {
            true => Ok(connection),
            false => Err(Error::other("a PING was answered with another number")),
        }
    }

    /// SET. When the store has it is known with the next answer on this connection.
    pub async fn set(&mut self, name: &str, value: &str) -> Result<()> {
        self.send(op::SET, &[&key(name), &text(value.as_bytes())]).await
    }

    /// GET; an absent key reads as an empty value.
    pub async fn get(&mut self, name: &str) -> Result<String> {
        self.send(op::GET, &[&key(name)]).await?;
        self.value().await
    }

    /// Sends ADD; answers the sum.
    pub async fn add(&mut self, name: &str, delta: i64) -> Result<i64> {
        self.send(op::ADD, &[&key(name), &delta.to_le_bytes()]).await?;
        self.stream.read_i64_le().await
    }

    /// Sends COMPARE_SET; answers the value that comes back.
    pub async fn compare_set(&mut self, name: &str, from: &str, to: &str) -> Result<String> {
        let values = [text(from.as_bytes()), text(to.as_bytes())].concat();
        self.send(op::COMPARE_SET, &[&key(name), &values]).await?;
        self.value().await
    }

    /// CHECK: whether a key exists.
    pub async fn check(&mut self, name: &str) -> Result<bool> {
        self.send(op::CHECK, &[&one_key(name)]).await?;
        match self.stream.read_u8().await? {
            0 => Ok(true),
            1 => Ok(false),
            other => Err(unexpected("a CHECK", other)),
        }
    }

    /// DELETE_KEY: whether there was one.
    pub async fn delete(&mut self, name: &str) -> Result<bool> {
        self.send(op::DELETE_KEY, &[&key(name)]).await?;
        Ok(self.stream.read_i64_le().await? > 0)
    }

    /// WAIT; taken back after this time. Answers whether the key has existed.
    pub async fn wait(&mut self, name: &str, time_max: Duration) -> Result<bool> {
        self.send(op::WAIT, &[&one_key(name)]).await?;
        match tokio::time::timeout(time_max, self.stream.read_u8()).await {
            Ok(released) => return self.released(released?),
            Err(_) => self.send(op::CANCEL_WAIT, &[]).await?,
        }
        match self.stream.read_u8().await? {
            1 => Ok(false),
            // The release crossed the cancellation.
            other => {
                self.released(other)?;
                match self.stream.read_u8().await? {
                    1 => Ok(true),
                    other => Err(unexpected("a CANCEL_WAIT", other)),
                }
            }
        }
    }

    fn released(&self, answer: u8) -> Result<bool> {
        if answer == 0 { Ok(true) } else { Err(unexpected("a WAIT", answer)) }
    }

    async fn send(&mut self, op: u8, fields: &[&[u8]]) -> Result<()> {
        self.stream.write_all(&[&[op][..], &fields.concat()].concat()).await
    }

    async fn value(&mut self) -> Result<String> {
        let length = self.stream.read_u64_le().await?;
        if length > VALUE_BYTES_MAX {
            return Err(Error::other(format!("an answer of {length} bytes")));
        }
        let mut bytes = Vec::new();
        (&mut self.stream).take(length).read_to_end(&mut bytes).await?;
        match bytes.len() as u64 == length {
            true => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            false => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn unexpected(what: &str, byte: u8) -> Error {
    Error::other(format!("{what} was answered with {byte}"))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;

    use super::*;

    /// Serves one connection: what is sent must be this, each time, and is answered
    /// with that.
    async fn scripted(script: Vec<(&'static str, &'static str)>) -> (String, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let served = async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = [0; 10];
            stream.read_exact(&mut hello).await.unwrap();
            assert_eq!(hex(&hello[..6]), "00cef7853c0d");
            stream.write_all(&hello[6..]).await.unwrap();
            for (sent, answer) in script {
                let mut bytes = vec![0; sent.len() / 2];
                stream.read_exact(&mut bytes).await.unwrap();
                assert_eq!(hex(&bytes), sent);
                stream.write_all(&unhex(answer)).await.unwrap();
            }
        };
        let mut serving = JoinSet::new();
        serving.spawn(served);
        (address, serving)
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn unhex(text: &str) -> Vec<u8> {
        let byte = |n: usize| u8::from_str_radix(&text[n..n + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(byte).collect()
    }

    /// The bytes are those that PyTorch 2.15 and its own server were seen to send.
    #[tokio::test]
    async fn it_speaks_as_pytorch_does() {
        let (address, mut served) = scripted(vec![
            ("0102000000000000002f6b010000000000000076", ""),
            ("0302000000000000002f6b", "010000000000000076"),
            ("0402000000000000002f6ef9ffffffffffffff", "feffffffffffffff"),
            ("05010000000000000002000000000000002f6b", "00"),
            ("0202000000000000002f630000000000000000010000000000000041", "010000000000000041"),
            ("0802000000000000002f6b", "0100000000000000"),
            ("06010000000000000002000000000000002f6b", "00"),
            ("06010000000000000008000000000000002f6d697373696e67", ""),
            ("0c", "01"),
            ("06010000000000000008000000000000002f6d697373696e67", ""),
            ("0c", "0001"),
        ])
        .await;
        let mut store = Connection::open(&address).await.unwrap();
        let (short, long) = (Duration::from_millis(20), Duration::from_secs(60));
        store.set("k", "v").await.unwrap();
        assert_eq!(store.get("k").await.unwrap(), "v");
        assert_eq!(store.add("n", -7).await.unwrap(), -2);
        assert!(store.check("k").await.unwrap());
        assert_eq!(store.compare_set("c", "", "A").await.unwrap(), "A");
        assert!(store.delete("k").await.unwrap());
        assert!(store.wait("k", long).await.unwrap());
        assert!(!store.wait("missing", short).await.unwrap());
        assert!(store.wait("missing", short).await.unwrap());
        served.join_next().await.unwrap().unwrap();
        assert!(store.get("k").await.is_err());
    }
}
