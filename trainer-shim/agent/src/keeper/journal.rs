//! Records in memory that outlives its writer: a file without a name, which the keeper
//! holds open.
//!
//! Writing is `pwrite`: what the kernel has taken stays, also after the end of the process that
//! wrote it. A record whose writer was killed in the middle has a wrong checksum and is the last;
//! nothing that it would have allowed was done yet.
//!
//! The file has two areas; one is in use. A rewritten journal goes into the other one, and then
//! the heading names that. Each checksum includes the number of the writing, so that remains of an
//! earlier one are not taken for records.
//!
//! Behind each heading is its *mark*: how many bytes of records were committed. It is written after
//! them. So records that end before the mark were damaged, and an incomplete record behind it was
//! being written. Records whose loss shows elsewhere, too, are written without one
//! ([`Journal::extend`]), and have it with those that follow. An agent that writes no marks leaves them empty, or of an earlier writing; then
//! its records are not compared with them.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom, fallocate, memfd_create, seek};

/// Where the areas begin. The file has holes, which take no memory.
const AREAS: [u64; 2] = [4096, 1 << 40];
const MAGIC: u64 = 0x6b65_6570_6572_3031;
/// Size of each of the two headings, one for each area.
const HEADING_BYTES: usize = 24;
const HEADINGS: [u64; 2] = [0, 64];
/// Offset of a mark from its heading, and its size.
const MARK_OFFSET: u64 = HEADING_BYTES as u64;
const MARK_BYTES: usize = 24;
/// Offset of the word that says whether the journal is valid, after the headings: it is there from
/// the beginning, so that changing it needs no memory.
const BELIEF: u64 = 128;
const BELIEVED: [u8; 8] = *b"believed";
const INCOMPLETE: [u8; 8] = *b"is void!";
/// Length and checksum of a record, and its kind.
const RECORD_HEADING_BYTES: usize = 9;
/// Longest record that is believed.
pub const RECORD_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Longest journal that is read.
pub const JOURNAL_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Gives memory back, and leaves nothing in its place.
const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// A record as it is in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Kind of the record; only its reader knows it.
    pub kind: u8,
    /// Content of the record.
    pub bytes: Vec<u8>,
}

/// A journal. Records wait until [`Journal::commit`].
#[derive(Debug)]
pub struct Journal {
    file: File,
    /// How often it was rewritten; its parity selects the area.
    writing: u64,
    end: u64,
    waiting: Vec<u8>,
    /// Something that was written is not there any more.
    is_damaged: bool,
}

/// Memory for a journal.
pub fn memory(name: &str) -> io::Result<OwnedFd> {
    Ok(memfd_create(name, MemfdFlags::CLOEXEC)?)
}

impl Journal {
    /// Opens a journal that an earlier writer may have left, and returns its records. Memory that
    /// was written and has no valid heading holds nothing, and is damaged.
    pub fn open(memory: OwnedFd) -> io::Result<(Journal, Vec<Record>)> {
        let file = File::from(memory);
        let writing = HEADINGS.iter().filter_map(|at| read_heading(&file, *at)).max();
        let Some(writing) = writing else {
            let is_new = file.metadata()?.len() == 0;
            let journal = Journal {
                file,
                writing: 0,
                end: AREAS[0],
                waiting: Vec::new(),
                is_damaged: !is_new,
            };
            journal.begin(is_new)?;
            return Ok((journal, Vec::new()));
        };
        let begin = area(writing);
        let (records, end) = read(&file, writing, begin)?;
        let is_damaged = match read_mark(&file, writing)? {
            Mark::Absent => false,
            Mark::Damaged => true,
            Mark::Committed(bytes) => end - begin < bytes,
        };
        Ok((Journal { file, writing, end, waiting: Vec::new(), is_damaged }, records))
    }

    /// Queues one more record.
    pub fn push(&mut self, kind: u8, bytes: &[u8]) {
        append(&mut self.waiting, self.writing, kind, &[bytes]);
    }

