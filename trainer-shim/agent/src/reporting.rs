//! Reports of this agent for operators: gathered every two seconds, and sent when
//! there is something new.
//!
//! Processor times change all the time, and ranks that train send no calls to the
//! store for hours. So they are looked at here, on the host, and reported when
//! what a rank does has changed, with growing pauses: an agent whose ranks train
//! reports nothing.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use holdfast_api::{AgentReport, Exit};
use holdfast_client::Client;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tracing::error;

use crate::activity::{Sampler, status_of_ended};
use crate::agent::Handle;
use crate::descriptors::Room;
use crate::door::process::peer::Peer;
use crate::programs::exit_of;

/// How often to look for something new to report to operators.
const INTERVAL: Duration = Duration::from_secs(2);
/// Pauses between reports in which only quiet programs changed: the first,
/// doubled up to the last.
const PAUSE_MIN: Duration = Duration::from_secs(4);
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// After so long without such a report the pauses begin anew.
const CALM: Duration = Duration::from_secs(128);

/// A main thread that has been silent for so long is reported at once.
const HANGS_MS: u64 = 60_000;

/// Gathers and sends reports, for as long as the agent runs.
pub struct Reporter {
    client: Client,
    handle: Handle,
    interval: Interval,
    sampler: Sampler,
    /// Each ends with its program.
    watching: JoinSet<(u32, Option<Exit>)>,
    watching_max: usize,
    pace: Pace,
}

impl Reporter {
    /// Reports this agent, through this client.
    pub fn new(client: Client, handle: Handle) -> Reporter {
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Reporter {
            client,
            handle,
            interval,
            sampler: Sampler::default(),
            watching: JoinSet::new(),
            watching_max: Room::of_process().watched(),
            pace: Pace::default(),
        }
    }

    /// Sends a report whenever there is something new.
    pub async fn run(&mut self) -> Infallible {
        loop {
            tokio::select! {
                _ = self.interval.tick() => {
                    self.handle.roster().look_for_processes().await;
                    self.watch();
                    let report = self.gather().await;
                    if self.pace.is_due(&report, Instant::now()) {
                        self.client.report(report.clone());
                        self.pace.reported(report, Instant::now());
                    }
                }
                Some(ended) = self.watching.join_next(), if !self.watching.is_empty() => {
                    match ended {
                        Ok((pid, exit)) => self.handle.roster().ended(pid, exit),
                        Err(error) => error!(%error, "the watch of a program ended in a defect"),
                    }
                }
            }
        }
    }

    /// The last words: which of its programs have ended. Nodes remember them.
    pub fn last_words(&self) {
        let mut report = self.handle.introduction();
        self.handle.roster().fill(&mut report, Instant::now());
        if !report.ended.is_empty() {
            self.client.report(report);
        }
    }

    /// Hears the end of programs that are new. Those that are too many have to wait: their end is
    /// seen later.
    fn watch(&mut self) {
        let most = self.watching_max.saturating_sub(self.watching.len());
        for pid in self.handle.roster().unwatched(most) {
            let peer = Peer::numbered(i32::try_from(pid).ok());
            if peer.is_watched() {
                self.watching.spawn(async move {
                    peer.ended().await;
                    // The kernel keeps the exit status until the parent has
                    // waited for it.
                    (pid, status_of_ended(pid).and_then(exit_of))
                });
            } else {
                self.handle.roster().ended(pid, None);
            }
        }
    }

    async fn gather(&mut self) -> AgentReport {
        let mut report = self.handle.introduction();
        self.handle.roster().fill(&mut report, Instant::now());
        report.processes = self.handle.processes().report();
        let quiet = report.clients.iter().filter(|one| one.quiet.is_some());
        let quiet = quiet.filter_map(|one| one.pid);
        let idle = report.processes.iter().filter(|one| !one.waiting).filter_map(|one| one.pid);
        let pids: BTreeSet<u32> = quiet.chain(idle).collect();
        self.look(pids).await;
        for client in report.clients.iter_mut().filter(|one| one.quiet.is_some()) {
            client.activity = client.pid.and_then(|pid| self.sampler.activity(pid));
        }
        for process in report.processes.iter_mut().filter(|one| !one.waiting) {
            process.activity = process.pid.and_then(|pid| self.sampler.activity(pid));
        }
        report
    }

