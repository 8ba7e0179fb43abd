//! What the client itself asks the node that it is connected with.

use std::time::Duration;

use holdfast_api::{Read, Request, RequestBody};
use tokio::time::Instant;

use crate::backoff::Backoff;

/// Shortest and longest pause before a node is asked for a feature level that was too low. A new
/// cluster reaches its own within a second or two, but stays at a low one while a node is down.
const LEVEL_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The subject of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum About {
    /// Whether the node leads.
    Leader,
    /// Whether the node is alive.
    Life,
    /// The feature level of the cluster.
    Level,
}

impl About {
    const ALL: [About; 3] = [About::Leader, About::Life, About::Level];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    No,
    /// It goes out with the next frame.
    Due,
    Open(u64),
}

/// The questions on one connection, at most one about each subject.
#[derive(Debug)]
pub(crate) struct Questions {
    /// By subject.
    asked: [Asked; 3],
    /// When the level is asked for next: that of a new cluster, or of one that is being upgraded,
    /// rises while the connection lasts. None once no higher one would change anything.
    level_at: Option<Instant>,
    level_count: u32,
}

impl Questions {
    pub(crate) fn new() -> Questions {
        Questions { asked: [Asked::No; 3], level_at: None, level_count: 0 }
    }

    /// Asks with the next frame, even if an earlier question is open.
    pub(crate) fn ask(&mut self, about: About) {
        *self.of(about) = Asked::Due;
    }

    pub(crate) fn ask_unless_asked(&mut self, about: About) {
        let asked = self.of(about);
        if *asked == Asked::No {
            *asked = Asked::Due;
        }
    }

    /// The level is too low: it is asked for again after a pause that grows.
    pub(crate) fn level_is_low(&mut self, now: Instant, random: f64) {
        let (min, max) = LEVEL_PAUSES;
        self.level_at = Some(now + Backoff::new(min, max).pause(self.level_count, random));
    }

    /// Asks for the level if it is time to; answers when to look again.
    pub(crate) fn look_at_level(&mut self, now: Instant) -> Option<Instant> {
        let at = self.level_at?;
        if now < at {
            return Some(at);
        }
        self.level_at = None;
        self.level_count = self.level_count.saturating_add(1);
        self.ask(About::Level);
        None
    }

    pub(crate) fn is_due(&self) -> bool {
        self.asked.contains(&Asked::Due)
    }

    /// Whether the silence of the node would tell something.
    pub(crate) fn expects_answers(&self) -> bool {
        let [leader, life, _] = self.asked;
        matches!(leader, Asked::Open(_)) || life != Asked::No
    }

    /// The questions that are due, each under an id of its own.
    ///
    /// A leader has to prove that it still leads: cut off from the others it would answer stale
    /// questions for ever, and commands never.
    pub(crate) fn take_due(&mut self, leads: bool, mut id: impl FnMut() -> u64) -> Vec<Request> {
        let mut requests = Vec::new();
        for about in About::ALL {
            let asked = self.of(about);
            if *asked != Asked::Due {
                continue;
            }
            let id = id();
            *asked = Asked::Open(id);
            let body = match about {
                About::Leader => question(false),
                About::Life => question(!leads),
                About::Level => RequestBody::Status,
            };
            requests.push(Request { id, body });
        }
        requests
    }

    /// The open question with this id.
    pub(crate) fn open(&self, id: u64) -> Option<About> {
        let open = |about: &About| self.asked[*about as usize] == Asked::Open(id);
        About::ALL.into_iter().find(open)
    }

    /// Closes the question with this id, if one is open.
    pub(crate) fn answered(&mut self, id: u64) -> Option<About> {
        let about = self.open(id)?;
        *self.of(about) = Asked::No;
        Some(about)
    }

    fn of(&mut self, about: About) -> &mut Asked {
        &mut self.asked[about as usize]
    }
}

/// A question that every node answers at once, at no cost. If it is linearizable,
/// every node but the leader answers a problem.
fn question(stale: bool) -> RequestBody {
    RequestBody::Read { read: Read::probe(), stale }
}
