//! A leader that is alive for the other voters and of no use to clients hands
//! over: its port does not answer or refuses, it has no descriptors for new
//! connections, or what is committed is not applied. Its heartbeats go on, so that
//! no election would follow.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::Method;
use nix::errno::Errno;
use tokio::time::Instant;

use super::Node;
use super::status::OWN_STATUS;
use crate::dial::{self, DialError};
use crate::recurring::Troubles;

/// How often the leader looks, and how long it has led by then: all nodes may be
/// overloaded, and leadership must not go round.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LED_TIME_MIN: Duration = Duration::from_secs(10);

/// How long its own port may take to answer it; a connection that fails sooner counts
/// after the same time. One failure proves nothing: earlier requests are answered first.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// Failures in a row: a flood of connections passes before leadership moves.
const SILENCES: u32 = 5;

/// How long the first unapplied committed entry may wait.
const APPLY_TIME_MAX: Duration = Duration::from_secs(5);

/// Connections accepted while its own was not answered: a flood, which others pass,
/// too. Fewer may be clients that come again because nothing is answered.
const FLOOD_MIN: u64 = 64;

/// A connection is a newcomer for as long. Busy nodes answer some later than its own; one
/// that waited for longer proves nothing about those that come now.
const NEWCOMER_TIME_MAX: Duration = Duration::from_secs(5);

/// What the node's port has done, counted by its server.
#[derive(Debug, Default)]
pub(crate) struct PortActivity {
    accepted: AtomicU64,
    /// Newcomers that got an answer.
    served: AtomicU64,
    /// Tries to accept for which there was no descriptor.
    starved: AtomicU64,
}

impl PortActivity {
    /// A connection was accepted.
    pub(crate) fn accepted(&self) {
        self.accepted.fetch_add(1, Relaxed);
    }

    /// None was accepted, for this reason.
    pub(crate) fn not_accepted(&self, why: &io::Error) {
        if lacks_descriptors(why) {
            self.starved.fetch_add(1, Relaxed);
        }
    }

    /// A connection got its first answer, with any status, so long after it was accepted.
    pub(crate) fn answered_first(&self, age: Duration) {
        if age < NEWCOMER_TIME_MAX {
            self.served.fetch_add(1, Relaxed);
        }
    }

    fn counts(&self) -> Counts {
        Counts {
            accepted: self.accepted.load(Relaxed),
            served: self.served.load(Relaxed),
            starved: self.starved.load(Relaxed),
        }
    }
}

/// Whether this process, or its host, has no descriptor left.
fn lacks_descriptors(why: &io::Error) -> bool {
    let errno = why.raw_os_error().map(Errno::from_raw);
    errno.is_some_and(|errno| matches!(errno, Errno::EMFILE | Errno::ENFILE))
}

/// Counts at one time.
#[derive(Debug, Clone, Copy)]
struct Counts {
    accepted: u64,
    served: u64,
    starved: u64,
}

impl Counts {
    /// Newcomers were served since these counts: the port is busy, not silent. Neither
    /// answers to connections that were there before prove that, nor connections that are
    /// only accepted, of which this node's own is one.
    fn moved(self, now: Counts) -> bool {
        let accepted = now.accepted.saturating_sub(self.accepted);
        accepted >= FLOOD_MIN || now.served > self.served
    }
}

/// What the leader sees of itself.
#[derive(Debug, Default)]
struct Watch {
    led_since: Option<Instant>,
    /// Its port has answered before: where it cannot be reached from here, its
    /// silence proves nothing.
    answered: bool,
    /// Failures in a row, and the last of them.
    silences: u32,
    silence: Silence,
    /// The last applied entry, and when it last moved or nothing was left to apply.
    applied: Option<(u64, Instant)>,
}

/// How its own port fails it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Silence {
    /// No answer in time.
    #[default]
    Late,
    /// Nobody listens.
    Refused,
    /// There is no descriptor for a new connection, on either side of it.
    Starved,
}

