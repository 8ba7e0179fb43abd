//! The store does not answer: since when, why, and when that is over. No node
//! is asked while it answers.

use std::fmt;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use holdfast_api::{Majority, routes};
use tokio::time::Instant;

use crate::client::Client;
use crate::credentials::Credentials;
use crate::fetch::fetch;

/// Pause between two looks at whether the store answers: a number in memory.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Silence before the first report: an ordinary failover is shorter.
const SILENCE_MAX: Duration = Duration::from_millis(1_000);
/// Nodes that answer and do not say why they have no leader are asked again
/// until then: a voter is missed only after a second.
const UNCLEAR_MAX: Duration = Duration::from_millis(1_400);
/// Pause between two such questions.
const ASK_INTERVAL: Duration = Duration::from_millis(300);
/// How long a node may take to say which voters answer: it asks no other node.
const ASK_TIME_MAX: Duration = Duration::from_millis(300);
/// Pause after the first report; each further one is twice the one before.
const PAUSE_FIRST: Duration = Duration::from_secs(5);
/// Longest pause between two reports.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What there is to report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outage {
    /// The store does not answer.
    Lasts {
        /// Time since the store last answered.
        lasted: Duration,
        /// What its nodes say.
        cause: OutageCause,
    },
    /// The store answers again after an outage that was reported.
    Over {
        /// How long the outage was.
        lasted: Duration,
    },
}

/// Why the store does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutageCause {
    /// Too few voters answer.
    MajorityLost(Majority),
    /// No node answers at all, at any of these addresses.
    NoneAnswers(Vec<String>),
    /// Nodes answer and have no leader; those at these addresses do not answer.
    NoLeader(Vec<String>),
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outage::Lasts { lasted, cause } => {
                let lasted = lasted.as_secs_f64();
                write!(f, "the store has not answered for {lasted:.1} s: {cause}")
            }
            Outage::Over { lasted } => {
                write!(f, "the store answers again, after {:.1} s", lasted.as_secs_f64())
            }
        }
    }
}

impl fmt::Display for OutageCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OutageCause::MajorityLost(majority) => {
                f.write_str(&majority.lost_in_words().unwrap_or_default())
            }
            OutageCause::NoneAnswers(addresses) => {
                let addresses = addresses.join(", ");
                write!(f, "no node of the store answers ({addresses}); are they running?")
            }
            OutageCause::NoLeader(silent) => match silent.as_slice() {
                [] => f.write_str("the store's nodes answer and have no leader yet"),
                [one] => write!(f, "the store has no leader yet, and {one} does not answer"),
                more => {
                    write!(f, "the store has no leader yet, and {} do not answer", more.join(", "))
                }
            },
        }
    }
}

/// Reports the outages that a client meets: soon, again after growing pauses, and
/// when they are over.
#[derive(Debug)]
pub struct Outages {
    client: Client,
    schedule: Schedule,
}

impl Outages {
    /// The outages that this client meets from now on.
    pub fn new(client: Client) -> Outages {
        Outages { client, schedule: Schedule::default() }
    }

    /// The next report. May be dropped and called again.
    pub async fn next(&mut self) -> Outage {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let since = self.client.statistics().unanswered_since;
            match self.schedule.look(since, Instant::now()) {
                Due::Nothing => {}
                Due::Over(lasted) => return Outage::Over { lasted },
                Due::Lasts(lasted) => {
                    let cause = self.ask().await;
                    let unclear = matches!(cause, OutageCause::NoLeader(_));
                    if unclear && lasted < UNCLEAR_MAX {
                        self.schedule.postpone(Instant::now());
                    } else {
                        self.schedule.said(Instant::now());
                        return Outage::Lasts { lasted, cause };
                    }
                }
            }
        }
    }

    /// The end of the outage that was reported, if it is over: for a caller that
    /// stops looking.
    pub fn over(&mut self) -> Option<Outage> {
        let since = self.client.statistics().unanswered_since;
        match self.schedule.look(since, Instant::now()) {
            Due::Over(lasted) => Some(Outage::Over { lasted }),
            Due::Nothing | Due::Lasts(_) => None,
        }
    }

    /// What the nodes report; each knows it by itself, with or without a quorum.
    async fn ask(&self) -> OutageCause {
        let addresses = self.client.addresses();
        let credentials = self.client.credentials();
        let asking = addresses
            .iter()
            .map(|address| async move { (address, majority(address, credentials).await) });
        let mut asking: FuturesUnordered<_> = asking.collect();
        let mut silent = Vec::new();
        while let Some((address, answer)) = asking.next().await {
            match answer {
                Some(Some(majority)) if majority.is_lost() => {
                    return OutageCause::MajorityLost(majority);
                }
                Some(_) => {}
                None => silent.push(address.clone()),
            }
        }
        silent.sort_unstable();
        match silent.len() == addresses.len() {
            true => OutageCause::NoneAnswers(silent),
            false => OutageCause::NoLeader(silent),
        }
    }
}

