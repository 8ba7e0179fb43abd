//! Actions for a process that falls silent: it is reported, warned, asked to end,
//! and killed. Pure: the caller passes the elapsed time, in steps so short that
//! no process is blamed for a freeze of the agent itself.

use std::fmt;
use std::time::Duration;

use holdfast_api::{AgentProcess, Health};
use holdfast_trainer_shim::link::Heartbeat;

/// Longest pause that a program may ask for.
pub const PAUSE_MAX: Duration = Duration::from_secs(3_600);
/// Longest time that a program can keep its end off.
pub const CRITICAL_MAX: Duration = Duration::from_secs(600);

/// Silence of a main thread that is reported to operators: shorter ones come with
/// every loop that waits for its data.
pub const MAIN_THREAD_TOLD_MIN: Duration = Duration::from_secs(5);

/// A process that is watched.
#[derive(Debug, Clone)]
pub struct Watched {
    heartbeat: Heartbeat,
    /// Time since the last heartbeat.
    quiet: Duration,
    /// Time since the last progress, of a program that reports progress.
    idle: Option<Duration>,
    /// Since the latest call began.
    since_call: Duration,
    paused: Duration,
    critical: Duration,
    /// How long its main thread has been silent, if the program reports that:
    /// without pauses.
    main_thread: Option<Duration>,
    /// A heartbeat came since the last tick.
    heard: bool,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Lively,
    /// It was warned of its silence; a heartbeat in time makes it lively again.
    Silent,
    /// It was asked to end, so long ago, for this: woken up for that, it may send
    /// heartbeats again.
    Ending {
        since: Duration,
        hang: Hang,
    },
}

/// The silent part of a process, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hang {
    /// The whole program, which sends no heartbeats.
    Program(Duration),
    /// Its main thread, while the library goes on sending heartbeats.
    MainThread(Duration),
}

/// Action for a silent process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Warn it, and report it.
    Warn {
        /// How long it has been silent.
        silent: Duration,
        /// Time until it is asked to end.
        ends_in: Option<Duration>,
    },
    /// Ask it to end: SIGCONT, SIGTERM.
    Terminate(Hang),
    /// End it: SIGCONT, SIGKILL.
    Kill(Hang),
}

impl Hang {
    /// How long it has been silent.
    pub fn duration(self) -> Duration {
        match self {
            Hang::Program(silent) | Hang::MainThread(silent) => silent,
        }
    }
}

impl fmt::Display for Hang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hang::Program(silent) => write!(f, "it was silent for {silent:?}"),
            Hang::MainThread(silent) => {
                write!(f, "its main thread was silent for {silent:?}")
            }
        }
    }
}

impl Watched {
    /// Watches from its first heartbeat on.
    pub fn new(heartbeat: Heartbeat) -> Watched {
        let mut watched = Watched {
            heartbeat: Heartbeat::default(),
            quiet: Duration::ZERO,
            idle: None,
            since_call: Duration::ZERO,
            paused: Duration::ZERO,
            critical: Duration::ZERO,
            main_thread: None,
            heard: false,
            stage: Stage::Lively,
        };
        watched.hear(heartbeat);
        // Silence before it registered does not count against it.
        watched.main_thread = watched.main_thread.map(|_| Duration::ZERO);
        watched
    }

    /// Takes in a heartbeat.
    pub fn hear(&mut self, heartbeat: Heartbeat) {
        let before = std::mem::replace(&mut self.heartbeat, heartbeat);
        let heartbeat = &self.heartbeat;
        self.quiet = Duration::ZERO;
        let tells = heartbeat.pings > 0 || heartbeat.progress.is_some();
        let gets_on = heartbeat.waiting
            || heartbeat.pings > before.pings
            || heartbeat.progress > before.progress
            || heartbeat.calls > before.calls;
        if tells && (gets_on || self.idle.is_none()) {
            self.idle = Some(Duration::ZERO);
        }
        if heartbeat.calls > before.calls {
            self.since_call = Duration::ZERO;
        }
        self.paused = Duration::from_millis(heartbeat.paused_ms).min(PAUSE_MAX);
        self.critical = Duration::from_millis(heartbeat.critical_ms).min(CRITICAL_MAX);
        // By the program's own count a pause is silence, too.
        self.main_thread = heartbeat.main_thread_silent_ms.map(|told| {
            let told = Duration::from_millis(told);
            self.main_thread.map_or(told, |counted| counted.min(told))
        });
        self.heard = true;
    }

