//! Messages of keeper and agent: one at a time over a Unix socket that keeps them apart, with
//! descriptors beside it.
//!
//! The keeper does not know the purpose of a listener: `about` is the agent's note for the agent
//! that follows.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Most descriptors beside one.
const DESCRIPTORS_MAX: usize = 2;

/// Message to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// First of all. With the memory for its state and for its session.
    Hello {
        /// An agent was there before.
        again: bool,
    },
    /// A listener that was kept; with it.
    Listener {
        /// By what both know it.
        id: u64,
        /// Its purpose, as the agent noted it.
        about: String,
    },
    /// A connection that was accepted; with it, and with the memory for its journal.
    Connection {
        /// By what both know it; never used again.
        id: u64,
        /// Id of the listener that accepted it.
        listener: u64,
    },
    /// All kept sockets were sent.
    Ready,
    /// A signal reached the keeper, which hands it on.
    Signal {
        /// Number of the signal on this system.
        number: i32,
        /// Whether the kernel sent it to the whole group.
        from_terminal: bool,
    },
}

/// Message to the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToKeeper {
    /// A listener is to be kept; with it.
    Listener {
        /// By what both know it.
        id: u64,
        /// Its purpose, for the agent that follows.
        about: String,
    },
    /// Its connections are to be accepted from now on.
    Accept {
        /// Id of the listener.
        id: u64,
    },
    /// A listener or a connection is over.
    Close {
        /// Id of the listener or connection.
        id: u64,
    },
    /// All handed-over state has been taken up.
    Up,
    /// Another agent is to take over, from the program that is there now.
    Replace,
}

/// Sends a message with its descriptors.
pub fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if bytes.len() > MESSAGE_BYTES_MAX
        || !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors))
    {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
    }
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message; `None` when the other end is closed. One that cannot be read is an error of
/// the kind [`io::ErrorKind::InvalidData`].
pub fn receive<M: DeserializeOwned>(
    socket: impl AsFd,
    flags: RecvFlags,
) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    let descriptors: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    if got.bytes == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(&bytes[..got.bytes])
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((message, descriptors)))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn messages_stay_apart_and_descriptors_go_with_theirs() {
        let kind = SocketType::SEQPACKET;
        let (one, other) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        let listener = ToKeeper::Listener { id: 7, about: "x".to_owned() };
        send(&one, &listener, &[reader.as_fd()]).unwrap();
        send(&one, &ToKeeper::Up, &[]).unwrap();
        drop((one, reader));
        let next = || receive::<ToKeeper>(&other, RecvFlags::empty()).unwrap();
        let (message, mut descriptors) = next().unwrap();
        assert_eq!((message, descriptors.len()), (listener, 1));
        assert_eq!(next().unwrap().0, ToKeeper::Up);
        assert!(next().is_none());
        writer.write_all(b"word").unwrap();
        drop(writer);
        let mut said = String::new();
        File::from(descriptors.remove(0)).read_to_string(&mut said).unwrap();
        assert_eq!(said, "word");
    }
}
