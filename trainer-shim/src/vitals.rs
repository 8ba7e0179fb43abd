//! How a process is doing, for the agent that watches it: the library sends
//! heartbeats, the program reports progress.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{Blob, Incarnation, ProcessId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::link::{Heartbeat, Silence};

/// Longest name of a call that is sent to the agent, in bytes.
const CALL_BYTES_MAX: usize = 128;

/// What the agent does when a process falls silent. Times in milliseconds; the
/// defaults are those of NVRx's in-process restart.
///
/// Silence counts from the last heartbeat, which the library sends by itself;
/// once the program has pinged or reported progress, also from the last of these.
/// A program that waits in a call is not silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Watchdog {
    /// How often the library sends a heartbeat.
    pub heartbeat_ms: u64,
    /// Silence after which it is reported, and the program warned; none = never.
    pub soft_ms: Option<u64>,
    /// Silence after which it is ended: SIGCONT and SIGTERM; none = never.
    pub hard_ms: Option<u64>,
    /// How long it has from there until SIGKILL.
    pub grace_ms: u64,
    /// Silence of the main thread after which the program is ended likewise;
    /// none = never. See [`MainThread`].
    pub main_thread_ms: Option<u64>,
}

impl Default for Watchdog {
    fn default() -> Self {
        Watchdog {
            heartbeat_ms: 1_000,
            soft_ms: Some(60_000),
            hard_ms: Some(90_000),
            grace_ms: 5_000,
            main_thread_ms: None,
        }
    }
}

/// Called when the agent reports a silent process, on a thread of its own.
#[derive(Clone)]
pub struct Hook(Arc<dyn Fn(Silence) + Send + Sync>);

impl Hook {
    /// A hook that calls this.
    pub fn new(call: impl Fn(Silence) + Send + Sync + 'static) -> Hook {
        Hook(Arc::new(call))
    }

    pub(crate) fn call(&self, silence: Silence) {
        (self.0)(silence);
    }
}

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

/// Reports for how long the program's main thread has not run what it was asked
/// to run, as an interpreter that waits in a collective does not; `None` if that
/// is unknown.
#[derive(Clone)]
pub struct MainThread(Arc<dyn Fn() -> Option<Duration> + Send + Sync>);

impl MainThread {
    /// Asks this, which must not wait for anything.
    pub fn new(silent: impl Fn() -> Option<Duration> + Send + Sync + 'static) -> MainThread {
        MainThread(Arc::new(silent))
    }

    pub(crate) fn silent(&self) -> Option<Duration> {
        (self.0)()
    }
}

impl std::fmt::Debug for MainThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MainThread")
    }
}

/// The heartbeat state of one incarnation.
#[derive(Debug)]
pub(crate) struct Vitals {
    process: ProcessId,
    incarnation: Incarnation,
    watchdog: Watchdog,
    hook: Option<Hook>,
    main_thread: Option<MainThread>,
    state: Mutex<State>,
    /// Something has changed that the agent should know at once.
    pub changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    pings: u64,
    progress: Option<u64>,
    calls: u64,
    last_call: String,
    waiting: usize,
    last_section: u64,
    paused: BTreeMap<u64, Instant>,
    critical: BTreeMap<u64, Instant>,
}

/// Which kind of time a program is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Paused,
    Critical,
}

/// A stretch of time in which the agent treats the process differently. Ends when
/// it is dropped.
#[derive(Debug)]
pub struct Section {
    vitals: Arc<Vitals>,
    kind: Kind,
    id: u64,
}

/// A call that is waited for.
#[derive(Debug)]
pub(crate) struct InCall(Arc<Vitals>);

impl Vitals {
    pub fn new(
        (process, incarnation): (ProcessId, Incarnation),
        watchdog: Watchdog,
        hook: Option<Hook>,
        main_thread: Option<MainThread>,
        changed: Arc<Notify>,
    ) -> Arc<Vitals> {
        let state = Mutex::default();
        Arc::new(Vitals { process, incarnation, watchdog, hook, main_thread, state, changed })
    }

    pub fn participant(&self) -> (ProcessId, Incarnation) {
        (self.process, self.incarnation)
    }