    async fn look(&mut self, pids: BTreeSet<u32>) {
        let mut sampler = std::mem::take(&mut self.sampler);
        let looking = spawn_blocking(move || {
            sampler.look(&pids, Instant::now());
            sampler
        });
        match looking.await {
            Ok(sampler) => self.sampler = sampler,
            Err(error) => error!(%error, "looking at programs ended in a defect"),
        }
    }
}

/// When a report is worth sending.
#[derive(Debug, Default)]
struct Pace {
    told: Option<(AgentReport, Instant)>,
    /// Before this, what quiet programs do is no reason.
    pause: Duration,
}

impl Pace {
    fn is_due(&self, report: &AgentReport, now: Instant) -> bool {
        let Some((told, at)) = &self.told else { return true };
        // The duration of waits is reported again.
        if !report.waits.is_empty() || outline(told) != outline(report) {
            return true;
        }
        picture(told) != picture(report) && now.duration_since(*at) >= self.pause
    }

    fn reported(&mut self, report: AgentReport, now: Instant) {
        self.pause = match &self.told {
            Some((told, at))
                if outline(told) == outline(&report) && now.duration_since(*at) < CALM =>
            {
                (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX)
            }
            _ => PAUSE_MIN,
        };
        self.told = Some((report, now));
    }
}

/// A report without what quiet programs do, and without how long things have
/// lasted.
fn outline(report: &AgentReport) -> AgentReport {
    let mut outline = picture(report);
    for client in &mut outline.clients {
        (client.quiet, client.activity) = (None, None);
    }
    for (process, told) in outline.processes.iter_mut().zip(&report.processes) {
        process.activity = None;
        let hangs = told.main_thread_silent_ms.filter(|silent_ms| *silent_ms >= HANGS_MS);
        process.main_thread_silent_ms = hangs.map(|_| 0);
    }
    outline
}

