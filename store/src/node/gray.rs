//! A leader that is alive for the other voters and of no use to clients hands
//! over: its port does not answer, or what is committed is not applied. Its
//! heartbeats go on, so that no election would follow.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::Method;
use tokio::time::Instant;

use super::Node;
use super::status::OWN_STATUS;
use crate::dial::{self, DialError};
use crate::recurring::Troubles;

/// How often the leader looks, and how long it has led by then: all nodes may be
/// overloaded, and leadership must not go round.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LED_TIME_MIN: Duration = Duration::from_secs(10);

/// How long its own port may take to answer it. One late answer proves nothing:
/// earlier requests are answered first.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// Late answers in a row: a flood of connections passes before leadership moves.
const SILENCES: u32 = 5;

/// How long the first unapplied committed entry may wait.
const APPLY_TIME_MAX: Duration = Duration::from_secs(5);

/// Connections accepted while its own was not answered: a flood, which others pass,
/// too. Fewer may be clients that come again because nothing is answered.
const FLOOD_MIN: u64 = 64;

/// What the node's port has done, counted by its server.
#[derive(Debug, Default)]
pub(crate) struct PortActivity {
    accepted: AtomicU64,
    answered: AtomicU64,
}

impl PortActivity {
    /// A connection was accepted.
    pub(crate) fn accepted(&self) {
        self.accepted.fetch_add(1, Relaxed);
    }

    /// A request was answered, with any status.
    pub(crate) fn answered(&self) {
        self.answered.fetch_add(1, Relaxed);
    }

    fn counts(&self) -> Counts {
        Counts { accepted: self.accepted.load(Relaxed), answered: self.answered.load(Relaxed) }
    }
}

/// Counts at one time.
#[derive(Debug, Clone, Copy)]
struct Counts {
    accepted: u64,
    answered: u64,
}

impl Counts {
    /// Others were served since these counts: the port is busy, not silent.
    fn moved(self, now: Counts) -> bool {
        now.answered > self.answered || now.accepted >= self.accepted + FLOOD_MIN
    }
}

/// What the leader sees of itself.
#[derive(Debug, Default)]
struct Watch {
    led_since: Option<Instant>,
    /// Its port has answered before: where it cannot be reached from here, its
    /// silence proves nothing.
    answered: bool,
    silences: u32,
    /// The last applied entry, and when it last moved or nothing was left to apply.
    applied: Option<(u64, Instant)>,
}

/// Result of asking its own port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Port {
    Answers,
    /// No answer in time.
    Silent,
    /// The port gives no evidence.
    Unclear,
}

impl Watch {
    fn port(&mut self, port: Port) {
        match port {
            Port::Answers => (self.answered, self.silences) = (true, 0),
            Port::Silent => self.silences += 1,
            Port::Unclear => self.silences = 0,
        }
    }

    fn applied(&mut self, now: Instant, applied: u64, committed: u64) {
        match self.applied {
            Some((before, _)) if before == applied && applied < committed => {}
            _ => self.applied = Some((applied, now)),
        }
    }

    /// Why this leader cannot serve; none if it can, or has not led for long.
    fn is_gray(&self, now: Instant) -> Option<String> {
        self.led_since.filter(|since| now.duration_since(*since) >= LED_TIME_MIN)?;
        if self.answered && self.silences >= SILENCES {
            return Some(format!(
                "its own port has not answered it {} times, within {ANSWER_TIME_MAX:?} each",
                self.silences
            ));
        }
        let (applied, since) = self.applied?;
        let stuck = now.duration_since(since);
        (stuck >= APPLY_TIME_MAX).then(|| {
            format!("the entry after {applied} is committed and was not applied for {stuck:?}")
        })
    }
}

