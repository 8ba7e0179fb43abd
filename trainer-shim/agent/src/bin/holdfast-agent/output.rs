//! Lines for people, written by a separate thread: a reader that does not read
//! holds up nothing else.
//!
//! `tracing-appender` is not used for this: its guard prints, at the end, that its
//! thread is stuck, and blocks itself on a pipe without a reader.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tracing_subscriber::fmt::MakeWriter;

/// Most lines that wait to be written, and most of their bytes. Further ones are
/// dropped, and counted.
const LINES_MAX: usize = 4_096;
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long an end waits until all is written.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(1);
/// Pause between two tries to get into a queue that is full.
const FLUSH_PAUSE: Duration = Duration::from_millis(10);

/// Queued lines. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Lines {
    queue: SyncSender<Entry>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Bytes of queued lines.
    bytes: AtomicUsize,
    /// Dropped lines that are not reported yet.
    dropped: AtomicU64,
    /// Whether lines are JSON objects.
    json: AtomicBool,
}

#[derive(Debug)]
enum Entry {
    Line(Vec<u8>),
    /// Answered when all before it is written.
    Mark(SyncSender<()>),
}

impl Lines {
    /// Lines to this writer; only its thread waits for the reader.
    pub fn to(writer: impl Write + Send + 'static) -> io::Result<Lines> {
        let (queue, entries) = sync_channel(LINES_MAX);
        let shared = Arc::<Shared>::default();
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new().name("output".to_owned());
        thread.spawn(move || write(&entries, writer, &own))?;
        Ok(Lines { queue, shared })
    }

    /// From now on lines are JSON objects, also those about dropped lines.
    pub fn are_json(&self) {
        self.shared.json.store(true, Ordering::Relaxed);
    }

    /// Queues a line and its line break; a line that does not fit is dropped and counted.
    pub fn say(&self, line: impl Display) {
        self.push(format!("{line}\n").into_bytes());
    }

    /// Queues a line as it is.
    pub fn push(&self, line: Vec<u8>) {
        let bytes = line.len();
        let waiting = self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = waiting.saturating_add(bytes) <= BYTES_MAX;
        if !fits || self.queue.try_send(Entry::Line(line)).is_err() {
            self.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all is written, for a while.
    pub fn flush(&self) {
        let until = Instant::now() + FLUSH_TIME_MAX;
        let (done, written) = sync_channel(1);
        let mut mark = Entry::Mark(done);
        loop {
            match self.queue.try_send(mark) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) if Instant::now() < until => mark = back,
                Err(_) => return,
            }
            thread::sleep(FLUSH_PAUSE);
        }
        // Late: it is not waited for.
        let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Lines;

    fn make_writer(&'a self) -> &'a Lines {
        self
    }
}

/// Writes queued entries, until all senders are gone.
fn write(entries: &Receiver<Entry>, mut writer: impl Write, shared: &Shared) {
    for entry in entries {
        match entry {
            Entry::Line(line) => {
                let written = writer.write_all(&line);
                shared.bytes.fetch_sub(line.len(), Ordering::Relaxed);
                // The reader may have gone, or the disk is full: the error cannot
                // be reported, and the next write may succeed.
                if written.is_err() {
                    shared.dropped.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let dropped = shared.dropped.swap(0, Ordering::Relaxed);
                let json = shared.json.load(Ordering::Relaxed);
                if dropped > 0 && writer.write_all(dropped_line(dropped, json).as_bytes()).is_err()
                {
                    shared.dropped.fetch_add(dropped, Ordering::Relaxed);
                }
            }
            Entry::Mark(done) => {
                let _ = writer.flush();
                // The caller may wait no more.
                let _ = done.try_send(());
            }
        }
    }
}

fn dropped_line(dropped: u64, json: bool) -> String {
    let now = humantime::format_rfc3339_micros(SystemTime::now());
    let lines = if dropped == 1 { "1 line was" } else { &*format!("{dropped} lines were") };
    let message = format!("{lines} dropped here: nobody took them in time");
    if json {
        format!(
            "{{\"timestamp\":\"{now}\",\"level\":\"WARN\",\"message\":\"{message}\",\
             \"target\":\"holdfast_agent\",\"dropped\":{dropped}}}\n"
        )
    } else {
        format!("{now}  WARN holdfast_agent: {message}\n")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Waits for a leave to write, each time; fails when there is none any more.
    struct Gate {
        leaves: Receiver<()>,
        written: Sender<String>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.leaves.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            self.written.send(String::from_utf8_lossy(bytes).into_owned()).unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn gated() -> (Lines, Sender<()>, Receiver<String>) {
        let (leave, leaves) = channel();
        let (written, read) = channel();
        (Lines::to(Gate { leaves, written }).unwrap(), leave, read)
    }

    #[test]
    fn what_is_too_much_is_dropped_and_counted_and_the_count_is_told() {
        let (lines, leave, read) = gated();
        const MORE: usize = 100;
        for n in 0..LINES_MAX + 1 + MORE {
            lines.say(n);
        }
        leave.send(()).unwrap();
        assert_eq!(read.recv().unwrap(), "0\n");
        leave.send(()).unwrap();
        let told = read.recv().unwrap();
        // The first may have been taken out before the queue was full, or not.
        let expected = [MORE, MORE + 1].map(|count| format!("{count} lines were dropped here"));
        assert!(expected.iter().any(|expected| told.contains(expected)), "{told}");
        assert!(told.contains(" WARN ") && told.ends_with('\n'), "{told}");
        for _ in 0..10 {
            leave.send(()).unwrap();
        }
        assert_eq!(read.recv().unwrap(), "1\n");
        assert_eq!(read.recv().unwrap(), "2\n", "the count is told once");
    }

    #[test]
    fn long_lines_are_bounded_by_their_bytes() {
        let (lines, leave, read) = gated();
        for _ in 0..5 {
            lines.push(vec![b'x'; BYTES_MAX / 4]);
        }
        leave.send(()).unwrap();
        leave.send(()).unwrap();
        assert_eq!(read.recv().unwrap().len(), BYTES_MAX / 4);
        assert!(read.recv().unwrap().contains("1 line was dropped here"));
        lines.are_json();
        lines.say("fits");
        drop(leave);
    }

    #[test]
    fn an_end_waits_for_what_can_be_written_and_not_for_ever() {
        let (lines, leave, read) = gated();
        lines.say("a");
        lines.flush();
        assert!(read.try_recv().is_err(), "nobody let it be written");
        leave.send(()).unwrap();
        assert_eq!(read.recv().unwrap(), "a\n");
        leave.send(()).unwrap();
        lines.say("b");
        let begun = Instant::now();
        lines.flush();
        // It is written by then, unless this machine was so slow that the wait was over.
        let waited = begun.elapsed() >= FLUSH_TIME_MAX;
        let written = if waited { read.recv().unwrap() } else { read.try_recv().unwrap() };
        assert_eq!(written, "b\n");
        // A reader that has gone holds up no other.
        drop(leave);
        lines.say("c");
        lines.flush();
        assert!(read.try_recv().is_err());
    }

    #[test]
    fn in_a_log_of_objects_the_count_is_one_too() {
        let object: serde_json::Value = serde_json::from_str(&dropped_line(7, true)).unwrap();
        assert_eq!(object["dropped"], 7);
        assert!(object["message"].as_str().unwrap().contains("7 lines were dropped"));
    }
}
