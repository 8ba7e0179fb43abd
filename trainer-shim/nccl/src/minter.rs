//! A process that mints one id for one generation and keeps its meeting point
//! open until it is stopped.
//!
//! An id costs its minter a thread and a descriptor that NCCL cannot take back,
//! so that it is minted in a process that can be killed. That revokes the id: a
//! rank that has not joined yet finds a closed port.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::MintError;
use crate::unique_id::UniqueId;

/// The program, which is installed beside the agent.
pub const PROGRAM: &str = "holdfast-nccl-mint";

/// Prefix of the reason in the line of a minter that has no id.
pub const REFUSAL: &str = "error: ";

/// Default time limit for a minter.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(10);

/// Longest line of a minter: an id or a reason.
const LINE_BYTES_MAX: usize = 8_192;

/// How a minter is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// Path of the helper.
    pub program: PathBuf,
    /// The library; `None` = where it is found without a path.
    pub library: Option<PathBuf>,
    /// Variables beyond those of this process. The interface that NCCL chooses
    /// must be that of the ranks: `NCCL_SOCKET_IFNAME` and what else they have.
    pub environment: Vec<(OsString, OsString)>,
    /// How long it may take. It takes 10 to 40 ms on an idle host.
    pub deadline: Duration,
}

impl Options {
    /// With the program that lies beside the one that is running.
    pub fn beside_this_program() -> std::io::Result<Options> {
        let program = std::env::current_exe()?.with_file_name(PROGRAM);
        let (library, environment) = (None, Vec::new());
        Ok(Options { program, library, environment, deadline: DEADLINE_DEFAULT })
    }
}

/// The minter of one generation. Dropped, it is killed and reaped: nothing of it
/// stays in this process.
///
/// It ends by itself when this process does, however that ends.
#[derive(Debug)]
pub struct Minter {
    child: Child,
    id: UniqueId,
}

impl Minter {
    /// Starts one, and waits for its id until the deadline. Blocks: not to be
    /// called where tasks run.
    pub fn start(options: &Options) -> Result<Minter, MintError> {
        let deadline = Instant::now() + options.deadline;
        let mut command = Command::new(&options.program);
        command.arg(std::process::id().to_string());
        command.args(&options.library);
        command.envs(options.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Signals of the terminal to this process are not for it.
        command.process_group(0);
        let child = command
            .spawn()
            .map_err(|source| MintError::NotStarted { program: options.program.clone(), source })?;
        // From here on a failure kills it.
        let mut starting = Starting { child: Some(child) };
        let child = starting.child.as_mut().expect("it was just put there");
        let mut output = child.stdout.take().expect("it was piped");
        let line = match read_line(&mut output, deadline)? {
            Line::Whole(line) => line,
            Line::Ended => return Err(MintError::Ended { status: child.wait()? }),
            Line::TooLong => {
                return Err(MintError::Garbled { program: options.program.clone() });
            }
            Line::TooLate => {
                let deadline_ms = options.deadline.as_millis();
                return Err(MintError::TooLate { deadline_ms });
            }
        };
        let id = read_id(&line, &options.program)?;
        let child = starting.child.take().expect("nobody else takes it");
        Ok(Minter { child, id })
    }

    /// The id, good for one generation.
    pub fn id(&self) -> &UniqueId {
        &self.id
    }

    /// Pid of the helper.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A descriptor that is readable once it has ended: then the id is void for
    /// ranks that have not joined.
    pub fn pidfd(&self) -> std::io::Result<OwnedFd> {
        Ok(pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?)
    }

    /// How it ended; `None` while it runs.
    pub fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }
}

impl Drop for Minter {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// A minter that has written no id yet.
struct Starting {
    child: Option<Child>,
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            end(child);
        }
    }
}

fn end(child: &mut Child) {
    let pid = child.id();
    // A helper that has ended already is only reaped.
    if let Err(error) = child.kill().and_then(|()| child.wait()) {
        tracing::error!(%error, pid, "a minter is not reaped");
    }
}

enum Line {
    Whole(String),
    Ended,
    TooLong,
    TooLate,
}

fn read_line(output: &mut ChildStdout, deadline: Instant) -> std::io::Result<Line> {
    let mut bytes = Vec::new();
    let mut piece = [0; 512];
    while bytes.len() <= LINE_BYTES_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Ok(Line::TooLate),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let count = match output.read(&mut piece) {
            Ok(0) => return Ok(Line::Ended),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(&piece[..count]);
        if let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            bytes.truncate(end);
            return Ok(Line::Whole(String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    Ok(Line::TooLong)
}

fn read_id(line: &str, program: &Path) -> Result<UniqueId, MintError> {
    if let Some(reason) = line.strip_prefix(REFUSAL) {
        return Err(MintError::Refused { reason: reason.to_owned() });
    }
    UniqueId::from_hex(line).ok_or_else(|| MintError::Garbled { program: program.to_owned() })
}
