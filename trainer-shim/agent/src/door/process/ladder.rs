//! What becomes of a process that falls silent: it is reported, told, asked to
//! end, and ended. Pure: whoever holds it says how much time has passed, in
//! steps so short that an agent that was frozen itself blames nobody.

use std::time::Duration;

use holdfast_api::{AgentProcess, Health};
use holdfast_trainer_shim::link::Sign;

/// Longest pause, whatever a program says.
pub const PAUSE_MAX: Duration = Duration::from_secs(3_600);
/// Longest time that a program can keep its end off.
pub const CRITICAL_MAX: Duration = Duration::from_secs(600);

/// A process that is watched.
#[derive(Debug, Clone)]
pub struct Watched {
    sign: Sign,
    /// Since the last sign of any kind.
    quiet: Duration,
    /// Since the last progress, of a program that tells.
    idle: Option<Duration>,
    /// Since the latest call began.
    since_call: Duration,
    paused: Duration,
    critical: Duration,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Lively,
    /// It was told.
    Silent,
    /// It was asked to end, so long ago, after such a silence: woken up for that,
    /// it may give signs again.
    Ending {
        since: Duration,
        silent: Duration,
    },
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Tell it, and report it.
    Warn {
        /// How long it has been silent.
        silent: Duration,
        /// In how long it is asked to end.
        ends_in: Option<Duration>,
    },
    /// Ask it to end: SIGCONT, SIGTERM.
    Terminate {
        /// How long it has been silent.
        silent: Duration,
    },
    /// End it: SIGCONT, SIGKILL.
    Kill {
        /// How long it has been silent.
        silent: Duration,
    },
}

impl Watched {
    /// From its first sign on.
    pub fn new(sign: Sign) -> Watched {
        let mut watched = Watched {
            sign: Sign::default(),
            quiet: Duration::ZERO,
            idle: None,
            since_call: Duration::ZERO,
            paused: Duration::ZERO,
            critical: Duration::ZERO,
            stage: Stage::Lively,
        };
        watched.hear(sign);
        watched
    }

    /// It gives a sign.
    pub fn hear(&mut self, sign: Sign) {
        let before = std::mem::replace(&mut self.sign, sign);
        let sign = &self.sign;
        self.quiet = Duration::ZERO;
        let tells = sign.pings > 0 || sign.progress.is_some();
        let gets_on = sign.waiting
            || sign.pings > before.pings
            || sign.progress > before.progress
            || sign.calls > before.calls;
        if tells && (gets_on || self.idle.is_none()) {
            self.idle = Some(Duration::ZERO);
        }
        if sign.calls > before.calls {
            self.since_call = Duration::ZERO;
        }
        self.paused = Duration::from_millis(sign.paused_ms).min(PAUSE_MAX);
        self.critical = Duration::from_millis(sign.critical_ms).min(CRITICAL_MAX);
    }

    /// So much time has passed.
    pub fn pass(&mut self, time: Duration) -> Option<Act> {
        let counted = time.saturating_sub(self.paused);
        self.paused = self.paused.saturating_sub(time);
        self.critical = self.critical.saturating_sub(time);
        self.since_call += time;
        self.quiet += counted;
        self.idle = self.idle.map(|idle| idle + counted);
        let silent = self.silent();
        let limit = |ms: Option<u64>| ms.map(Duration::from_millis);
        let (soft, hard) = (limit(self.sign.ladder.soft_ms), limit(self.sign.ladder.hard_ms));
        let over = |limit: Option<Duration>| limit.is_some_and(|limit| silent >= limit);
        match self.stage {
            Stage::Ending { since, silent } => {
                let since = since + time;
                self.stage = Stage::Ending { since, silent };
                let grace = Duration::from_millis(self.sign.ladder.grace_ms);
                (since >= grace).then_some(Act::Kill { silent })
            }
            _ if over(hard) && self.critical.is_zero() => {
                self.stage = Stage::Ending { since: Duration::ZERO, silent };
                Some(Act::Terminate { silent })
            }
            Stage::Lively if over(soft) => {
                self.stage = Stage::Silent;
                let ends_in = hard.map(|hard| hard.saturating_sub(silent));
                Some(Act::Warn { silent, ends_in })
            }
            Stage::Silent if !over(soft) => {
                self.stage = Stage::Lively;
                None
            }
            _ => None,
        }
    }