impl Silence {
    fn in_words(self, times: u32) -> String {
        match self {
            Silence::Late => format!(
                "its own port has not answered it {times} times, within {ANSWER_TIME_MAX:?} each"
            ),
            Silence::Refused => format!("its own port has refused it {times} times in a row"),
            Silence::Starved => format!(
                "it has had no descriptor for a new connection {times} times in a row; raise this node's limit of open files"
            ),
        }
    }
}

/// Result of asking its own port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Port {
    Answers,
    Silent(Silence),
    /// The port gives no evidence.
    Unclear,
}

impl Port {
    /// Result of a request that failed.
    fn of_failed(why: &DialError) -> Port {
        match why {
            DialError::Timeout { .. } => Port::Silent(Silence::Late),
            DialError::Connect { why, .. } => Port::of_unconnected(why),
            // A slow name service is no fault of the port.
            DialError::LookUp { .. } | DialError::Broken { .. } | DialError::Refused { .. } => {
                Port::Unclear
            }
        }
    }

    /// Result of a connection that failed.
    fn of_unconnected(why: &io::Error) -> Port {
        match why.kind() {
            _ if lacks_descriptors(why) => Port::Silent(Silence::Starved),
            ErrorKind::TimedOut => Port::Silent(Silence::Late),
            ErrorKind::ConnectionRefused => Port::Silent(Silence::Refused),
            _ => Port::Unclear,
        }
    }

    /// The same, by what the port has done for others meanwhile.
    fn beside(self, before: Counts, now: Counts) -> Port {
        match self {
            Port::Answers => Port::Answers,
            _ if before.moved(now) => Port::Unclear,
            _ if now.starved > before.starved => Port::Silent(Silence::Starved),
            port => port,
        }
    }
}

