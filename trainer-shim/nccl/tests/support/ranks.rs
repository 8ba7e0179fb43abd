//! Ranks as processes, each driven by commands, and killed if it does not answer.
#![allow(dead_code, reason = "each test target uses a part of it")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use holdfast_nccl::environment::RECOMMENDED;

use crate::gpu::RANK;

/// Prefix of each answer: NCCL's log goes to the same stream.
pub const ANSWER: &str = "rank: ";

/// How long it is looked that something does not happen.
pub const NOTHING_MS: u64 = 1_000;

/// Bytes of the device by which the ranks of a test may differ between cycles:
/// what the driver's allocator keeps of pages that it shares out.
pub const DEVICE_BYTES_MAX: u64 = 64 << 20;

/// Longest wait for an answer: a rank that takes longer hangs.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// How long a rank waits for its peers where its command asks for it.
pub const PEERS_MS: u64 = 30_000;

/// Few channels, no shared hardware paths, loopback: what lets the ranks of one
/// GPU take turns.
const ONE_GPU: &[(&str, &str)] = &[
    ("NCCL_MAX_NCHANNELS", "2"),
    ("NCCL_NVLS_ENABLE", "0"),
    ("NCCL_MNNVL_ENABLE", "0"),
    ("NCCL_NET", "Socket"),
    ("NCCL_SOCKET_IFNAME", "lo"),
];

/// A rank's process, which is killed when this is dropped.
pub struct Rank {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
    reader: Option<JoinHandle<()>>,
    pub what: usize,
}

impl Rank {
    /// Starts one that believes to be on a host of its own.
    pub fn start(library: &Path, what: usize) -> Rank {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg(RANK).arg(library);
        command.envs(RECOMMENDED.iter().map(|setting| (setting.name, setting.value)));
        command.envs(ONE_GPU.iter().copied());
        command.env("NCCL_HOSTID", format!("holdfast-{}-{what}", std::process::id()));
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let input = child.stdin.take().expect("it was piped");
        let output = BufReader::new(child.stdout.take().expect("it was piped"));
        let (tell, answers) = channel();
        let reader = std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                match line.strip_prefix(ANSWER) {
                    Some(answer) if tell.send(answer.to_owned()).is_ok() => {}
                    Some(_) => return,
                    None => eprintln!("{line}"),
                }
            }
        });
        let mut rank = Rank { child, input, answers, reader: Some(reader), what };
        assert_eq!(rank.answer("start"), "open", "rank {what}");
        rank
    }

    /// Sends it a command, without waiting for the answer.
    pub fn tell(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("the rank reads");
    }

    /// Its answer to the latest command.
    pub fn answer(&mut self, command: &str) -> String {
        match self.answers.recv_timeout(ANSWER_TIME_MAX) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                panic!("rank {} hangs in {command:?}: no answer for {ANSWER_TIME_MAX:?}", self.what)
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait();
                panic!("rank {} ended in {command:?}: {status:?}", self.what)
            }
        }
    }

    /// Sends it a command, and returns the answer.
    pub fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer(command)
    }

    /// As a kernel that runs out of memory would.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("it is ours");
        if let Some(reader) = self.reader.take() {
            reader.join().expect("it only reads");
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        if self.reader.is_some() {
            self.end();
        }
    }
}

/// Starts so many ranks.
pub fn start(library: &Path, count: usize) -> Vec<Rank> {
    (0..count).map(|what| Rank::start(library, what)).collect()
}

/// Sends all the same command at the same time; each must answer as expected.
pub fn all(ranks: &mut [Rank], command: &str, expected: &str) {
    ranks.iter_mut().for_each(|rank| rank.tell(command));
    for rank in ranks {
        assert_eq!(rank.answer(command), expected, "rank {} to {command:?}", rank.what);
    }
}

/// Threads, descriptors and free bytes of the device, as a rank has answered.
pub fn counts(answer: &str) -> (u64, u64, u64) {
    let numbers: Vec<u64> = answer.split(' ').filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [threads, descriptors, free] => (threads, descriptors, free),
        _ => panic!("no counts: {answer}"),
    }
}

/// Nothing was lost between two looks at all ranks, in the order of ranks.
pub fn assert_nothing_lost(before: &[(u64, u64, u64)], after: &[(u64, u64, u64)]) {
    for (rank, (before, after)) in before.iter().zip(after).enumerate() {
        assert_eq!((before.0, before.1), (after.0, after.1), "threads, descriptors of {rank}");
        let lost = before.2.saturating_sub(after.2);
        assert!(lost <= DEVICE_BYTES_MAX, "the device lost {lost} bytes");
    }
}
