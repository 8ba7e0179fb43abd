//! Messages and replies of the TCPStore protocol as values, and as bytes.
//!
//! The protocol has neither frames nor request ids: an operation byte, then
//! its fields, all integers little-endian. Replies come in the order of the
//! requests. The source is PyTorch's `TCPStoreBackend.hpp`, operations as
//! numbered since torch 2.2.

use std::fmt;

use holdfast_api::{Blob, KeyValue};

/// The number that a VALIDATE must carry.
pub(super) const VALIDATE_MAGIC: u32 = 0x3C85_F7CE;

/// Operations, by their byte on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the protocol's own; Message documents them")]
pub enum Op {
    Validate = 0,
    Set = 1,
    CompareSet = 2,
    Get = 3,
    Add = 4,
    Check = 5,
    Wait = 6,
    GetNumKeys = 7,
    DeleteKey = 8,
    Append = 9,
    MultiGet = 10,
    MultiSet = 11,
    CancelWait = 12,
    Ping = 13,
    QueuePush = 14,
    QueuePop = 15,
    QueueLen = 16,
    ListKeys = 17,
    Barrier = 18,
}

impl Op {
    /// All of them, in the order of their bytes.
    pub const ALL: [Op; 19] = [
        Op::Validate,
        Op::Set,
        Op::CompareSet,
        Op::Get,
        Op::Add,
        Op::Check,
        Op::Wait,
        Op::GetNumKeys,
        Op::DeleteKey,
        Op::Append,
        Op::MultiGet,
        Op::MultiSet,
        Op::CancelWait,
        Op::Ping,
        Op::QueuePush,
        Op::QueuePop,
        Op::QueueLen,
        Op::ListKeys,
        Op::Barrier,
    ];

    /// The operation with this byte.
    pub(super) fn from_byte(byte: u8) -> Option<Op> {
        Op::ALL.get(usize::from(byte)).copied()
    }

    /// Its name in PyTorch's source.
    pub fn name(self) -> &'static str {
        match self {
            Op::Validate => "VALIDATE",
            Op::Set => "SET",
            Op::CompareSet => "COMPARE_SET",
            Op::Get => "GET",
            Op::Add => "ADD",
            Op::Check => "CHECK",
            Op::Wait => "WAIT",
            Op::GetNumKeys => "GETNUMKEYS",
            Op::DeleteKey => "DELETE_KEY",
            Op::Append => "APPEND",
            Op::MultiGet => "MULTI_GET",
            Op::MultiSet => "MULTI_SET",
            Op::CancelWait => "CANCEL_WAIT",
            Op::Ping => "PING",
            Op::QueuePush => "QUEUE_PUSH",
            Op::QueuePop => "QUEUE_POP",
            Op::QueueLen => "QUEUE_LEN",
            Op::ListKeys => "LIST_KEYS",
            Op::Barrier => "BARRIER",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A complete message of a client. Keys are as on the wire: PyTorch's client
/// puts a `/` in front of all of them but `init/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Opens a connection; not answered.
    Validate,
    /// Sets a key; not answered.
    Set {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Value from now on: any bytes, up to `value_bytes_max`; may be empty.
        value: Blob,
    },
    /// Sets a key if it has the expected value; answered with the value that
    /// the client then believes in, [`Reply::Value`].
    CompareSet {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Value that must be there; empty also matches an absent key.
        expected: Blob,
        /// Value to put there.
        desired: Blob,
    },
    /// Answered with [`Reply::Value`], empty if the key is absent.
    Get {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
    },
    /// Adds to a decimal number; answered with the sum, [`Reply::Number`].
    Add {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Number to add; wraps at the bounds of `i64` as TCPStore does.
        delta: i64,
    },
    /// Whether all keys exist; answered with [`Reply::Checked`].
    Check {
        /// Keys to look for.
        keys: Vec<Blob>,
    },
    /// Answered with [`Reply::Released`] once all keys exist.
    Wait {
        /// Keys that must exist.
        keys: Vec<Blob>,
    },
    /// Asks for the number of keys; answered with [`Reply::Number`].
    GetNumKeys,
    /// Answered with the number of keys deleted, [`Reply::Number`].
    DeleteKey {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
    },
    /// Appends to a value; not answered.
    Append {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Bytes to add at the end of the value.
        value: Blob,
    },
    /// Gets several keys; answered with [`Reply::Values`].
    MultiGet {
        /// Keys to read, in the order of the reply's values.
        keys: Vec<Blob>,
    },
    /// Sets several keys; not answered.
    MultiSet {
        /// The keys and their new values.
        entries: Vec<KeyValue>,
    },
    /// Gives up a WAIT or BARRIER; always answered with [`Reply::Cancelled`].
    CancelWait,
    /// Asks for the nonce back; answered with [`Reply::Pong`].
    Ping {
        /// Chosen by the client.
        nonce: u32,
    },
    /// Puts a value at the end of a queue; not answered.
    QueuePush {
        /// Key of the queue: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Value: any bytes, up to `value_bytes_max`; may be empty.
        value: Blob,
    },
    /// Takes the value at the front of a queue; answered with [`Reply::Popped`].
    QueuePop {
        /// Key of the queue: any bytes, up to `key_bytes_max`.
        key: Blob,
    },
    /// Asks for the length of a queue; answered with [`Reply::Number`].
    QueueLen {
        /// Key of the queue: any bytes, up to `key_bytes_max`.
        key: Blob,
    },
    /// Asks for the names of all keys; answered with [`Reply::Keys`].
    ListKeys,
    /// Adds one to the number at the key; answered with [`Reply::Released`]
    /// once it is at least the world size.
    Barrier {
        /// The key of the counter.
        key: Blob,
        /// Number of arrivals that release all.
        world_size: i64,
    },
}

impl Message {
    /// Whether clients send it repeatedly beside their work, or while idle:
    /// heartbeats, and waits by polling.
    pub(super) fn is_poll(&self) -> bool {
        matches!(
            self,
            Message::Validate | Message::Ping { .. } | Message::CancelWait | Message::Check { .. }
        )
    }

