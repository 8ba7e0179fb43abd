//! Non-blocking sockets that an abort interrupts at any point.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt};

use super::shared::{Shared, Stop};
use super::wire::{ANSWER_BYTES_MAX, Answer};

/// How a connection ended, or why there is none.
#[derive(Debug)]
pub(super) enum Broken {
    Stop(Stop),
    Io(io::Error),
}

impl From<Stop> for Broken {
    fn from(stop: Stop) -> Broken {
        Broken::Stop(stop)
    }
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Broken {
        Broken::Io(error)
    }
}

impl Broken {
    /// An abort stays one; what else happened is for the caller to judge.
    pub(super) fn stop(self, judge: impl FnOnce(io::Error) -> Stop) -> Stop {
        match self {
            Broken::Stop(stop) => stop,
            Broken::Io(error) => judge(error),
        }
    }
}

/// Connects; retries after growing pauses while the port is closed.
pub(super) fn connect(
    shared: &Shared,
    address: SocketAddr,
    retries: u32,
    pause: Duration,
) -> Result<Arc<TcpStream>, Broken> {
    for attempt in 1..=retries {
        match try_connect(shared, address) {
            Err(Broken::Io(error))
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionRefused | ErrorKind::TimedOut | ErrorKind::HostUnreachable
                ) =>
            {
                sleep(shared, pause * attempt)?;
            }
            other => return other,
        }
    }
    try_connect(shared, address)
}

fn try_connect(shared: &Shared, address: SocketAddr) -> Result<Arc<TcpStream>, Broken> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
        .map_err(io::Error::from)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            wait_for(shared, &socket, PollFlags::OUT)?;
            sockopt::socket_error(&socket).map_err(io::Error::from)?.map_err(io::Error::from)?;
        }
        Err(error) => return Err(Broken::Io(error.into())),
    }
    let stream = TcpStream::from(socket);
    if stream.local_addr()? == stream.peer_addr()? {
        // The port has no listener: the kernel chose the same port for this end,
        // which connects a socket to itself.
        return Err(Broken::Io(ErrorKind::ConnectionRefused.into()));
    }
    stream.set_nodelay(true)?;
    Ok(shared.adopt(stream)?)
}

fn sleep(shared: &Shared, pause: Duration) -> Result<(), Stop> {
    let end = Instant::now() + pause;
    loop {
        let rest = end.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Ok(());
        }
        shared.wait(&[], Some(rest))?;
    }
}

/// A socket that listens without blocking.
pub(super) fn listen(shared: &Shared) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((shared.ring.address, 0))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

pub(super) fn accept(shared: &Shared, listener: &TcpListener) -> Result<Arc<TcpStream>, Broken> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                return Ok(shared.adopt(stream)?);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait_for(shared, listener, PollFlags::IN)?;
            }
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(Broken::Io(error)),
        }
    }
}

pub(super) fn send(
    shared: &Shared,
    mut stream: &TcpStream,
    mut bytes: &[u8],
) -> Result<(), Broken> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(Broken::Io(ErrorKind::WriteZero.into())),
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait_for(shared, stream, PollFlags::OUT)?;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Broken::Io(error)),
        }
    }
    Ok(())
}

pub(super) fn receive(
    shared: &Shared,
    mut stream: &TcpStream,
    bytes: &mut [u8],
) -> Result<(), Broken> {
    let mut received = 0;
    while received < bytes.len() {
        match stream.read(&mut bytes[received..]) {
            Ok(0) => return Err(Broken::Io(ErrorKind::UnexpectedEof.into())),
            Ok(count) => received += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait_for(shared, stream, PollFlags::IN)?;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Broken::Io(error)),
        }
    }
    Ok(())
}

/// Receives a body with its length before it; None if it is too long, which
/// leaves the connection of no use.
pub(super) fn receive_framed(
    shared: &Shared,
    stream: &TcpStream,
    bytes_max: usize,
) -> Result<Option<Vec<u8>>, Broken> {
    let mut length = [0; 2];
    receive(shared, stream, &mut length)?;
    let length = usize::from(u16::from_le_bytes(length));
    if length > bytes_max {
        return Ok(None);
    }
    let mut body = vec![0; length];
    receive(shared, stream, &mut body)?;
    Ok(Some(body))
}

/// Receives an answer; None if it cannot be understood.
pub(super) fn receive_answer(
    shared: &Shared,
    stream: &TcpStream,
) -> Result<Option<Answer>, Broken> {
    let body = receive_framed(shared, stream, ANSWER_BYTES_MAX)?;
    Ok(body.and_then(|body| Answer::decode(&body)))
}

fn wait_for(shared: &Shared, socket: &impl AsFd, flags: PollFlags) -> Result<(), Stop> {
    loop {
        let ready = shared.wait(&[(socket.as_fd(), flags)], None)?;
        if ready.iter().any(|flags| !flags.is_empty()) {
            return Ok(());
        }
    }
}