    pub fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.watchdog.heartbeat_ms.max(1))
    }

    pub fn hook(&self) -> Option<&Hook> {
        self.hook.as_ref()
    }

    pub fn ping(&self) {
        self.state.lock().pings += 1;
    }

    pub fn progress(&self, to: u64) {
        let progress = &mut self.state.lock().progress;
        *progress = (*progress).max(Some(to));
    }

    pub fn call(self: &Arc<Self>, round: &Blob) -> InCall {
        let mut state = self.state.lock();
        state.calls += 1;
        state.waiting += 1;
        state.last_call = shortened(&round.to_string());
        InCall(self.clone())
    }

    pub fn section(self: &Arc<Self>, kind: Kind, most: Duration) -> Section {
        let mut state = self.state.lock();
        state.last_section += 1;
        let id = state.last_section;
        // Further away than any clock goes is as good as a year.
        let year = Duration::from_secs(365 * 24 * 3_600);
        state.of(kind).insert(id, Instant::now() + most.min(year));
        self.changed.notify_one();
        Section { vitals: self.clone(), kind, id }
    }

    pub fn beat(&self, now: Instant) -> Heartbeat {
        let mut state = self.state.lock();
        let State { pings, progress, calls, .. } = *state;
        Heartbeat {
            process: self.process,
            incarnation: self.incarnation,
            watchdog: self.watchdog,
            pings,
            progress,
            calls,
            last_call: state.last_call.clone(),
            waiting: state.waiting > 0,
            paused_ms: state.left(Kind::Paused, now),
            critical_ms: state.left(Kind::Critical, now),
            main_thread_silent_ms: self
                .main_thread
                .as_ref()
                .and_then(MainThread::silent)
                .map(milliseconds),
        }
    }
}

impl State {
    fn of(&mut self, kind: Kind) -> &mut BTreeMap<u64, Instant> {
        match kind {
            Kind::Paused => &mut self.paused,
            Kind::Critical => &mut self.critical,
        }
    }

    fn left(&mut self, kind: Kind, now: Instant) -> u64 {
        let last = self.of(kind).values().max().copied();
        let left = last.map_or(Duration::ZERO, |last| last.saturating_duration_since(now));
        milliseconds(left)
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Drop for Section {
    fn drop(&mut self) {
        self.vitals.state.lock().of(self.kind).remove(&self.id);
        self.vitals.changed.notify_one();
    }
}

impl Drop for InCall {
    fn drop(&mut self) {
        self.0.state.lock().waiting -= 1;
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().find(|(at, one)| at + one.len_utf8() > CALL_BYTES_MAX) {
        Some((at, _)) => text[..at].to_owned(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn signs_tell_what_has_grown_and_what_still_lasts() {
        let main_thread = MainThread::new(|| Some(Duration::from_secs(42)));
        let participant = (3, 30);
        let vitals =
            Vitals::new(participant, Watchdog::default(), None, Some(main_thread), Arc::default());
        let beat = || vitals.beat(Instant::now());
        let main_thread_silent_ms = Some(42_000);
        let first = Heartbeat {
            process: 3,
            incarnation: 30,
            main_thread_silent_ms,
            ..Heartbeat::default()
        };
        assert_eq!(beat(), first);
        vitals.ping();
        vitals.progress(7);
        vitals.progress(5);
        let call = vitals.call(&"step".into());
        let Heartbeat { pings, progress, calls, last_call, waiting, .. } = beat();
        assert_eq!((pings, progress, calls, &*last_call, waiting), (1, Some(7), 1, "step", true));
        drop(call);
        assert!(!beat().waiting);
        let outer = vitals.section(Kind::Paused, Duration::from_secs(10));
        let inner = vitals.section(Kind::Paused, Duration::from_secs(2));
        let critical = vitals.section(Kind::Critical, Duration::MAX);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(beat().paused_ms, 7_000);
        assert!(beat().critical_ms > 1_000_000);
        drop((outer, critical));
        assert_eq!((beat().paused_ms, beat().critical_ms), (0, 0), "the inner one is over");
        drop(inner);
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let cut = shortened(&"ä".repeat(CALL_BYTES_MAX));
        assert_eq!(cut, "ä".repeat(CALL_BYTES_MAX / 2));
        assert_eq!(shortened("step"), "step");
    }
}
