//! Output of the nodes of a development cluster: each line with its node's name.
//!
//! A node must not stop because this program's output is not read. So its lines
//! are always taken, and left out, with a note on how many, while the output
//! takes nothing.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest line; the rest of a longer one is a line of its own.
const LINE_BYTES_MAX: usize = 8 * 1024;

/// Most lines that wait to be written.
const LINES_WAITING_MAX: usize = 4_096;

/// Longest time for the last lines to be written.
const FINISH_TIME_MAX: Duration = Duration::from_secs(1);

/// Most bytes read at a time.
const READ_BYTES: usize = 8 * 1024;

/// Writes lines to standard error, on a thread of its own. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Printer {
    lines: SyncSender<Item>,
}

enum Item {
    Line(Vec<u8>),
    /// All lines before it were written.
    End(SyncSender<()>),
}

impl Printer {
    /// Starts the thread, which ends with the last clone.
    pub(crate) fn start() -> std::io::Result<Printer> {
        let (lines, items) = sync_channel(LINES_WAITING_MAX);
        std::thread::Builder::new().name("lines".to_owned()).spawn(move || print(&items))?;
        Ok(Printer { lines })
    }

    /// Copies a node's output until it ends.
    pub(crate) async fn follow(&self, id: u16, said: Option<impl AsyncRead + Unpin>) {
        let Some(mut said) = said else { return };
        let (mut lines, mut left_out) = (Lines::new(id), 0_u64);
        let mut bytes = vec![0; READ_BYTES];
        loop {
            // A broken pipe counts as the end.
            let read = said.read(&mut bytes).await.unwrap_or(0);
            let whole = if read == 0 { lines.end() } else { lines.push(&bytes[..read]) };
            for line in whole {
                self.hand_on(id, line, &mut left_out);
            }
            if read == 0 {
                return;
            }
        }
    }

    fn hand_on(&self, id: u16, line: Vec<u8>, left_out: &mut u64) {
        if *left_out > 0 {
            let gap = format!("node {id} | … {left_out} lines are left out: nobody read them\n");
            if self.lines.try_send(Item::Line(gap.into_bytes())).is_ok() {
                *left_out = 0;
            }
        }
        if let Err(TrySendError::Full(_)) = self.lines.try_send(Item::Line(line)) {
            *left_out += 1;
        }
    }

    /// Returns once all lines are written, or the output is closed.
    pub(crate) fn finish(&self) {
        let (written, done) = sync_channel(1);
        if self.lines.try_send(Item::End(written)).is_ok() {
            let _ = done.recv_timeout(FINISH_TIME_MAX);
        }
    }
}

fn print(items: &Receiver<Item>) {
    while let Ok(item) = items.recv() {
        match item {
            // A failure here cannot be reported.
            Item::Line(line) => drop(std::io::stderr().lock().write_all(&line)),
            Item::End(written) => drop(written.try_send(())),
        }
    }
}

/// Splits bytes into lines of bounded length, each with its node's name in front.
struct Lines {
    prefix: String,
    begun: Vec<u8>,
}

impl Lines {
    fn new(id: u16) -> Lines {
        Lines { prefix: format!("node {id} | "), begun: Vec::new() }
    }

    /// The lines that these bytes complete.
    fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut whole = Vec::new();
        for byte in bytes {
            if *byte != b'\n' {
                self.begun.push(*byte);
            }
            if *byte == b'\n' || self.begun.len() >= LINE_BYTES_MAX {
                whole.push(self.line());
            }
        }
        whole
    }

    /// The rest of a line without a line feed.
    fn end(&mut self) -> Vec<Vec<u8>> {
        if self.begun.is_empty() { Vec::new() } else { vec![self.line()] }
    }

    fn line(&mut self) -> Vec<u8> {
        let begun = std::mem::take(&mut self.begun);
        [self.prefix.as_bytes(), &begun, b"\n"].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: Vec<Vec<u8>>) -> Vec<String> {
        lines.into_iter().map(|line| String::from_utf8(line).unwrap()).collect()
    }

    #[test]
    fn each_line_names_its_node_however_it_arrives() {
        let mut lines = Lines::new(2);
        assert_eq!(text(lines.push(b"one\ntw")), ["node 2 | one\n"]);
        assert_eq!(text(lines.push(b"o\n\nthree")), ["node 2 | two\n", "node 2 | \n"]);
        assert_eq!(text(lines.end()), ["node 2 | three\n"]);
        assert!(lines.end().is_empty());
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let mut lines = Lines::new(1);
        let whole = lines.push(&vec![b'x'; LINE_BYTES_MAX * 3 + 5]);
        assert_eq!(whole.len(), 3);
        assert!(whole.iter().all(|line| line.len() <= LINE_BYTES_MAX + 10));
        assert_eq!(text(lines.end()), ["node 1 | xxxxx\n"]);
    }

    #[tokio::test]
    async fn a_node_is_read_to_its_end_although_nobody_reads_its_lines() {
        let (lines, waiting) = sync_channel(2);
        let printer = Printer { lines };
        printer.follow(1, Some(&b"a\nb\nc\nd\n"[..])).await;
        let kept = [waiting.try_recv().unwrap(), waiting.try_recv().unwrap()];
        assert!(
            matches!(&kept[..], [Item::Line(a), Item::Line(b)] if a == b"node 1 | a\n" && b == b"node 1 | b\n")
        );
        let mut left_out = 2;
        printer.hand_on(1, b"node 1 | e\n".to_vec(), &mut left_out);
        let Ok(Item::Line(gap)) = waiting.try_recv() else { panic!("a word on the gap") };
        assert!(String::from_utf8(gap).unwrap().contains("2 lines are left out"));
        assert_eq!(left_out, 0);
    }
}