    /// Says whether all is here that should be: something could not be written, or can again.
    pub fn believe(&self, complete: bool) -> io::Result<()> {
        self.file.write_all_at(if complete { &BELIEVED } else { &INCOMPLETE }, BELIEF)
    }

    /// Whether its writer last said that all is here, and all is.
    pub fn is_believed(&self) -> bool {
        let mut word = [0; BELIEVED.len()];
        let is_read = self.file.read_exact_at(&mut word, BELIEF).is_ok();
        !self.is_damaged && is_read && word == BELIEVED
    }

    /// Bytes that it has.
    pub fn bytes(&self) -> u64 {
        self.end - area(self.writing) + self.waiting.len() as u64
    }

    /// Writes the queued records, and that they are there.
    pub fn commit(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        self.file.write_all_at(&self.waiting, self.end)?;
        let end = self.end + self.waiting.len() as u64;
        let at = HEADINGS[index(self.writing)] + MARK_OFFSET;
        self.file.write_all_at(&mark(self.writing, end - area(self.writing)), at)?;
        self.end = end;
        self.waiting.clear();
        Ok(())
    }

    /// Writes the queued records without their mark: until the next [`Journal::commit`] records that
    /// are damaged pass for ones that were being written.
    pub fn extend(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.waiting, self.end)?;
        self.end += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    /// All written records, from the beginning.
    pub fn records(&self) -> io::Result<Vec<Record>> {
        Ok(read(&self.file, self.writing, area(self.writing))?.0)
    }

    /// Begins anew with these records; afterwards all or none of them are there.
    pub fn rewrite<'r>(
        &mut self,
        records: impl IntoIterator<Item = (u8, &'r [u8])>,
    ) -> io::Result<()> {
        let (before, writing) = (self.writing, self.writing + 1);
        let mut bytes = Vec::new();
        for (kind, record) in records {
            append(&mut bytes, writing, kind, &[record]);
        }
        let begin = area(writing);
        // A writing that was not finished had this number, too: behind this one, its remains would
        // be taken for records.
        fallocate(&self.file, HOLE, begin, JOURNAL_BYTES_MAX)?;
        self.file.write_all_at(&bytes, begin)?;
        let old = (area(before), self.end - area(before));
        (self.writing, self.end) = (writing, begin + bytes.len() as u64);
        self.waiting.clear();
        self.write_heading()?;
        self.is_damaged = false;
        // If the new heading is damaged later, the old one must not be taken for it.
        self.file.write_all_at(&[0; HEADING_BYTES + MARK_BYTES], HEADINGS[index(before)])?;
        if old.1 > 0 {
            fallocate(&self.file, HOLE, old.0, old.1)?;
        }
        Ok(())
    }

    /// Writes the first heading and whether the journal is valid, both at once.
    fn begin(&self, is_new: bool) -> io::Result<()> {
        let mut first = [0; BELIEF as usize + BELIEVED.len()];
        first[..HEADING_BYTES + MARK_BYTES].copy_from_slice(&self.heading());
        first[BELIEF as usize..].copy_from_slice(if is_new { &BELIEVED } else { &INCOMPLETE });
        self.file.write_all_at(&first, HEADINGS[0])
    }

    fn write_heading(&self) -> io::Result<()> {
        self.file.write_all_at(&self.heading(), HEADINGS[index(self.writing)])
    }

    /// The heading, and the mark of what there is.
    fn heading(&self) -> [u8; HEADING_BYTES + MARK_BYTES] {
        let mut heading = [0; HEADING_BYTES + MARK_BYTES];
        heading[..8].copy_from_slice(&MAGIC.to_le_bytes());
        heading[8..16].copy_from_slice(&self.writing.to_le_bytes());
        let checksum = crc32c::crc32c(&heading[..16]);
        heading[16..20].copy_from_slice(&checksum.to_le_bytes());
        let mark = mark(self.writing, self.end - area(self.writing));
        heading[HEADING_BYTES..].copy_from_slice(&mark);
        heading
    }
}

fn index(writing: u64) -> usize {
    usize::from(writing % 2 == 1)
}

