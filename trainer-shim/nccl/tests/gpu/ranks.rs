//! Ranks as processes, each told what to do, and killed if it does not answer.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use holdfast_nccl::environment::RECOMMENDED;
use holdfast_nccl::{Minter, UniqueId};

use crate::rank::ANSWER;
use crate::{RANK, support};

/// Longest wait for an answer: a rank that takes longer hangs.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// How long a rank that was told to wait for its peers does so.
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
    what: usize,
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

    /// Tells it something, without waiting for the answer.
    pub fn tell(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("the rank reads");
    }

    /// What it answers; whatever it was told last.
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

    /// Tells it something, and returns the answer.
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

/// So many ranks.
pub fn start(library: &Path, count: usize) -> Vec<Rank> {
    (0..count).map(|what| Rank::start(library, what)).collect()
}

/// Tells all the same at the same time; each must answer as expected.
pub fn all(ranks: &mut [Rank], command: &str, expected: &str) {
    ranks.iter_mut().for_each(|rank| rank.tell(command));
    for rank in ranks {
        assert_eq!(rank.answer(command), expected, "rank {} to {command:?}", rank.what);
    }
}

/// A minter, which has to live until its generation is formed.
pub fn minter(library: &Path) -> Minter {
    Minter::start(&support::minter_options(Some(library.to_owned()))).expect("a minter")
}

/// Begins to form a generation of these ranks, which has more if `of` says so.
pub fn begin(ranks: &mut [Rank], id: &UniqueId, of: usize, generation: u64) {
    let command = |at: usize| format!("init {} {of} {at} {generation}", id.to_hex());
    ranks.iter_mut().enumerate().for_each(|(at, rank)| rank.tell(&command(at)));
    for rank in ranks {
        assert_eq!(rank.answer("init"), "begun", "rank {}", rank.what);
    }
}

/// Forms a generation of these ranks by an id of its own.
pub fn form(library: &Path, ranks: &mut [Rank], generation: u64) {
    let minter = minter(library);
    let of = ranks.len();
    begin(ranks, minter.id(), of, generation);
    all(ranks, &format!("wait {PEERS_MS}"), "ready");
}

/// Reduces, and looks at each value.
pub fn reduce(ranks: &mut [Rank], count: usize) {
    all(ranks, &format!("reduce {count}"), "begun");
    all(ranks, &format!("pending {PEERS_MS}"), "done");
    let sum = ranks.len() * (ranks.len() + 1) / 2;
    all(ranks, "values", &sum.to_string());
}