/// A report without how long things have lasted.
fn picture(report: &AgentReport) -> AgentReport {
    let mut report = report.clone();
    let kind = |activity: &mut holdfast_api::Activity| {
        // Less than the whole time is reported again once it is over.
        let whole = activity.over_ms >= PAUSE_MIN.as_secs() * 2_000;
        *activity = holdfast_api::Activity {
            place: None,
            for_ms: 0,
            main_cpu_ms: 0,
            cpu_ms: 0,
            over_ms: whole.into(),
            ..activity.clone()
        };
    };
    report.waits.iter_mut().for_each(|wait| wait.blocked_ms = 0);
    report.ended.iter_mut().for_each(|ended| ended.ended_ms_ago = 0);
    for client in &mut report.clients {
        client.quiet.iter_mut().for_each(|quiet| quiet.called_ms_ago = 0);
        client.activity.iter_mut().for_each(kind);
    }
    for process in &mut report.processes {
        (process.called_ms_ago, process.silent_ms) = (0, 0);
        process.activity.iter_mut().for_each(kind);
        process.main_thread_silent_ms.iter_mut().for_each(|silent_ms| *silent_ms = 0);
    }
    report
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Activity, AgentClient, AgentProcess, AgentWait, Doing, Health, Quiet};

    use super::*;
    use crate::roster;

    fn report(doing: Option<Doing>) -> AgentReport {
        let activity = doing.map(|main| Activity {
            main,
            place: None,
            for_ms: 0,
            main_cpu_ms: 0,
            cpu_ms: 0,
            over_ms: 10_000,
        });
        let quiet = Quiet { last_call: "SET".to_owned(), key: None, called_ms_ago: 9_000 };
        let client = AgentClient {
            pid: Some(7),
            rank: Some(0),
            from: String::new(),
            connections: 1,
            quiet: doing.map(|_| quiet),
            activity,
        };
        AgentReport { clients: vec![client], ..roster::tests::report() }
    }

    /// How many reports are sent in so many seconds, where `each` gives the
    /// report at a step.
    fn reports(seconds: u32, each: impl Fn(u32) -> AgentReport) -> usize {
        let (mut pace, start, mut count) = (Pace::default(), Instant::now(), 0);
        for n in 0..seconds / 2 {
            let (report, now) = (each(n), start + INTERVAL * n);
            if pace.is_due(&report, now) {
                pace.reported(report, now);
                count += 1;
            }
        }
        count
    }

    #[test]
    fn ranks_that_train_or_sleep_cost_no_report_but_the_first() {
        let training = |n: u32| {
            let mut report = report(Some(Doing::Busy));
            let activity = report.clients[0].activity.as_mut().unwrap();
            (activity.cpu_ms, activity.for_ms) = (u64::from(n), u64::from(n));
            report.clients[0].quiet.as_mut().unwrap().called_ms_ago = u64::from(n);
            report
        };
        assert_eq!(reports(3_600, training), 1);
    }

    #[test]
    fn a_rank_that_changes_all_the_time_is_told_with_growing_pauses() {
        let restless = |n| report(Some(if n % 2 == 0 { Doing::Busy } else { Doing::Sleeping }));
        let count = reports(3_600, restless);
        assert!((50..=70).contains(&count), "about one each 64 s, and told {count} times");
        // Between calls of the store it is quiet, and again not.
        let caller = |n| report((n % 3 == 0).then_some(Doing::Sleeping));
        let count = reports(3_600, caller);
        assert!((50..=70).contains(&count), "about one each 64 s, and told {count} times");
    }

    #[test]
    fn a_change_after_a_calm_time_is_told_at_once() {
        let hangs = |n| report(Some(if n < 100 { Doing::Busy } else { Doing::Sleeping }));
        let (mut pace, start) = (Pace::default(), Instant::now());
        let told: Vec<u32> = (0..110)
            .filter(|n| {
                let (report, now) = (hangs(*n), start + INTERVAL * *n);
                let due = pace.is_due(&report, now);
                if due {
                    pace.reported(report, now);
                }
                due
            })
            .collect();
        assert_eq!(told, [0, 100]);
    }

    #[test]
    fn a_main_thread_that_hangs_is_told_of_whatever_it_did_before() {
        let silent = |main_thread_silent_ms| {
            let process = AgentProcess {
                process: 0,
                incarnation: 1,
                pid: Some(7),
                last_call: String::new(),
                called_ms_ago: 0,
                waiting: false,
                progress: None,
                silent_ms: 0,
                health: Health::Good,
                main_thread_silent_ms,
                activity: None,
            };
            AgentReport { processes: vec![process], ..report(None) }
        };
        // Each step has some seconds outside Python; the last one hangs.
        let stepping = |n: u32| u64::from(n % 6) * 2_000;
        let at = |n: u32| if n < 900 { stepping(n) } else { u64::from(n - 900) * 2_000 };
        let (mut pace, start) = (Pace::default(), Instant::now());
        let told: Vec<u32> = (0..1_800)
            .filter(|n| {
                let silent_ms = Some(at(*n)).filter(|silent_ms| *silent_ms >= 5_000);
                let (report, now) = (silent(silent_ms), start + INTERVAL * *n);
                let due = pace.is_due(&report, now);
                if due {
                    pace.reported(report, now);
                }
                due
            })
            .collect();
        assert!(told.len() < 45, "with growing pauses: {told:?}");
        assert!(told.contains(&930), "a minute after the begin of the hang: {told:?}");
        assert_eq!(told.last(), Some(&930), "and not again: {told:?}");
    }

    #[test]
    fn who_comes_and_goes_is_told_at_once_and_waits_go_on_being_told() {
        let mut pace = Pace::default();
        let now = Instant::now();
        pace.reported(report(None), now);
        assert!(!pace.is_due(&report(None), now));
        let mut more = report(None);
        more.clients[0].connections = 2;
        assert!(pace.is_due(&more, now));
        let mut waits = report(None);
        let wait = AgentWait {
            pid: None,
            rank: None,
            keys: Vec::new(),
            keys_left_out: 0,
            at_least: None,
            blocked_ms: 1_000,
        };
        waits.waits = vec![wait];
        pace.reported(waits.clone(), now);
        assert!(pace.is_due(&waits, now));
    }
}