fn area(writing: u64) -> u64 {
    AREAS[index(writing)]
}

fn append(to: &mut Vec<u8>, writing: u64, kind: u8, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let length = u32::try_from(length).expect("a record is shorter than RECORD_BYTES_MAX");
    to.extend_from_slice(&length.to_le_bytes());
    let sum =
        parts.iter().fold(checksum(writing, kind), |sum, part| crc32c::crc32c_append(sum, part));
    to.extend_from_slice(&sum.to_le_bytes());
    to.push(kind);
    parts.iter().for_each(|part| to.extend_from_slice(part));
}

fn checksum(writing: u64, kind: u8) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&writing.to_le_bytes()), &[kind])
}

fn read_heading(file: &File, at: u64) -> Option<u64> {
    let mut heading = [0; HEADING_BYTES];
    file.read_exact_at(&mut heading, at).ok()?;
    let number = |range: std::ops::Range<usize>| {
        heading[range].try_into().map(u64::from_le_bytes).unwrap_or_default()
    };
    let sum = crc32c::crc32c(&heading[..16]).to_le_bytes();
    let writing = number(8..16);
    let is_whole = number(0..8) == MAGIC && heading[16..20] == sum;
    // No agent rewrites that often: such a number is forged.
    (is_whole && writing < u64::from(u32::MAX)).then_some(writing)
}

/// What a writing's mark says.
enum Mark {
    /// Its writer writes none.
    Absent,
    /// It makes no sense.
    Damaged,
    /// So many bytes of records were committed.
    Committed(u64),
}

fn mark(writing: u64, committed: u64) -> [u8; MARK_BYTES] {
    let mut mark = [0; MARK_BYTES];
    mark[..8].copy_from_slice(&writing.to_le_bytes());
    mark[8..16].copy_from_slice(&committed.to_le_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&MAGIC.to_le_bytes()), &mark[..16]);
    mark[16..20].copy_from_slice(&checksum.to_le_bytes());
    mark
}

fn read_mark(file: &File, writing: u64) -> io::Result<Mark> {
    let mut found = [0; MARK_BYTES];
    match file.read_exact_at(&mut found, HEADINGS[index(writing)] + MARK_OFFSET) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Mark::Absent),
        Err(error) => return Err(error),
    }
    if found == [0; MARK_BYTES] {
        return Ok(Mark::Absent);
    }
    let number = |range: std::ops::Range<usize>| {
        found[range].try_into().map(u64::from_le_bytes).unwrap_or_default()
    };
    let (of, committed) = (number(0..8), number(8..16));
    Ok(match found == mark(of, committed) {
        false => Mark::Damaged,
        true if of == writing => Mark::Committed(committed),
        true => Mark::Absent,
    })
}

/// The records from there on, and where they end.
fn read(file: &File, writing: u64, begin: u64) -> io::Result<(Vec<Record>, u64)> {
    let (mut records, mut at) = (Vec::new(), begin);
    while at - begin < JOURNAL_BYTES_MAX {
        let mut heading = [0; RECORD_HEADING_BYTES];
        match file.read_exact_at(&mut heading, at) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
        let [l0, l1, l2, l3, s0, s1, s2, s3, kind] = heading;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > RECORD_BYTES_MAX {
            break;
        }
        let from = at + RECORD_HEADING_BYTES as u64;
        let mut bytes = Vec::new();
        // Nothing is allocated for a length that was never written.
        if from + length as u64 > written_until(file, at)? {
            break;
        }
        bytes.resize(length, 0);
        file.read_exact_at(&mut bytes, from)?;
        let sum = crc32c::crc32c_append(checksum(writing, kind), &bytes);
        if sum != u32::from_le_bytes([s0, s1, s2, s3]) {
            break;
        }
        at = from + length as u64;
        records.push(Record { kind, bytes });
    }
    Ok((records, at))
}

