//! The programs of the connections: their last calls, and those that have ended.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use holdfast_api::agent::{CLIENTS_MAX, ENDED_MAX, WORD_BYTES_MAX};
use holdfast_api::{AgentEnded, Blob, Exit, Quiet, lasting};
use tokio::time::Instant;

use crate::process::Process;

/// Ended programs of one namespace that are remembered.
const ENDED_OF_ONE_MAX: usize = 64;
/// A program without a call for so long is quiet.
const QUIET_MIN: Duration = Duration::from_secs(5);

/// A call of the store.
#[derive(Debug, Clone)]
pub(crate) struct LastCall {
    at: Instant,
    op: &'static str,
    key: Option<Blob>,
}

impl LastCall {
    /// A call that begins now, on this key.
    pub(crate) fn now(op: &'static str, key: Option<&Blob>) -> LastCall {
        let beginning = |key: &Blob| match key.as_bytes().get(..WORD_BYTES_MAX) {
            Some(beginning) => Blob::from(beginning),
            None => key.clone(),
        };
        LastCall { at: Instant::now(), op, key: key.map(beginning) }
    }

    /// The later of two calls.
    pub(crate) fn later(one: Option<LastCall>, other: Option<LastCall>) -> Option<LastCall> {
        match (one, other) {
            (Some(one), Some(other)) if one.at >= other.at => Some(one),
            (one, None) => one,
            (_, other) => other,
        }
    }
}

/// What a program that connected at `came` does after its last call; `None` if
/// that was recent.
pub(crate) fn quiet(last: Option<&LastCall>, came: Instant, now: Instant) -> Option<Quiet> {
    let since = now.saturating_duration_since(last.map_or(came, |last| last.at));
    (since >= QUIET_MIN).then(|| Quiet {
        last_call: last.map_or_else(String::new, |last| last.op.to_owned()),
        key: last.and_then(|last| last.key.clone()),
        called_ms_ago: milliseconds(since),
    })
}

/// A rank has come where a whole launch had been before, whose keys are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Relaunched {
    rank: u64,
    pid: u32,
    /// The one of that rank before.
    before: u32,
    ago: Duration,
    door: String,
}

impl fmt::Display for Relaunched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Relaunched { rank, pid, before, ago, door } = self;
        let keys = if door.is_empty() { String::new() } else { format!(" in namespace {door}") };
        write!(
            f,
            "a second launch uses the keys of the one before{keys}: rank {rank} (process {pid}) has come, \
             and rank {rank} (process {before}) ended {} ago, with all others of that launch; who reads \
             its keys waits for ranks that are gone: start each launch under `holdfast-agent run`, or \
             restart this agent with `--run new` in between",
            lasting(milliseconds(*ago))
        )
    }
}

/// Programs that are, or were, connected.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    known: BTreeMap<u32, Program>,
    ended: VecDeque<Ended>,
}

/// A program that connects to the agent.
#[derive(Debug)]
pub(crate) struct Program {
    /// Its rank, if known.
    pub(crate) rank: Option<u64>,
    /// Where it connects from.
    pub(crate) from: String,
    /// The name of its namespace.
    door: String,
    restarts: u64,
    /// Its last call over connections that have closed.
    pub(crate) last: Option<LastCall>,
    /// When its first connection came.
    pub(crate) came: Instant,
    watched: bool,
}

#[derive(Debug)]
struct Ended {
    pid: u32,
    rank: Option<u64>,
    door: String,
    restarts: u64,
    exit: Option<Exit>,
    at: Instant,
}

impl Programs {
    /// This program has a connection in this namespace. Says so if it is the
    /// first of another launch than the one whose keys are there.
    pub(crate) fn meet(
        &mut self,
        process: Process,
        door: &str,
        from: String,
    ) -> Option<Relaunched> {
        if self.known.contains_key(&process.pid) || self.known.len() >= CLIENTS_MAX {
            return None;
        }
        let relaunched = self.relaunched(process, door);
        // The program that has its rank now replaces the one that had it.
        let is_same = |ended: &Ended| {
            ended.pid == process.pid
                || (process.rank.is_some() && ended.rank == process.rank && ended.door == door)
        };
        self.ended.retain(|ended| !is_same(ended));
        let Process { pid, rank, restarts } = process;
        let (door, came) = (door.to_owned(), Instant::now());
        let program = Program { rank, from, door, restarts, last: None, came, watched: false };
        self.known.insert(pid, program);
        relaunched
    }