/// What a node knows of the majority; none if it does not answer.
async fn majority(address: &str, credentials: &Credentials) -> Option<Option<Majority>> {
    let answer = fetch(address, routes::MAJORITY, credentials, ASK_TIME_MAX).await.ok()?;
    // One that cannot tell, or is too old for the question, still answers.
    Some(serde_json::from_slice(&answer.body).ok())
}

/// When to report an outage. Pure: the time is handed in.
#[derive(Debug, Default)]
struct Schedule {
    since: Option<Instant>,
    /// When the nodes are asked next.
    next: Option<Instant>,
    /// The pause after the latest report; none before the first.
    pause: Option<Duration>,
}

#[derive(Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Lasts(Duration),
    Over(Duration),
}

impl Schedule {
    /// The store has not answered since then; none if it answers.
    fn look(&mut self, unanswered_since: Option<Instant>, now: Instant) -> Due {
        let Some(unanswered_since) = unanswered_since else {
            let Schedule { since, pause, .. } = std::mem::take(self);
            return match since.filter(|_| pause.is_some()) {
                Some(since) => Due::Over(now.saturating_duration_since(since)),
                None => Due::Nothing,
            };
        };
        let since = *self.since.get_or_insert(unanswered_since);
        let lasted = now.saturating_duration_since(since);
        if lasted < SILENCE_MAX || self.next.is_some_and(|next| now < next) {
            return Due::Nothing;
        }
        Due::Lasts(lasted)
    }

    fn said(&mut self, now: Instant) {
        let pause = self.pause.map_or(PAUSE_FIRST, |pause| (pause * 2).min(PAUSE_MAX));
        (self.next, self.pause) = (Some(now + pause), Some(pause));
    }

    /// It is not clear yet what to report.
    fn postpone(&mut self, now: Instant) {
        self.next = Some(now + ASK_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_reported_soon_again_with_growing_pauses_and_when_it_is_over() {
        let (mut schedule, began) = (Schedule::default(), Instant::now());
        let mut reported = Vec::new();
        for ms in (0..200_000).step_by(250) {
            let now = began + Duration::from_millis(ms);
            if let Due::Lasts(lasted) = schedule.look(Some(began), now) {
                reported.push(lasted.as_secs());
                schedule.said(now);
            }
        }
        assert_eq!(reported, [1, 6, 16, 36, 76, 136, 196]);
        let end = began + Duration::from_secs(200);
        assert_eq!(schedule.look(None, end), Due::Over(Duration::from_secs(200)));
        assert_eq!(schedule.look(None, end), Due::Nothing);
        // Another one is reported anew.
        let again = end + Duration::from_secs(1);
        assert_eq!(schedule.look(Some(end), again), Due::Lasts(Duration::from_secs(1)));
    }

    #[test]
    fn a_failover_is_not_reported_nor_its_end() {
        let (mut schedule, began) = (Schedule::default(), Instant::now());
        let at = |ms| began + Duration::from_millis(ms);
        assert_eq!(schedule.look(Some(began), at(900)), Due::Nothing);
        assert_eq!(schedule.look(None, at(950)), Due::Nothing);
        // Nor is one that ends while its cause is asked for.
        assert_eq!(schedule.look(Some(at(960)), at(1_960)), Due::Lasts(SILENCE_MAX));
        schedule.postpone(at(1_960));
        assert_eq!(schedule.look(Some(at(960)), at(2_000)), Due::Nothing);
        assert_eq!(schedule.look(None, at(2_100)), Due::Nothing);
    }

    #[test]
    fn causes_name_the_addresses() {
        let addresses = || vec!["a:1".to_owned(), "b:2".to_owned()];
        for (cause, words) in [
            (
                OutageCause::NoneAnswers(addresses()),
                "no node of the store answers (a:1, b:2); are they running?",
            ),
            (
                OutageCause::NoLeader(addresses()),
                "the store has no leader yet, and a:1, b:2 do not answer",
            ),
            (OutageCause::NoLeader(Vec::new()), "the store's nodes answer and have no leader yet"),
        ] {
            assert_eq!(cause.to_string(), words);
        }
    }
}
