//! How far the log of an agent was shown, and by which process: of all commands
//! of an agent one shows its log, each line once; when it ends, another one goes on.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg, OFlag};

use super::place::Place;

/// Most bytes read at once, and the longest line that is kept in one piece.
const PIECE_BYTES: usize = 64 * 1024;
/// Longest text of a mark.
const MARK_BYTES_MAX: u64 = 64;

/// A place in a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Position {
    /// Which file: a full log is replaced by another one.
    inode: u64,
    bytes: u64,
}

/// New lines of a log, for one of the commands that show it.
#[derive(Debug)]
pub struct NewLines {
    place: Place,
    at: Position,
    mark: Option<Mark>,
}

/// Held by the process that shows the log; has the position reached.
#[derive(Debug)]
struct Mark(Flock<File>);

impl Position {
    fn end_of(path: &Path) -> Position {
        // None is there yet: its first line will be new.
        let found = fs::metadata(path);
        found.map(|file| Position { inode: file.ino(), bytes: file.len() }).unwrap_or_default()
    }

    /// Where a process that came at `self` goes on, when another one has shown the log as far as
    /// `shown`.
    fn resumed(self, shown: Position, present: u64) -> Position {
        match shown.inode {
            inode if inode == self.inode => Position { bytes: self.bytes.max(shown.bytes), ..self },
            inode if inode == present => shown,
            _ => self,
        }
    }
}

impl Mark {
    /// None if another process holds it.
    fn take(path: &Path) -> io::Result<Option<Mark>> {
        let mut options = File::options();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = options.custom_flags(flags.bits()).open(path)?;
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        Ok(Flock::lock(file, FlockArg::LockExclusiveNonblock).ok().map(Mark))
    }

    fn read(&self) -> Option<Position> {
        let mut text = String::new();
        (&*self.0).take(MARK_BYTES_MAX).read_to_string(&mut text).ok()?;
        let (inode, bytes) = text.strip_suffix('\n')?.split_once(' ')?;
        Some(Position { inode: inode.parse().ok()?, bytes: bytes.parse().ok()? })
    }

    fn write(&self, Position { inode, bytes }: Position) -> io::Result<()> {
        self.0.set_len(0)?;
        self.0.write_all_at(format!("{inode} {bytes}\n").as_bytes(), 0)
    }
}

impl NewLines {
    /// From now on, of the agent at this place.
    pub fn of(place: Place) -> NewLines {
        NewLines { at: Position::end_of(&place.log()), place, mark: None }
    }

    /// Whether this process shows the lines: true as soon as no other does.
    pub fn are_mine(&mut self) -> io::Result<bool> {
        if self.mark.is_none()
            && let Some(mark) = Mark::take(&self.place.shown())?
        {
            let present = Position::end_of(&self.place.log()).inode;
            self.at = mark.read().map_or(self.at, |shown| self.at.resumed(shown, present));
            self.mark = Some(mark);
        }
        Ok(self.mark.is_some())
    }

    /// Shows whole lines that are new; all that is there, if it is the `last` time.
    pub fn show(&mut self, last: bool, mut line: impl FnMut(&[u8])) -> io::Result<()> {
        let before = self.at;
        let present = Position::end_of(&self.place.log());
        if present.inode != self.at.inode {
            let older = self.place.older_log();
            if older.exists() && Position::end_of(&older).inode == self.at.inode {
                self.read(&older, true, &mut line)?;
            }
            self.at = Position { inode: present.inode, bytes: 0 };
        } else if present.bytes < self.at.bytes {
            // Another file, to which the system gave the number of one that is gone.
            self.at.bytes = 0;
        }
        if present.bytes > self.at.bytes {
            self.read(&self.place.log(), last, &mut line)?;
        }
        match &self.mark {
            Some(mark) if self.at != before => mark.write(self.at),
            _ => Ok(()),
        }
    }

    /// Reads on in a file, which is no other one.
    fn read(&mut self, path: &Path, whole: bool, line: &mut impl FnMut(&[u8])) -> io::Result<()> {
        let mut file = File::open(path)?;
        if file.metadata()?.ino() != self.at.inode {
            return Ok(());
        }
        file.seek(SeekFrom::Start(self.at.bytes))?;
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        loop {
            piece.clear();
            let read = (&mut file).take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
            let full = read == PIECE_BYTES;
            let end = piece.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
            let end = match end {
                // The rest of a line comes with the next piece.
                Some(end) if full || !whole => end,
                None if !full && !whole => 0,
                _ => read,
            };
            piece[..end].split_inclusive(|byte| *byte == b'\n').for_each(&mut *line);
            self.at.bytes += end as u64;
            if !full {
                return Ok(());
            }
            file.seek(SeekFrom::Start(self.at.bytes))?;
        }
    }
}