impl Node {
    /// Hands leadership over while this node cannot serve. Runs on the threads of
    /// consensus: the serving threads may be the ones that hang.
    pub(crate) async fn hand_over_when_gray(self, activity: Arc<PortActivity>) {
        let (mut watch, troubles) = (Watch::default(), Troubles::default());
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if !self.consensus().leads() {
                watch = Watch { answered: watch.answered, ..Watch::default() };
                continue;
            }
            watch.led_since.get_or_insert_with(Instant::now);
            let before = activity.counts();
            watch.port(match self.ask_own_port().await {
                Port::Silent if before.moved(activity.counts()) => Port::Unclear,
                port => port,
            });
            let view = self.view();
            watch.applied(Instant::now(), view.applied, view.committed);
            let Some(why) = watch.is_gray(Instant::now()) else { continue };
            watch.led_since = Some(Instant::now());
            match self.transfer_leader(None).await {
                Ok(()) => tracing::warn!("handed leadership over: {why}"),
                Err(problem) if troubles.met("handing over", &problem) => {
                    tracing::warn!(%problem, "no other voter took over, and {why}");
                }
                Err(_) => {}
            }
        }
    }

    /// Asks as any other node would.
    async fn ask_own_port(&self) -> Port {
        let view = self.view();
        let Some(address) = view.nodes.get(&view.id) else { return Port::Unclear };
        let headers = self.access().headers();
        let empty = bytes::Bytes::new();
        let tls = self.access().tls();
        let asked =
            dial::request(tls, address, Method::GET, OWN_STATUS, headers, empty, ANSWER_TIME_MAX);
        match asked.await {
            Ok(_) => Port::Answers,
            Err(DialError::Timeout { .. }) => Port::Silent,
            Err(DialError::Connect { why, .. }) if why.kind() == ErrorKind::TimedOut => {
                Port::Silent
            }
            Err(_) => Port::Unclear,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn led(since: Instant) -> Watch {
        Watch { led_since: Some(since), ..Watch::default() }
    }

    #[test]
    fn a_port_that_answered_once_and_answers_no_more_is_a_reason() {
        let begun = Instant::now();
        let mut watch = led(begun);
        watch.port(Port::Silent);
        watch.port(Port::Silent);
        assert_eq!(watch.is_gray(begun + 60 * S), None, "it may never be reached from here");
        watch.port(Port::Answers);
        watch.port(Port::Silent);
        assert_eq!(watch.is_gray(begun + 60 * S), None, "once is no reason");
        watch.port(Port::Unclear);
        (1..SILENCES).for_each(|_| watch.port(Port::Silent));
        assert_eq!(watch.is_gray(begun + 60 * S), None);
        watch.port(Port::Silent);
        assert!(watch.is_gray(begun + 60 * S).is_some_and(|why| why.contains("its own port")));
        assert_eq!(watch.is_gray(begun + 5 * S), None, "it has led for a moment only");
    }

    #[test]
    fn a_port_that_serves_others_is_not_silent() {
        let activity = PortActivity::default();
        let before = activity.counts();
        (1..FLOOD_MIN).for_each(|_| activity.accepted());
        assert!(!before.moved(activity.counts()), "clients that come again");
        activity.accepted();
        assert!(before.moved(activity.counts()), "a flood");
        let before = activity.counts();
        activity.answered();
        assert!(before.moved(activity.counts()));
    }

    #[test]
    fn a_machine_that_does_not_move_is_a_reason_if_there_is_something_to_apply() {
        let begun = Instant::now();
        let mut watch = led(begun);
        watch.applied(begun, 7, 7);
        watch.applied(begun + 20 * S, 7, 7);
        assert_eq!(watch.is_gray(begun + 20 * S), None);
        watch.applied(begun + 21 * S, 7, 8);
        watch.applied(begun + 26 * S, 8, 9);
        assert_eq!(watch.is_gray(begun + 26 * S), None, "slow is not stuck");
        watch.applied(begun + 31 * S, 8, 20);
        assert!(watch.is_gray(begun + 31 * S).is_some_and(|why| why.contains("after 8")));
    }
}
