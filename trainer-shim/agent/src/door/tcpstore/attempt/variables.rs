//! The variables that a process was started with, as Linux shows them.
//!
//! `/proc/PID/environ` is a piece of the process's own memory, and a program may
//! write over it: setproctitle puts the title there, and zeros after it. The rest
//! may look like a process without the wanted variable.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// torchrun's count of restarts, in the environment of the ranks it starts.
pub const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// In the environment of the ranks that torchrun starts, and of no other process above them.
const LAUNCH: &str = "TORCHELASTIC_RUN_ID";
/// In the environment of ranks whose launcher opens a namespace for each
/// attempt: their count of restarts may differ from node to node.
const OWN_NAMESPACE: &str = "HOLDFAST_NAMESPACE";
const READ_BYTES_MAX: u64 = 1024 * 1024;

/// The attempt in a process's variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// This one; 0 for a process that no launcher restarts.
    Attempt(u32),
    /// They are not as the process was given them.
    Overwritten,
}

/// The variables of a process.
#[derive(Debug)]
pub struct Variables(pub(crate) Vec<u8>);

impl Variables {
    /// Reads those of the process with this id.
    pub fn of(process: u32) -> io::Result<Variables> {
        let path = Path::new("/proc").join(process.to_string()).join("environ");
        let mut bytes = Vec::new();
        File::open(path)?.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(Variables(bytes))
    }

    /// The value of one that is text.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut all = self.0.split(|byte| *byte == 0);
        let value = all.find_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        std::str::from_utf8(value).ok()
    }

    /// Whether they are as a program is started: names and values, each ended by
    /// one zero. None at all are what is left of a process that ends.
    pub fn are_whole(&self) -> bool {
        let Some((0, all)) = self.0.split_last() else { return false };
        all.split(|byte| *byte == 0).all(|one| one.iter().skip(1).any(|byte| *byte == b'='))
    }

    /// The attempt in them, whatever address they name: a launcher's ranks may use other stores than
    /// that of the launcher.
    pub fn say(&self) -> Said {
        match (self.attempt(), self.are_whole()) {
            (Some(attempt), _) => Said::Attempt(attempt),
            (None, true) => Said::Attempt(0),
            (None, false) => Said::Overwritten,
        }
    }

    /// The attempt that a launcher gave to this process, and to all that it starts. `run` gives the
    /// count 0 to its command, which may be a launcher.
    pub fn say_of_rank(&self) -> Option<u32> {
        let is_rank = |attempt: &u32| *attempt > 0 || self.get(LAUNCH).is_some();
        self.attempt().filter(is_rank)
    }

    fn attempt(&self) -> Option<u32> {
        if self.get(OWN_NAMESPACE).is_some() {
            return Some(0);
        }
        self.get(RESTART_COUNT).map(|count| count.parse().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(variables: &[u8]) -> Said {
        Variables(variables.to_vec()).say()
    }

    #[test]
    fn the_attempt_of_a_rank_is_torchruns_restart_count() {
        for (variables, attempt) in [
            ("MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=2\0", 2),
            ("TORCHELASTIC_RESTART_COUNT=1\0X=\0MASTER_PORT=29501\0", 1),
            ("MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=0\0", 0),
            // torchrun itself, and programs without it.
            ("MASTER_PORT=29500\0", 0),
            ("HOME=/root\0", 0),
            // The launcher's own store is at that port; its ranks use this agent by another address.
            ("MASTER_PORT=1\0TORCHELASTIC_RESTART_COUNT=2\0", 2),
            ("TORCHELASTIC_RESTART_COUNT=2\0", 2),
            // Its launcher keeps the attempts apart.
            ("MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=2\0HOLDFAST_NAMESPACE=n\0", 0),
            // Values that are no number.
            ("MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=-1\0", 0),
            ("MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=\0", 0),
            ("MASTER_PORT=29500\0XTORCHELASTIC_RESTART_COUNT=2\0", 0),
        ] {
            assert_eq!(said(variables.as_bytes()), Said::Attempt(attempt), "{variables:?}");
        }
        let no_text = b"MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=\xff\0";
        assert_eq!(said(no_text), Said::Attempt(0));
    }

    #[test]
    fn what_a_rank_starts_has_its_attempt_and_what_a_command_starts_has_none() {
        for (variables, expected) in [
            ("TORCHELASTIC_RESTART_COUNT=2\0TORCHELASTIC_RUN_ID=none\0", Some(2)),
            ("TORCHELASTIC_RESTART_COUNT=0\0TORCHELASTIC_RUN_ID=none\0", Some(0)),
            ("TORCHELASTIC_RESTART_COUNT=2\0", Some(2)),
            // As `run` starts its command.
            ("TORCHELASTIC_RESTART_COUNT=0\0MASTER_PORT=29500\0", None),
            ("TORCHELASTIC_RUN_ID=none\0", None),
            ("HOLDFAST_NAMESPACE=n\0TORCHELASTIC_RUN_ID=none\0", Some(0)),
            ("HOME=/root\0", None),
        ] {
            let variables = Variables(variables.as_bytes().to_vec());
            assert_eq!(variables.say_of_rank(), expected, "{variables:?}");
        }
    }

    #[test]
    fn variables_that_were_written_over_say_nothing() {
        for variables in [
            // A title, and zeros after it.
            &b"\0\0\0\0\0\0\0\0\0\0"[..],
            b"r: step=7\0\0\0\0\0",
            b"r: step 7\0\0\0\0\0",
            // A title in front, and the rest of what was there.
            b"a title\0MASTER_PORT=29500\0",
            b"HOME=/root\0a title",
            b"A=1\0\0B=2\0",
            // A process that ends.
            b"",
        ] {
            assert_eq!(said(variables), Said::Overwritten, "{:?}", variables.escape_ascii());
        }
        // The needed part is still there.
        assert_eq!(
            said(b"a title\0MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=3\0"),
            Said::Attempt(3)
        );
    }
}