    /// So much time has passed.
    pub fn pass(&mut self, time: Duration) -> Option<Act> {
        let counted = time.saturating_sub(self.paused);
        self.paused = self.paused.saturating_sub(time);
        self.critical = self.critical.saturating_sub(time);
        self.since_call += time;
        self.quiet += counted;
        self.idle = self.idle.map(|idle| idle + counted);
        self.main_thread = self.main_thread.map(|silent| silent + counted);
        // Between two heartbeats the state of the main thread is unknown.
        let heard = std::mem::take(&mut self.heard);
        let silent = self.silent();
        let limit = |ms: Option<u64>| ms.map(Duration::from_millis);
        let (soft, hard) =
            (limit(self.heartbeat.watchdog.soft_ms), limit(self.heartbeat.watchdog.hard_ms));
        let over = |limit: Option<Duration>| limit.is_some_and(|limit| silent >= limit);
        let of_main_thread = limit(self.heartbeat.watchdog.main_thread_ms).filter(|_| heard);
        let of_main_thread = of_main_thread.zip(self.main_thread);
        let fatal = match of_main_thread {
            _ if over(hard) => Some(Hang::Program(silent)),
            Some((limit, silent)) if silent >= limit => Some(Hang::MainThread(silent)),
            _ => None,
        };
        match (self.stage, fatal) {
            (Stage::Ending { since, hang }, _) => {
                let since = since + time;
                self.stage = Stage::Ending { since, hang };
                let grace = Duration::from_millis(self.heartbeat.watchdog.grace_ms);
                (since >= grace).then_some(Act::Kill(hang))
            }
            (_, Some(hang)) if self.critical.is_zero() => {
                self.stage = Stage::Ending { since: Duration::ZERO, hang };
                Some(Act::Terminate(hang))
            }
            (Stage::Lively, _) if over(soft) => {
                self.stage = Stage::Silent;
                let ends_in = hard.map(|hard| hard.saturating_sub(silent));
                Some(Act::Warn { silent, ends_in })
            }
            (Stage::Silent, _) if !over(soft) => {
                self.stage = Stage::Lively;
                None
            }
            _ => None,
        }
    }

    /// How long it was silent when it was asked to end; `None` if it never
    /// happened.
    pub fn ended_for(&self) -> Option<Duration> {
        match self.stage {
            Stage::Ending { hang, .. } => Some(hang.duration()),
            Stage::Lively | Stage::Silent => None,
        }
    }

    /// How it is doing, for operators.
    pub fn report(&self, pid: Option<u32>) -> AgentProcess {
        let health = match self.stage {
            Stage::Ending { .. } => Health::Ending,
            _ if !self.paused.is_zero() => Health::Paused,
            _ if !self.critical.is_zero() => Health::Critical,
            Stage::Silent => Health::Silent,
            Stage::Lively => Health::Good,
        };
        let Heartbeat { process, incarnation, progress, last_call, waiting, .. } = &self.heartbeat;
        AgentProcess {
            process: *process,
            incarnation: *incarnation,
            pid,
            last_call: last_call.clone(),
            called_ms_ago: milliseconds(self.since_call),
            waiting: *waiting,
            progress: *progress,
            silent_ms: milliseconds(self.silent()),
            health,
            main_thread_silent_ms: self.main_thread_silent().map(milliseconds),
            activity: None,
        }
    }

    /// How long its main thread has been silent by its own count, if that is
    /// worth reporting.
    fn main_thread_silent(&self) -> Option<Duration> {
        let told = Duration::from_millis(self.heartbeat.main_thread_silent_ms?);
        Some(told + self.quiet).filter(|_| told >= MAIN_THREAD_TOLD_MIN)
    }