impl Drop for NewLines {
    fn drop(&mut self) {
        // Leave no file of an agent that never ran: the sweep finds files by their log.
        if self.mark.is_some() && !self.place.log().exists() {
            let _ = fs::remove_file(self.place.shown());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::control::log;

    fn say(place: &Place, text: &str) {
        log::open(&place.log()).unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn rotate(place: &Place) {
        fs::rename(place.log(), place.older_log()).unwrap();
    }

    fn shown(lines: &mut NewLines, last: bool) -> String {
        let mut all = Vec::new();
        lines.show(last, |line| all.push(String::from_utf8_lossy(line).into_owned())).unwrap();
        all.join("|")
    }

    #[test]
    fn each_line_is_shown_once_through_new_files_and_by_one_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::of_nobody(root.path());
        say(&place, "of a launch before\n");
        let [mut first, mut second] = [0, 1].map(|_| NewLines::of(place.clone()));
        assert!(first.are_mine().unwrap() && !second.are_mine().unwrap());
        say(&place, "a\nb\nhalf");
        assert_eq!(shown(&mut first, false), "a\n|b\n");
        say(&place, " a line\nc\n");
        rotate(&place);
        assert_eq!(shown(&mut first, false), "half a line\n|c\n", "of the file that made way");
        say(&place, "d\n");
        assert_eq!(shown(&mut first, false), "d\n");
        assert!(first.are_mine().unwrap() && !second.are_mine().unwrap());
        say(&place, "e\n");
        drop(first);
        assert!(second.are_mine().unwrap());
        assert_eq!(shown(&mut second, false), "e\n");
        say(&place, "cut off");
        assert_eq!(shown(&mut second, false), "");
        assert_eq!(shown(&mut second, true), "cut off");
        drop(second);
        let mut next = NewLines::of(place.clone());
        say(&place, "\nf\n");
        assert!(next.are_mine().unwrap());
        assert_eq!(shown(&mut next, false), "\n|f\n");
    }

    #[test]
    fn the_first_lines_of_a_place_are_new() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::of_nobody(root.path());
        let mut lines = NewLines::of(place.clone());
        assert!(lines.are_mine().unwrap());
        assert_eq!(shown(&mut lines, false), "");
        say(&place, "a\n");
        assert_eq!(shown(&mut lines, false), "a\n");
        fs::remove_file(place.log()).unwrap();
        assert_eq!(shown(&mut lines, true), "");
        say(&place, "b\n");
        assert_eq!(shown(&mut lines, false), "b\n");
    }

    #[test]
    fn nothing_stays_of_an_agent_that_never_was() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::of_nobody(root.path());
        let mut lines = NewLines::of(place.clone());
        assert!(lines.are_mine().unwrap() && place.shown().exists());
        drop(lines);
        assert!(!place.shown().exists());
        say(&place, "a\n");
        assert!(NewLines::of(place.clone()).are_mine().unwrap());
        assert!(place.shown().exists(), "it tells how far that was shown");
    }

    #[test]
    fn a_log_that_is_longer_than_a_piece_is_shown_whole() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::of_nobody(root.path());
        let mut lines = NewLines::of(place.clone());
        let text: String = (0..50_000).map(|n| format!("line {n}\n")).collect();
        say(&place, &text);
        let endless = "x".repeat(3 * PIECE_BYTES);
        say(&place, &endless);
        assert_eq!(shown(&mut lines, false).replace('|', ""), text + &endless);
    }

    #[test]
    fn who_comes_late_shows_nothing_of_before() {
        let at = |inode, bytes| Position { inode, bytes };
        for (came, shown, present, resumed) in [
            (at(1, 50), at(1, 20), 1, at(1, 50)),
            (at(1, 50), at(1, 70), 1, at(1, 70)),
            (at(1, 50), at(2, 10), 2, at(2, 10)),
            (at(2, 50), at(1, 90), 2, at(2, 50)),
            (at(0, 0), at(1, 90), 2, at(0, 0)),
        ] {
            assert_eq!(came.resumed(shown, present), resumed, "{came:?} {shown:?}");
        }
    }
}