    /// How long it was silent when it was asked to end; none if that never
    /// happened.
    pub fn ended_for(&self) -> Option<Duration> {
        match self.stage {
            Stage::Ending { silent, .. } => Some(silent),
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
        let Sign { process, incarnation, progress, last_call, waiting, .. } = &self.sign;
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
            activity: None,
        }
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
    use holdfast_trainer_shim::Ladder;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// What happens in so many seconds, and when.
    fn acts(watched: &mut Watched, seconds: u64) -> Vec<(u64, Act)> {
        let passing = (1..=seconds).map(|second| (second, watched.pass(SECOND)));
        passing.filter_map(|(second, act)| Some((second, act?))).collect()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_defaults_are_those_of_nvrx() {
        let mut watched = Watched::new(Sign::default());
        assert_eq!(
            acts(&mut watched, 95),
            [
                (60, Act::Warn { silent: at(60), ends_in: Some(at(30)) }),
                (90, Act::Terminate { silent: at(90) }),
                (95, Act::Kill { silent: at(90) }),
            ]
        );
        watched.hear(Sign::default());
        assert_eq!(watched.ended_for(), Some(at(90)), "woken up to be ended, it gives a sign");
    }

    #[test]
    fn heartbeats_are_enough_until_the_program_tells_of_progress() {
        let mut watched = Watched::new(Sign::default());
        let hear = |watched: &mut Watched, sign: &Sign, seconds| {
            (1..=seconds).find_map(|second| {
                watched.hear(sign.clone());
                watched.pass(SECOND).map(|_| second)
            })
        };
        assert_eq!(hear(&mut watched, &Sign::default(), 1_000), None);
        let pinged = Sign { pings: 1, ..Sign::default() };
        assert_eq!(hear(&mut watched, &pinged, 1_000), Some(60), "one ping, and no other");
        let mut watched = Watched::new(Sign { progress: Some(7), ..Sign::default() });
        let same = Sign { progress: Some(7), ..Sign::default() };
        assert_eq!(hear(&mut watched, &same, 1_000), Some(60), "it goes in circles");
        let on = Sign { progress: Some(8), ..Sign::default() };
        assert_eq!(hear(&mut watched, &on, 59), None);
        let waits = Sign { waiting: true, ..on };
        assert_eq!(hear(&mut watched, &waits, 1_000), None, "others are waited for");
    }

    #[test]
    fn one_that_comes_back_in_time_goes_on_and_may_be_warned_again() {
        let mut watched = Watched::new(Sign::default());
        assert_eq!(acts(&mut watched, 80).len(), 1);
        watched.hear(Sign::default());
        assert_eq!(watched.report(None).health, Health::Silent, "nobody has looked yet");
        assert_eq!(acts(&mut watched, 59), []);
        assert_eq!(watched.report(None).health, Health::Good);
        assert_eq!(acts(&mut watched, 1).len(), 1);
        assert_eq!(watched.ended_for(), None);
    }

    #[test]
    fn a_pause_has_an_end_and_so_has_a_critical_section() {
        let mut paused = Watched::new(Sign { paused_ms: 100_000, ..Sign::default() });
        let acts_of = acts(&mut paused, 190);
        assert_eq!(acts_of.iter().map(|(second, _)| *second).collect::<Vec<_>>(), [160, 190]);
        let mut critical = Watched::new(Sign { critical_ms: 120_000, ..Sign::default() });
        let acts_of: Vec<u64> = acts(&mut critical, 125).iter().map(|(s, _)| *s).collect();
        assert_eq!(acts_of, [60, 120, 125], "it is warned, but ended only behind the section");
        let mut for_ever = Watched::new(Sign { critical_ms: u64::MAX, ..Sign::default() });
        let ends = acts(&mut for_ever, 1_000)[1];
        assert_eq!(ends, (600, Act::Terminate { silent: CRITICAL_MAX }));
    }

    #[test]
    fn limits_can_be_set_and_left_out() {
        let ladder =
            Ladder { soft_ms: None, hard_ms: Some(2_000), grace_ms: 0, ..Ladder::default() };
        let mut watched = Watched::new(Sign { ladder, ..Sign::default() });
        let acts_of: Vec<u64> = acts(&mut watched, 3).iter().map(|(s, _)| *s).collect();
        assert_eq!(acts_of, [2, 3]);
        let ladder = Ladder { soft_ms: None, hard_ms: None, ..Ladder::default() };
        assert_eq!(acts(&mut Watched::new(Sign { ladder, ..Sign::default() }), 1_000), []);
    }
}
