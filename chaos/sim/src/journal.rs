//! Events of a run, line by line: the same seed writes the same bytes.

use std::fmt;
use std::io::Write;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::host::HostId;

/// The lines so far. Cheap to clone.
#[derive(Clone)]
pub struct Journal(Arc<Mutex<State>>);

struct State {
    /// Simulated milliseconds since the beginning.
    now: u64,
    /// The host that runs now.
    turn: Option<HostId>,
    lines: u64,
    /// FNV-1a over all bytes.
    digest: u64,
    out: Option<Box<dyn Write + Send>>,
    /// The last ones, for a report.
    line: String,
}

impl Journal {
    /// A journal that is written out here, if anywhere.
    pub fn new(out: Option<Box<dyn Write + Send>>) -> Journal {
        let digest = 0xcbf2_9ce4_8422_2325;
        let state = State { now: 0, turn: None, lines: 0, digest, out, line: String::new() };
        Journal(Arc::new(Mutex::new(state)))
    }

    /// It is this time, in milliseconds.
    pub fn set_now(&self, now: u64) {
        self.0.lock().now = now;
    }

    /// Simulated milliseconds since the beginning.
    pub fn now(&self) -> u64 {
        self.0.lock().now
    }

    /// Sets the host that runs from now on.
    pub fn set_turn(&self, turn: Option<HostId>) {
        self.0.lock().turn = turn;
    }

    /// The host that runs now.
    pub fn turn(&self) -> Option<HostId> {
        self.0.lock().turn
    }

    /// Writes one line: the time, the host that runs now, and `what`.
    pub fn note(&self, what: impl fmt::Display) {
        let mut state = self.0.lock();
        let mut line = std::mem::take(&mut state.line);
        line.clear();
        let written = match state.turn {
            Some(turn) => fmt::write(&mut line, format_args!("{:>6} {turn} {what}\n", state.now)),
            None => fmt::write(&mut line, format_args!("{:>6} {what}\n", state.now)),
        };
        written.expect("a string takes what is written to it");
        state.lines += 1;
        for byte in line.as_bytes() {
            state.digest = (state.digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if let Some(out) = &mut state.out
            && out.write_all(line.as_bytes()).is_err()
        {
            // The reader has gone.
            state.out = None;
        }
        state.line = line;
    }

    /// How many lines there are, and a digest of them.
    pub fn digest(&self) -> (u64, u64) {
        let mut state = self.0.lock();
        if let Some(out) = &mut state.out
            && out.flush().is_err()
        {
            state.out = None;
        }
        (state.lines, state.digest)
    }
}

/// Takes what the nodes and the clients log.
impl tracing_subscriber::fmt::MakeWriter<'_> for Journal {
    type Writer = Line;

    fn make_writer(&self) -> Line {
        Line { journal: self.clone(), bytes: Vec::new() }
    }
}

/// One line that is being logged.
pub struct Line {
    journal: Journal,
    bytes: Vec<u8>,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.bytes);
        if !text.trim().is_empty() {
            self.journal.note(format_args!("says {}", text.trim_end()));
        }
    }
}