    /// The key that it is about, the first of several.
    pub(super) fn first_key(&self) -> Option<&Blob> {
        match self {
            Message::Set { key, .. }
            | Message::CompareSet { key, .. }
            | Message::Get { key }
            | Message::Add { key, .. }
            | Message::DeleteKey { key }
            | Message::Append { key, .. }
            | Message::QueuePush { key, .. }
            | Message::QueuePop { key }
            | Message::QueueLen { key }
            | Message::Barrier { key, .. } => Some(key),
            Message::Check { keys } | Message::Wait { keys } | Message::MultiGet { keys } => {
                keys.first()
            }
            Message::MultiSet { entries } => entries.first().map(|entry| &entry.key),
            Message::Validate
            | Message::GetNumKeys
            | Message::CancelWait
            | Message::Ping { .. }
            | Message::ListKeys => None,
        }
    }

    /// The same message with other keys.
    pub(super) fn with_keys(mut self, change: impl Fn(Blob) -> Blob) -> Message {
        let replace = |key: &mut Blob| *key = change(key.clone());
        match &mut self {
            Message::Set { key, .. }
            | Message::CompareSet { key, .. }
            | Message::Get { key }
            | Message::Add { key, .. }
            | Message::DeleteKey { key }
            | Message::Append { key, .. }
            | Message::QueuePush { key, .. }
            | Message::QueuePop { key }
            | Message::QueueLen { key }
            | Message::Barrier { key, .. } => replace(key),
            Message::Check { keys } | Message::Wait { keys } | Message::MultiGet { keys } => {
                keys.iter_mut().for_each(replace);
            }
            Message::MultiSet { entries } => {
                entries.iter_mut().for_each(|entry| replace(&mut entry.key));
            }
            Message::Validate
            | Message::GetNumKeys
            | Message::CancelWait
            | Message::Ping { .. }
            | Message::ListKeys => {}
        }
        self
    }