    /// If all ranks of its namespace have ended, and the one with its own rank
    /// is among them.
    fn relaunched(&self, process: Process, door: &str) -> Option<Relaunched> {
        let Process { pid, rank, restarts } = process;
        let rank = rank?;
        let mut present = self.known.values().filter(|one| one.rank.is_some());
        if present.any(|one| one.door == door && one.restarts == restarts) {
            return None;
        }
        let mut ended = self.ended.iter().rev().filter(|one| one.door == door);
        let before = ended.find(|one| one.rank == Some(rank) && one.restarts == restarts)?;
        let (before, ago) = (before.pid, before.at.elapsed());
        Some(Relaunched { rank, pid, before, ago, door: door.to_owned() })
    }

    /// A program that goes on.
    pub(crate) fn get(&self, pid: u32) -> Option<&Program> {
        self.known.get(&pid)
    }

    /// All that go on.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Program)> {
        self.known.iter().map(|(pid, program)| (*pid, program))
    }

    /// Programs that go on and those that have ended; `None` if there were too many to know.
    pub(crate) fn ids(&self) -> Option<Vec<u32>> {
        let ended = self.ended.iter().map(|one| one.pid);
        let all = self.known.keys().copied().chain(ended).collect();
        (self.known.len() < CLIENTS_MAX).then_some(all)
    }

    /// A connection of it has closed, over which it called last.
    pub(crate) fn closed(&mut self, pid: u32, last: Option<LastCall>) {
        if let Some(program) = self.known.get_mut(&pid) {
            program.last = LastCall::later(program.last.take(), last);
        }
    }

    /// At most so many programs whose end is not watched yet; from now on the caller watches them.
    pub(crate) fn unwatched(&mut self, most: usize) -> Vec<u32> {
        let unwatched = self.known.iter_mut().filter(|(_, program)| !program.watched);
        let watch = |(pid, program): (&u32, &mut Program)| {
            program.watched = true;
            *pid
        };
        unwatched.take(most).map(watch).collect()
    }

    /// A program that was connected has ended. The others do not wait for one
    /// without a rank, as a launcher or a probe.
    pub(crate) fn ended(&mut self, pid: u32, exit: Option<Exit>) {
        if let Some(program) = self.known.remove(&pid)
            && program.rank.is_some()
        {
            self.note(Ended {
                pid,
                rank: program.rank,
                door: program.door,
                restarts: program.restarts,
                exit,
                at: Instant::now(),
            });
        }
    }

    /// A command has ended, as reported by the process that started it: also one
    /// that never connected.
    pub(crate) fn command_ended(&mut self, pid: u32, rank: Option<u64>, exit: Exit) {
        let (door, rank, restarts) = match self.known.remove(&pid) {
            Some(program) => (program.door, program.rank.or(rank), program.restarts),
            None => (String::new(), rank, 0),
        };
        if let Some(ended) = self.ended.iter_mut().find(|ended| ended.pid == pid) {
            ended.exit = Some(exit);
            return;
        }
        self.note(Ended { pid, rank, door, restarts, exit: Some(exit), at: Instant::now() });
    }

    fn note(&mut self, ended: Ended) {
        let same = |one: &Ended| one.door == ended.door;
        if self.ended.iter().filter(|one| same(one)).count() >= ENDED_OF_ONE_MAX
            && let Some(oldest) = self.ended.iter().position(same)
        {
            self.ended.remove(oldest);
        }
        if self.ended.len() >= ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(ended);
    }

    /// Ended programs, the latest last.
    pub(crate) fn report_ended(&self, now: Instant) -> Vec<AgentEnded> {
        let told = |ended: &Ended| AgentEnded {
            pid: ended.pid,
            rank: ended.rank,
            exit: ended.exit,
            ended_ms_ago: milliseconds(now.saturating_duration_since(ended.at)),
        };
        self.ended.iter().map(told).collect()
    }
}