impl Watch {
    fn port(&mut self, port: Port) {
        match port {
            Port::Answers => (self.answered, self.silences) = (true, 0),
            // A process without descriptors serves no newcomer, wherever it is reached from.
            Port::Silent(silence) if self.answered || silence == Silence::Starved => {
                (self.silences, self.silence) = (self.silences + 1, silence);
            }
            Port::Silent(_) | Port::Unclear => self.silences = 0,
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
        if self.silences >= SILENCES {
            return Some(self.silence.in_words(self.silences));
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
            watch.port(self.look_at_own_port(&activity).await);
            let view = self.view();
            watch.applied(Instant::now(), view.applied, view.committed);
            let Some(why) = watch.is_gray(Instant::now()) else { continue };
            watch.led_since = Some(Instant::now());
            match self.transfer_leader(None).await {
                Ok(()) => tracing::warn!("handed leadership over: {why}"),
                Err(problem) if troubles.met("handing over", &problem) => {
                    // One that leads may have no way to tell this node.
                    tracing::warn!(%problem, "no other voter is known to lead, and {why}");
                }
                Err(_) => {}
            }
        }
    }

    /// Whether newcomers are served.
    async fn look_at_own_port(&self, activity: &PortActivity) -> Port {
        let (before, asked) = (activity.counts(), Instant::now());
        let port = self.ask_own_port().await;
        if port != Port::Answers {
            tokio::time::sleep_until(asked + ANSWER_TIME_MAX).await;
        }
        port.beside(before, activity.counts())
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
            Err(error) => Port::of_failed(&error),
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
        for (silence, words) in [
            (Silence::Late, "its own port has not answered"),
            (Silence::Refused, "its own port has refused it 5 times"),
        ] {
            let (mut watch, silent) = (led(begun), Port::Silent(silence));
            (0..SILENCES).for_each(|_| watch.port(silent));
            assert_eq!(watch.is_gray(begun + 60 * S), None, "it may never be reached from here");
            watch.port(Port::Answers);
            watch.port(silent);
            assert_eq!(watch.is_gray(begun + 60 * S), None, "once is no reason");
            watch.port(Port::Unclear);
            (1..SILENCES).for_each(|_| watch.port(silent));
            assert_eq!(watch.is_gray(begun + 60 * S), None);
            watch.port(silent);
            assert!(watch.is_gray(begun + 60 * S).is_some_and(|why| why.contains(words)));
            assert_eq!(watch.is_gray(begun + 5 * S), None, "it has led for a moment only");
        }
    }

    #[test]
    fn a_leader_without_descriptors_is_of_no_use_even_if_its_port_never_answered() {
        let begun = Instant::now();
        let mut watch = led(begun);
        (0..SILENCES).for_each(|_| watch.port(Port::Silent(Silence::Starved)));
        let why = watch.is_gray(begun + 60 * S).unwrap();
        assert!(why.contains("no descriptor") && why.contains("limit of open files"), "{why}");
        watch.port(Port::Unclear);
        assert_eq!(watch.is_gray(begun + 60 * S), None);
    }

    #[test]
    fn a_connection_that_fails_says_why() {
        let of_system = |errno: Errno| io::Error::from_raw_os_error(errno as i32);
        for (why, port) in [
            (of_system(Errno::EMFILE), Port::Silent(Silence::Starved)),
            (of_system(Errno::ENFILE), Port::Silent(Silence::Starved)),
            (of_system(Errno::ECONNREFUSED), Port::Silent(Silence::Refused)),
            (ErrorKind::TimedOut.into(), Port::Silent(Silence::Late)),
            (of_system(Errno::ENETUNREACH), Port::Unclear),
        ] {
            let error = DialError::Connect { address: "n1:1".to_owned(), why };
            assert_eq!(Port::of_failed(&error), port, "{error}");
        }
    }

    #[test]
    fn a_name_service_that_does_not_answer_says_nothing_about_the_port() {
        let address = || "n1:1".to_owned();
        for kind in [ErrorKind::TimedOut, ErrorKind::ConnectionRefused] {
            let error = DialError::LookUp { address: address(), why: kind.into() };
            assert_eq!(Port::of_failed(&error), Port::Unclear, "{error}");
        }
        let late = DialError::Timeout { address: address(), after: ANSWER_TIME_MAX };
        assert_eq!(Port::of_failed(&late), Port::Silent(Silence::Late));
    }

    #[test]
    fn a_port_that_serves_newcomers_is_not_silent() {
        let activity = PortActivity::default();
        let silent = Port::Silent(Silence::Late);
        let seen = |port: Port, before| port.beside(before, activity.counts());
        let before = activity.counts();
        activity.answered_first(NEWCOMER_TIME_MAX);
        assert_eq!(seen(silent, before), silent, "of those that are connected already");
        activity.accepted();
        assert_eq!(seen(silent, before), silent, "its own, which nobody answers");
        activity.answered_first(2 * ANSWER_TIME_MAX);
        assert_eq!(seen(silent, before), Port::Unclear, "busy, and late");
        let before = activity.counts();
        (1..FLOOD_MIN).for_each(|_| activity.accepted());
        assert_eq!(seen(silent, before), silent, "clients that come again");
        activity.accepted();
        assert_eq!(seen(silent, before), Port::Unclear, "a flood");
    }

    #[test]
    fn a_port_that_has_no_descriptors_for_newcomers_is_silent_whatever_its_own_call_met() {
        let activity = PortActivity::default();
        let before = activity.counts();
        activity.not_accepted(&io::Error::other("a reset connection"));
        assert_eq!(Port::Unclear.beside(before, activity.counts()), Port::Unclear);
        activity.not_accepted(&io::Error::from_raw_os_error(Errno::EMFILE as i32));
        let starved = Port::Silent(Silence::Starved);
        for met in [Port::Unclear, Port::Silent(Silence::Late), starved] {
            assert_eq!(met.beside(before, activity.counts()), starved);
        }
        assert_eq!(Port::Answers.beside(before, activity.counts()), Port::Answers);
        activity.accepted();
        activity.answered_first(Duration::ZERO);
        assert_eq!(starved.beside(before, activity.counts()), Port::Unclear, "some get in");
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