    /// Operation of the message.
    pub fn op(&self) -> Op {
        match self {
            Message::Validate => Op::Validate,
            Message::Set { .. } => Op::Set,
            Message::CompareSet { .. } => Op::CompareSet,
            Message::Get { .. } => Op::Get,
            Message::Add { .. } => Op::Add,
            Message::Check { .. } => Op::Check,
            Message::Wait { .. } => Op::Wait,
            Message::GetNumKeys => Op::GetNumKeys,
            Message::DeleteKey { .. } => Op::DeleteKey,
            Message::Append { .. } => Op::Append,
            Message::MultiGet { .. } => Op::MultiGet,
            Message::MultiSet { .. } => Op::MultiSet,
            Message::CancelWait => Op::CancelWait,
            Message::Ping { .. } => Op::Ping,
            Message::QueuePush { .. } => Op::QueuePush,
            Message::QueuePop { .. } => Op::QueuePop,
            Message::QueueLen { .. } => Op::QueueLen,
            Message::ListKeys => Op::ListKeys,
            Message::Barrier { .. } => Op::Barrier,
        }
    }

    /// Appends its bytes, as a client would send them.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.op() as u8);
        match self {
            Message::Validate => out.extend(VALIDATE_MAGIC.to_le_bytes()),
            Message::GetNumKeys | Message::CancelWait | Message::ListKeys => {}
            Message::Set { key, value }
            | Message::Append { key, value }
            | Message::QueuePush { key, value } => {
                put_blob(out, key);
                put_blob(out, value);
            }
            Message::CompareSet { key, expected, desired } => {
                put_blob(out, key);
                put_blob(out, expected);
                put_blob(out, desired);
            }
            Message::Get { key }
            | Message::DeleteKey { key }
            | Message::QueuePop { key }
            | Message::QueueLen { key } => put_blob(out, key),
            Message::Add { key, delta: number } | Message::Barrier { key, world_size: number } => {
                put_blob(out, key);
                out.extend(number.to_le_bytes());
            }
            Message::Check { keys } | Message::Wait { keys } | Message::MultiGet { keys } => {
                put_length(out, keys.len());
                keys.iter().for_each(|key| put_blob(out, key));
            }
            Message::MultiSet { entries } => {
                put_length(out, entries.len());
                for entry in entries {
                    put_blob(out, &entry.key);
                    put_blob(out, &entry.value);
                }
            }
            Message::Ping { nonce } => out.extend(nonce.to_le_bytes()),
        }
    }
}

/// An answer to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To GET and COMPARE_SET.
    Value(Blob),
    /// To ADD, GETNUMKEYS, DELETE_KEY and QUEUE_LEN.
    Number(i64),
    /// To CHECK: whether all keys exist.
    Checked(bool),
    /// To WAIT and BARRIER.
    Released,
    /// To CANCEL_WAIT, whether or not a wait was open.
    Cancelled,
    /// To PING: the nonce that the client sent.
    Pong(u32),
    /// To MULTI_GET: one for each key asked, in that order.
    Values(Vec<Blob>),
    /// To QUEUE_POP: the length of the queue, and the value that was taken.
    Popped {
        /// Length before the pop.
        length: i64,
        /// The front, unless the length is 0.
        front: Option<Blob>,
    },
    /// To LIST_KEYS: the names of all keys.
    Keys(Vec<Blob>),
}

impl Reply {
    /// Appends the encoded message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        const READY: u8 = 0;
        const NOT_READY: u8 = 1;
        const STOP_WAITING: u8 = 0;
        const WAIT_CANCELLED: u8 = 1;
        match self {
            Reply::Value(value) => put_blob(out, value),
            Reply::Number(number) => out.extend(number.to_le_bytes()),
            Reply::Checked(all_exist) => out.push(if *all_exist { READY } else { NOT_READY }),
            Reply::Released => out.push(STOP_WAITING),
            Reply::Cancelled => out.push(WAIT_CANCELLED),
            Reply::Pong(nonce) => out.extend(nonce.to_le_bytes()),
            Reply::Values(values) => values.iter().for_each(|value| put_blob(out, value)),
            Reply::Popped { length, front } => {
                out.extend(length.to_le_bytes());
                front.iter().for_each(|value| put_blob(out, value));
            }
            Reply::Keys(keys) => {
                put_length(out, keys.len());
                keys.iter().for_each(|key| put_blob(out, key));
            }
        }
    }
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    out.extend((length as u64).to_le_bytes());
}

fn put_blob(out: &mut Vec<u8>, blob: &Blob) {
    put_length(out, blob.len());
    out.extend_from_slice(blob.as_bytes());
}