    fn silent(&self) -> Duration {
        self.quiet.max(self.idle.unwrap_or_default())
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use holdfast_trainer_shim::Watchdog;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Actions in so many seconds, and when.
    fn acts(watched: &mut Watched, seconds: u64) -> Vec<(u64, Act)> {
        let passing = (1..=seconds).map(|second| (second, watched.pass(SECOND)));
        passing.filter_map(|(second, act)| Some((second, act?))).collect()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_defaults_are_those_of_nvrx() {
        let mut watched = Watched::new(Heartbeat::default());
        assert_eq!(
            acts(&mut watched, 95),
            [
                (60, Act::Warn { silent: at(60), ends_in: Some(at(30)) }),
                (90, Act::Terminate(Hang::Program(at(90)))),
                (95, Act::Kill(Hang::Program(at(90)))),
            ]
        );
        watched.hear(Heartbeat::default());
        assert_eq!(watched.ended_for(), Some(at(90)), "woken up to be ended, it gives a sign");
    }

    #[test]
    fn heartbeats_are_enough_until_the_program_tells_of_progress() {
        let mut watched = Watched::new(Heartbeat::default());
        let hear = |watched: &mut Watched, heartbeat: &Heartbeat, seconds| {
            (1..=seconds).find_map(|second| {
                watched.hear(heartbeat.clone());
                watched.pass(SECOND).map(|_| second)
            })
        };
        assert_eq!(hear(&mut watched, &Heartbeat::default(), 1_000), None);
        let pinged = Heartbeat { pings: 1, ..Heartbeat::default() };
        assert_eq!(hear(&mut watched, &pinged, 1_000), Some(60), "one ping, and no other");
        let mut watched = Watched::new(Heartbeat { progress: Some(7), ..Heartbeat::default() });
        let same = Heartbeat { progress: Some(7), ..Heartbeat::default() };
        assert_eq!(hear(&mut watched, &same, 1_000), Some(60), "it goes in circles");
        let on = Heartbeat { progress: Some(8), ..Heartbeat::default() };
        assert_eq!(hear(&mut watched, &on, 59), None);
        let waits = Heartbeat { waiting: true, ..on };
        assert_eq!(hear(&mut watched, &waits, 1_000), None, "others are waited for");
    }

    #[test]
    fn one_that_comes_back_in_time_goes_on_and_may_be_warned_again() {
        let mut watched = Watched::new(Heartbeat::default());
        assert_eq!(acts(&mut watched, 80).len(), 1);
        watched.hear(Heartbeat::default());
        assert_eq!(watched.report(None).health, Health::Silent, "nobody has looked yet");
        assert_eq!(acts(&mut watched, 59), []);
        assert_eq!(watched.report(None).health, Health::Good);
        assert_eq!(acts(&mut watched, 1).len(), 1);
        assert_eq!(watched.ended_for(), None);
    }

    #[test]
    fn a_pause_has_an_end_and_so_has_a_critical_section() {
        let mut paused = Watched::new(Heartbeat { paused_ms: 100_000, ..Heartbeat::default() });
        let acts_of = acts(&mut paused, 190);
        assert_eq!(acts_of.iter().map(|(second, _)| *second).collect::<Vec<_>>(), [160, 190]);
        let mut critical = Watched::new(Heartbeat { critical_ms: 120_000, ..Heartbeat::default() });
        let acts_of: Vec<u64> = acts(&mut critical, 125).iter().map(|(s, _)| *s).collect();
        assert_eq!(acts_of, [60, 120, 125], "it is warned, but ended only behind the section");
        let mut for_ever =
            Watched::new(Heartbeat { critical_ms: u64::MAX, ..Heartbeat::default() });
        let ends = acts(&mut for_ever, 1_000)[1];
        assert_eq!(ends, (600, Act::Terminate(Hang::Program(CRITICAL_MAX))));
    }

    #[test]
    fn limits_can_be_set_and_left_out() {
        let watchdog =
            Watchdog { soft_ms: None, hard_ms: Some(2_000), grace_ms: 0, ..Watchdog::default() };
        let mut watched = Watched::new(Heartbeat { watchdog, ..Heartbeat::default() });
        let acts_of: Vec<u64> = acts(&mut watched, 3).iter().map(|(s, _)| *s).collect();
        assert_eq!(acts_of, [2, 3]);
        let watchdog = Watchdog { soft_ms: None, hard_ms: None, ..Watchdog::default() };
        assert_eq!(
            acts(&mut Watched::new(Heartbeat { watchdog, ..Heartbeat::default() }), 1_000),
            []
        );
    }

    /// A program whose library sends a heartbeat each second, and whose main
    /// thread is silent from the start.
    fn stuck(watchdog: Watchdog, paused_ms: u64, second: u64) -> Heartbeat {
        let main_thread_silent_ms = Some(second * 1_000);
        Heartbeat { watchdog, paused_ms, main_thread_silent_ms, ..Heartbeat::default() }
    }

    #[test]
    fn a_main_thread_that_is_silent_is_told_and_ends_nothing_without_a_limit() {
        let watchdog = Watchdog::default();
        let mut watched = Watched::new(stuck(watchdog, 0, 0));
        for second in 1..1_000 {
            watched.hear(stuck(watchdog, 0, second));
            let told = watched.report(None).main_thread_silent_ms;
            assert_eq!(told, (second >= 5).then_some(second * 1_000));
            assert_eq!(watched.pass(SECOND), None);
        }
        watched.hear(stuck(watchdog, 0, 0));
        assert_eq!(watched.report(None).main_thread_silent_ms, None, "it runs again");
    }

    #[test]
    fn a_main_thread_that_is_silent_for_too_long_is_ended_by_the_same_steps() {
        let watchdog = Watchdog { main_thread_ms: Some(30_000), ..Watchdog::default() };
        let ends = |paused_ms: u64| {
            let mut watched = Watched::new(stuck(watchdog, paused_ms, 0));
            (1..200).find_map(|second| {
                watched.hear(stuck(watchdog, paused_ms.saturating_sub(second * 1_000), second));
                match watched.pass(SECOND)? {
                    Act::Terminate(hang) => Some((second, hang, watched.clone())),
                    _ => panic!("nobody is warned of its main thread"),
                }
            })
        };
        let (second, hang, mut ending) = ends(0).expect("it is ended");
        assert_eq!((second, hang), (30, Hang::MainThread(at(30))));
        assert_eq!(hang.to_string(), "its main thread was silent for 30s");
        assert_eq!(acts(&mut ending, 5), [(5, Act::Kill(hang))]);
        let (second, ..) = ends(60_000).expect("a pause has an end");
        assert!((89..=91).contains(&second), "{second}");
    }

    #[test]
    fn nobody_is_ended_for_a_main_thread_of_which_nothing_is_heard() {
        let watchdog =
            Watchdog { main_thread_ms: Some(10_000), hard_ms: None, ..Watchdog::default() };
        let mut watched = Watched::new(stuck(watchdog, 0, 0));
        // Its heartbeats are further apart than the limit.
        for _ in 0..10 {
            assert_eq!(acts(&mut watched, 30), []);
            watched.hear(stuck(watchdog, 0, 0));
        }
    }
}
