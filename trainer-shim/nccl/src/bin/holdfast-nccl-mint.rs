//! Mints one unique id, writes it as a line to its standard output, and keeps
//! its meeting point open until its standard input closes or its parent ends.
//! [`holdfast_nccl::minter`] starts it.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;

use holdfast_nccl::minter::REFUSAL;
use holdfast_nccl::{Nccl, UniqueId};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec, read};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use rustix::stdio::{dup2_stdout, stderr, stdin, stdout};

/// The lowest number for the descriptor of the answer: not one of the first
/// three.
const ANSWER_DESCRIPTOR_MIN: i32 = 3;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let parent = arguments.next().and_then(|text| text.to_str()?.parse().ok());
    let Some(parent) = parent.and_then(Pid::from_raw) else {
        eprintln!("usage: holdfast-nccl-mint PARENT_PID [LIBRARY]; the agent starts it");
        return ExitCode::from(2);
    };
    let library = arguments.next().map(PathBuf::from);
    match serve(parent, library) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("holdfast-nccl-mint: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(parent: Pid, library: Option<PathBuf>) -> std::io::Result<()> {
    let Some(watched) = watch(parent)? else { return Ok(()) };
    // NCCL writes to its standard output what NCCL_DEBUG asks for.
    let mut answer = File::from(fcntl_dupfd_cloexec(stdout(), ANSWER_DESCRIPTOR_MIN)?);
    dup2_stdout(stderr())?;
    match mint(library) {
        Ok(id) => writeln!(answer, "{}", id.to_hex())?,
        Err(reason) => {
            let reason = reason.replace('\n', " ");
            return writeln!(answer, "{REFUSAL}{reason}");
        }
    }
    drop(answer);
    wait(&watched)
}

fn mint(library: Option<PathBuf>) -> Result<UniqueId, String> {
    let nccl = Nccl::load(library.as_deref()).map_err(|error| error.to_string())?;
    nccl.mint().map_err(|error| error.to_string())
}

/// Descriptor that reports the parent's end; `None` if it has ended. Its closed
/// pipe alone does not: its forked children may hold the other end. The
/// kernel's signal does not, either: it reports the end of a thread.
fn watch(parent: Pid) -> std::io::Result<Option<OwnedFd>> {
    let watched = match pidfd_open(parent, PidfdFlags::empty()) {
        Ok(watched) => watched,
        Err(Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Another process may have its number by now.
    Ok((getppid() == Some(parent)).then_some(watched))
}

fn wait(parent: &OwnedFd) -> std::io::Result<()> {
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(stdin(), PollFlags::IN),
            PollFd::from_borrowed_fd(parent.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[1].revents().is_empty() {
            return Ok(());
        }
        if !fds[0].revents().is_empty() && read(stdin(), &mut [0; 64])? == 0 {
            return Ok(());
        }
    }
}