/// How a program ended that has this wait status.
pub fn exit_of(status: i32) -> Option<Exit> {
    let status = ExitStatus::from_raw(status);
    status.code().map(Exit::Code).or_else(|| status.signal().map(Exit::Signal))
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(pid: u32, rank: u64) -> Process {
        Process { pid, rank: Some(rank), restarts: 0 }
    }

    fn ended(programs: &Programs) -> Vec<(u32, Option<Exit>)> {
        let told = programs.report_ended(Instant::now());
        told.iter().map(|one| (one.pid, one.exit)).collect()
    }

    #[test]
    fn a_rank_that_ended_is_remembered_until_another_has_its_place() {
        let mut programs = Programs::default();
        programs.meet(rank(70, 2), "first", String::new());
        programs.meet(Process { pid: 71, rank: None, restarts: 0 }, "first", String::new());
        assert_eq!(programs.unwatched(1), [70], "there are descriptors for one");
        assert_eq!(programs.unwatched(2), [71]);
        assert!(programs.unwatched(2).is_empty());
        programs.ended(70, Some(Exit::Code(7)));
        programs.ended(71, Some(Exit::Code(1)));
        assert_eq!(ended(&programs), [(70, Some(Exit::Code(7)))], "a launcher has no rank");
        programs.meet(rank(80, 2), "29501", String::new());
        assert_eq!(ended(&programs).len(), 1, "that is another namespace");
        programs.meet(rank(81, 2), "first", String::new());
        assert!(ended(&programs).is_empty());
    }

    #[test]
    fn a_second_launch_is_told_once_and_a_rank_that_comes_back_is_none() {
        let mut programs = Programs::default();
        let meet = |programs: &mut Programs, process| {
            programs.meet(process, "", String::new()).map(|found| (found.pid, found.before))
        };
        for pid in [70, 71] {
            assert_eq!(meet(&mut programs, rank(pid, u64::from(pid) - 70)), None);
        }
        programs.ended(71, Some(Exit::Signal(9)));
        assert_eq!(meet(&mut programs, rank(72, 1)), None, "rank 0 is still there");
        for pid in [70, 72] {
            programs.ended(pid, None);
        }
        assert_eq!(meet(&mut programs, rank(91, 1)), Some((91, 72)));
        assert_eq!(meet(&mut programs, rank(90, 0)), None, "it was told");
        assert_eq!(programs.meet(rank(92, 2), "29501", String::new()), None);
        programs.ended(90, None);
        programs.ended(91, None);
        let restarted = Process { restarts: 1, ..rank(80, 1) };
        assert_eq!(meet(&mut programs, restarted), None, "its keys are apart");
    }

    #[test]
    fn whoever_started_a_command_knows_how_it_ended() {
        let mut programs = Programs::default();
        programs.meet(rank(70, 0), "first", String::new());
        programs.ended(70, None);
        programs.command_ended(70, None, Exit::Signal(9));
        programs.command_ended(90, Some(4), Exit::Code(1));
        assert_eq!(ended(&programs), [(70, Some(Exit::Signal(9))), (90, Some(Exit::Code(1)))]);
    }

    #[test]
    fn what_is_remembered_is_bounded_for_each_namespace_and_for_all() {
        let mut programs = Programs::default();
        for door in 0..8 {
            for n in 0..100 {
                let pid = 1_000 * door + n;
                programs.meet(rank(pid, u64::from(n)), &door.to_string(), String::new());
                programs.ended(pid, None);
            }
        }
        let ended = ended(&programs);
        assert_eq!(ended.len(), ENDED_MAX);
        assert_eq!(ended.iter().filter(|(pid, _)| *pid >= 7_000).count(), ENDED_OF_ONE_MAX);
        assert_eq!(ended.last(), Some(&(7_099, None)), "the latest last");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_has_asked_nothing_for_a_while_is_quiet() {
        let came = Instant::now();
        let key = Blob::from(vec![b'k'; 1_000]);
        let last = LastCall::now("SET", Some(&key));
        assert_eq!(quiet(Some(&last), came, came + Duration::from_secs(4)), None);
        let told = quiet(Some(&last), came, came + Duration::from_secs(40)).unwrap();
        assert_eq!((told.last_call.as_str(), told.called_ms_ago), ("SET", 40_000));
        assert_eq!(told.key.map(|key| key.len()), Some(WORD_BYTES_MAX));
        let told = quiet(None, came, came + Duration::from_secs(9)).unwrap();
        assert_eq!((told.last_call.as_str(), told.called_ms_ago), ("", 9_000));
    }

    #[test]
    fn a_wait_status_is_a_code_or_a_signal() {
        assert_eq!(exit_of(7 << 8), Some(Exit::Code(7)));
        assert_eq!(exit_of(9), Some(Exit::Signal(9)));
        assert_eq!(exit_of(0), Some(Exit::Code(0)));
    }
}