/// Where what was written there ends. The length of the file does not say it: the other area lies
/// behind a hole.
fn written_until(file: &File, at: u64) -> io::Result<u64> {
    seek(file, SeekFrom::Hole(at)).or_else(|_| Ok(file.metadata()?.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn again(journal: &Journal) -> (Journal, Vec<Record>) {
        Journal::open(journal.file.try_clone().unwrap().into()).unwrap()
    }

    fn kinds(records: &[Record]) -> Vec<u8> {
        records.iter().map(|record| record.kind).collect()
    }

    #[test]
    fn what_was_committed_is_there_and_what_waits_is_not() {
        let (mut journal, none) = Journal::open(memory("test").unwrap()).unwrap();
        assert_eq!(none, []);
        journal.push(1, b"one");
        journal.push(2, b"");
        journal.commit().unwrap();
        journal.push(3, b"lost");
        let (mut next, records) = again(&journal);
        let record = |kind, bytes: &[u8]| Record { kind, bytes: bytes.to_vec() };
        assert_eq!(records, [record(1, b"one"), record(2, b"")]);
        next.push(4, b"more");
        next.commit().unwrap();
        assert_eq!(kinds(&again(&next).1), [1, 2, 4]);
    }

    #[test]
    fn a_journal_is_written_anew_at_once_and_gives_memory_back() {
        let (mut journal, _) = Journal::open(memory("test").unwrap()).unwrap();
        let long = vec![7; 1 << 20];
        for _ in 0..3 {
            journal.push(1, &long);
            journal.commit().unwrap();
            journal.rewrite([(9, &b"base"[..])]).unwrap();
            assert_eq!(kinds(&again(&journal).1), [9]);
            journal.push(2, b"");
            journal.commit().unwrap();
            assert_eq!(kinds(&again(&journal).1), [9, 2]);
        }
        use std::os::unix::fs::MetadataExt;
        let blocks = journal.file.metadata().unwrap().blocks();
        assert!(blocks * 512 < 64 * 1024, "{blocks} blocks are left");
    }

    #[test]
    fn memory_whose_headings_make_no_sense_is_not_believed() {
        let new = Journal::open(memory("test").unwrap()).unwrap().0;
        assert!(new.is_believed());
        new.file.write_all_at(&[0xa5; 200], 0).unwrap();
        let (mut damaged, records) = again(&new);
        assert!(!damaged.is_believed() && records.is_empty());
        // A rewrite there is believed once all of it is written.
        damaged.rewrite([(1, &b"a"[..])]).unwrap();
        damaged.believe(true).unwrap();
        let (next, records) = again(&damaged);
        assert!(next.is_believed());
        assert_eq!(records.len(), 1);
    }

    #[test]
    fn damage_before_the_end_of_what_was_committed_is_found() {
        let written = |commits: u8| {
            let (mut journal, _) = Journal::open(memory("test").unwrap()).unwrap();
            for n in 0..commits {
                journal.push(n, &[n; 11]);
                journal.commit().unwrap();
            }
            journal
        };
        for at in 0..5 * 20 {
            let journal = written(5);
            assert!(again(&journal).0.is_believed());
            flip(&journal.file, AREAS[0] + at);
            assert!(!again(&journal).0.is_believed(), "byte {at}");
        }
        for at in 0..HEADING_BYTES + MARK_BYTES {
            let at = at as u64;
            let mut journal = written(5);
            journal.rewrite([(9, &b"base"[..])]).unwrap();
            assert!(again(&journal).0.is_believed());
            // Some bytes have no meaning.
            flip(&journal.file, HEADINGS[1] + at);
            let (next, records) = again(&journal);
            assert_eq!(next.is_believed(), (20..24).contains(&at), "byte {at}");
            assert!(!next.is_believed() || kinds(&records) == [9]);
        }
    }

    #[test]
    fn a_record_whose_writer_was_killed_in_the_middle_is_no_damage() {
        let (mut journal, _) = Journal::open(memory("test").unwrap()).unwrap();
        journal.push(1, b"one");
        journal.commit().unwrap();
        let mut next = Vec::new();
        append(&mut next, journal.writing, 2, &[b"two"]);
        for written in 0..=next.len() {
            journal.file.write_all_at(&next[..written], journal.end).unwrap();
            let (again, records) = again(&journal);
            assert!(again.is_believed(), "{written} bytes");
            // All of it was written, only its mark was not.
            let is_whole = written == next.len();
            assert_eq!(kinds(&records), if is_whole { vec![1, 2] } else { vec![1] });
        }
        // What follows takes its place.
        let (mut following, _) = again(&journal);
        following.push(3, b"three");
        following.commit().unwrap();
        let (again, records) = again(&following);
        assert!(again.is_believed());
        assert_eq!(kinds(&records), [1, 2, 3]);
    }

    #[test]
    fn a_journal_of_an_agent_that_writes_no_marks_is_read() {
        let forget = |journal: &Journal, mark: &[u8]| {
            let at = HEADINGS[index(journal.writing)] + MARK_OFFSET;
            journal.file.write_all_at(mark, at).unwrap();
        };
        let (mut journal, _) = Journal::open(memory("test").unwrap()).unwrap();
        // None, or one of an agent before that wrote some.
        for (rewrites, mark) in [(0, [0; MARK_BYTES]), (2, mark(0, 1_000))] {
            for _ in 0..rewrites {
                journal.rewrite([]).unwrap();
            }
            journal.push(1, b"one");
            journal.commit().unwrap();
            forget(&journal, &mark);
            let (mut next, records) = again(&journal);
            assert!(next.is_believed());
            assert_eq!(kinds(&records), [1]);
            next.push(2, b"two");
            next.commit().unwrap();
            flip(&next.file, AREAS[0]);
            assert!(!again(&next).0.is_believed(), "from now on damage is found");
        }
    }

    fn flip(file: &File, at: u64) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    }

    #[test]
    fn a_writing_anew_that_was_not_finished_leaves_the_one_before() {
        let (mut journal, _) = Journal::open(memory("test").unwrap()).unwrap();
        journal.push(1, b"x");
        journal.commit().unwrap();
        journal.file.write_all_at(&[0xff; 64], AREAS[1]).unwrap();
        journal.file.write_all_at(&[0xff; HEADING_BYTES], HEADINGS[1]).unwrap();
        assert_eq!(kinds(&again(&journal).1), [1]);
    }

    #[test]
    fn a_writing_anew_that_was_not_finished_adds_nothing_to_the_next() {
        let (mut journal, _) = Journal::open(memory("test").unwrap()).unwrap();
        let (mut killed, writing) = (Vec::new(), journal.writing + 1);
        append(&mut killed, writing, 1, &[b"one"]);
        append(&mut killed, writing, 2, &[b"over since"]);
        journal.file.write_all_at(&killed, area(writing)).unwrap();
        journal.rewrite([(1, &b"one"[..])]).unwrap();
        assert_eq!(kinds(&again(&journal).1), [1]);
    }

    #[test]
    fn what_was_written_ends_before_the_other_area() {
        let (mut journal, _) = Journal::open(memory("test").unwrap()).unwrap();
        journal.push(1, b"one");
        journal.commit().unwrap();
        journal.file.write_all_at(b"x", AREAS[1]).unwrap();
        let end = written_until(&journal.file, AREAS[0]).unwrap();
        assert!((journal.end..RECORD_BYTES_MAX as u64).contains(&end), "{end}");
    }

    proptest! {
        /// If any byte is changed, what is read is still a prefix of what was written.
        #[test]
        fn damage_is_an_end(at in 0_usize..200, byte: u8) {
            let (mut journal, _) = Journal::open(memory("test").unwrap()).unwrap();
            for n in 0..10 {
                journal.push(n, &[n; 11]);
            }
            journal.commit().unwrap();
            journal.file.write_all_at(&[byte], AREAS[0] + at as u64).unwrap();
            let records = again(&journal).1;
            for (n, record) in (0..).zip(&records) {
                prop_assert_eq!(record, &Record { kind: n, bytes: vec![n; 11] });
            }
        }
    }
}
