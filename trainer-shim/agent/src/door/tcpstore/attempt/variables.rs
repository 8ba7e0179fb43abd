//! The variables that a process was started with, as Linux shows them.
//!
//! `/proc/PID/environ` is a piece of the process's own memory, and a program may
//! write over it: setproctitle puts the title there, and zeros after it. The rest
//! may look like a process without the wanted variable.

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::Path;

/// torchrun's count of restarts, in the environment of the ranks it starts.
pub const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// In the environment of ranks whose launcher opens a namespace for each
/// attempt: their count of restarts may differ from node to node.
const OWN_NAMESPACE: &str = "HOLDFAST_NAMESPACE";
/// Where a command meets its agent that keeps its MASTER_ADDR.
const STORE: &str = "HOLDFAST_TCPSTORE";
const READ_BYTES_MAX: u64 = 1024 * 1024;

/// The attempt in a process's variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// They are those of a process that was sent to this agent: this attempt.
    Ours(u32),
    /// They are those of another process, which no launcher restarts here.
    Others,
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

    /// The attempt in them, for an agent that listens there. Process ids of
    /// another process namespace name strangers: one that was not sent to this
    /// agent counts as never restarted.
    pub fn say(&self, ports: &[SocketAddr]) -> Said {
        let is_port = |port: &str| {
            let port = port.parse::<u16>().ok();
            ports.iter().any(|address| Some(address.port()) == port)
        };
        // Under `--keep-master-addr` it is the other variable that leads here.
        let store = self.get(STORE).and_then(|store| Some(store.rsplit_once(':')?.1));
        let is_ours = [self.get("MASTER_PORT"), store].into_iter().flatten().any(is_port);
        let count = self.get(RESTART_COUNT).map(|count| count.parse().unwrap_or(0));
        match count {
            _ if is_ours && self.get(OWN_NAMESPACE).is_some() => Said::Ours(0),
            Some(count) if is_ours => Said::Ours(count),
            _ if !self.are_whole() => Said::Overwritten,
            _ if is_ours => Said::Ours(0),
            _ => Said::Others,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports() -> Vec<SocketAddr> {
        vec!["127.0.0.1:29500".parse().unwrap(), "127.0.0.1:29501".parse().unwrap()]
    }

    fn said(variables: &[u8]) -> Said {
        Variables(variables.to_vec()).say(&ports())
    }

    #[test]
    fn the_attempt_of_a_rank_is_torchruns_restart_count() {
        for (variables, expected) in [
            ("MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=2\0", Said::Ours(2)),
            ("TORCHELASTIC_RESTART_COUNT=1\0X=\0MASTER_PORT=29501\0", Said::Ours(1)),
            ("MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=0\0", Said::Ours(0)),
            // torchrun itself, and programs without it.
            ("MASTER_PORT=29500\0", Said::Ours(0)),
            (
                "MASTER_PORT=1\0HOLDFAST_TCPSTORE=127.0.0.1:29500\0TORCHELASTIC_RESTART_COUNT=2\0",
                Said::Ours(2),
            ),
            // Its launcher keeps the attempts apart.
            (
                "MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=2\0HOLDFAST_NAMESPACE=n\0",
                Said::Ours(0),
            ),
            // Another launcher's rank.
            ("MASTER_PORT=1\0TORCHELASTIC_RESTART_COUNT=2\0", Said::Others),
            ("TORCHELASTIC_RESTART_COUNT=2\0", Said::Others),
            // Values that are no number.
            ("MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=-1\0", Said::Ours(0)),
            ("MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=\0", Said::Ours(0)),
            ("MASTER_PORT=29500\0XTORCHELASTIC_RESTART_COUNT=2\0", Said::Ours(0)),
        ] {
            assert_eq!(said(variables.as_bytes()), expected, "{variables:?}");
        }
        let no_text = b"MASTER_PORT=29500\0TORCHELASTIC_RESTART_COUNT=\xff\0";
        assert_eq!(said(no_text), Said::Ours(0));
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
            Said::Ours(3)
        );
    }
}
