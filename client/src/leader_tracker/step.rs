//! What to do next: wait, connect, or stay.

use tokio::time::Instant;

use super::{
    ATTEMPTS_MAX, Attempt, DIRECT_PAUSE_MAX, DOUBT_AGAIN, DOUBT_SHARE, HEDGE_AFTER, LeaderTracker,
    Link, POLLS_PER_NODE_MAX, Step, THROUGH_AFTER, THROUGH_PAUSE, Wants, Why,
};
use crate::connection::Route;
use crate::endpoints::Next;

impl LeaderTracker {
    /// What to do now. `owes_since`: since when the connected node has owed an
    /// answer, and been silent. Call it again after each step other than a wait.
    pub(crate) fn next(&mut self, now: Instant, wants: Wants, owes_since: Option<Instant>) -> Step {
        if wants == Wants::Nothing {
            return Step::Wait(None);
        }
        let successor_at = match self.successor_at() {
            Some((address, at)) if at <= now => {
                self.successor_tried(now);
                return self.attempt(Route::to(address), now, Why::Doubt);
            }
            next => next.map(|(_, at)| at),
        };
        let step = match &self.link {
            Some(link) if link.leads => self.next_with_leader(now, owes_since),
            Some(_) => self.next_with_follower(now, wants),
            None => self.next_without_link(now),
        };
        match step {
            Step::Wait(at) => Step::Wait([at, successor_at].into_iter().flatten().min()),
            step => step,
        }
    }

    fn next_without_link(&mut self, now: Instant) -> Step {
        let hedge_at = self.attempts.iter().map(|attempt| attempt.since + HEDGE_AFTER).max();
        match hedge_at {
            Some(at) if at > now => return Step::Wait(Some(at)),
            Some(_) if self.attempts.len() >= ATTEMPTS_MAX => return Step::Wait(None),
            _ => {}
        }
        let attempts = &self.attempts;
        match self
            .endpoints
            .next(now, |address| attempts.iter().any(|a| a.route.address == address))
        {
            Next::Now(address) => self.attempt(Route::to(address), now, Why::Search),
            Next::At(at) => Step::Wait(Some(at)),
            Next::None => Step::Wait(None),
        }
    }

    fn next_with_leader(&mut self, now: Instant, owes_since: Option<Instant>) -> Step {
        let direct = self.link.as_mut().and_then(|link| link.direct.as_mut());
        let direct_at = match direct {
            Some(direct) if direct.at <= now => {
                direct.at = now + direct.pause;
                direct.pause = (direct.pause * 2).min(DIRECT_PAUSE_MAX);
                let route = Route::to(direct.address.clone());
                return self.attempt(route, now, Why::Direct);
            }
            Some(direct) => Some(direct.at),
            None => None,
        };
        let soonest = |at: Option<Instant>| Step::Wait([at, direct_at].into_iter().flatten().min());
        let Some(since) = owes_since else {
            self.doubt_not_before = None;
            self.search.check_failed = false;
            return soonest(None);
        };
        let at = self.doubt_not_before.unwrap_or(since + self.doubt_after);
        if at > now {
            return soonest(Some(at));
        }
        let pause = DOUBT_AGAIN.max((now - since) / DOUBT_SHARE);
        self.doubt_not_before = Some(now + pause);
        // At that time: whether it can be reached, and if not, another route.
        let is_time = since + THROUGH_AFTER <= now
            && direct_at.is_none()
            && self.endpoints.has_several()
            && self.search.through_not_before.is_none_or(|at| at <= now)
            && !self.attempts.iter().any(|attempt| attempt.route.through);
        let check = self.attempts.iter().find(|attempt| attempt.why == Why::Check);
        let through = match check {
            _ if !is_time => false,
            Some(check) => check.since + HEDGE_AFTER <= now,
            None if self.search.check_failed => true,
            None => {
                let link = self.link.as_ref().map(|link| link.address.clone());
                let Some(address) = link else { return soonest(Some(now + pause)) };
                return self.attempt(Route::to(address), now, Why::Check);
            }
        };
        match self.another(now) {
            Some(address) if through => {
                self.search.through_not_before = Some(now + pause.max(THROUGH_PAUSE) * 2);
                self.attempt(Route::through(address), now, Why::Through)
            }
            Some(address) if self.attempts.len() < ATTEMPTS_MAX => {
                self.attempt(Route::to(address), now, Why::Doubt)
            }
            _ => soonest(Some(now + pause)),
        }
    }

    fn next_with_follower(&mut self, now: Instant, wants: Wants) -> Step {
        if wants < Wants::Warm {
            return Step::Wait(None);
        }
        let hop_at = self.hop_at(now);
        if let Some((address, at)) = &hop_at
            && *at <= now
        {
            let route = Route::to(address.clone());
            return self.attempt(route, now, Why::Hint);
        }
        let through = self.through_at().map(|(route, at)| (route, at.max(now)));
        if let Some((route, at)) = &through
            && *at == now
            && wants == Wants::Leader
        {
            let route = route.clone();
            self.search.through_not_before = Some(now + THROUGH_PAUSE);
            return self.attempt(route, now, Why::Through);
        }
        let through_at = through.map(|(_, at)| at).filter(|_| wants == Wants::Leader);
        let hop_at = [hop_at.map(|(_, at)| at), through_at].into_iter().flatten().min();
        if wants < Wants::Leader {
            return Step::Wait(hop_at);
        }
        // A leader that is cut off from the others notices late.
        let stuck_at = self.search.poll_open.map(|since| since + HEDGE_AFTER);
        let fruitless = self.search.polls_here >= POLLS_PER_NODE_MAX && stuck_at.is_none();
        if (fruitless || stuck_at.is_some_and(|at| at <= now))
            && self.attempts.is_empty()
            && let Some(address) = self.another(now)
        {
            self.search.polls_here = 0;
            return self.attempt(Route::to(address), now, Why::Rotation);
        }
        if let Some(at) = stuck_at {
            let stuck_at = Some(at).filter(|at| *at > now);
            return Step::Wait([stuck_at, hop_at].into_iter().flatten().min());
        }
        match self.search.poll_not_before {
            Some(at) if at > now => Step::Wait(Some(hop_at.map_or(at, |hop| hop.min(at)))),
            _ => {
                self.search.poll_open = Some(now);
                self.search.polls_here = self.search.polls_here.saturating_add(1);
                Step::Poll
            }
        }
    }

    /// The route, through the connected node, to the node that is said to lead, and
    /// when it may be tried: once the direct route has failed, or takes long.
    fn through_at(&self) -> Option<(Route, Instant)> {
        let (link, hint) = (self.link.as_ref()?, self.hint.as_ref()?);
        let under_way = self.attempts.iter().find(|attempt| attempt.route.address == hint.address);
        if link.node == hint.node || self.attempts.iter().any(|attempt| attempt.route.through) {
            return None;
        }
        let since = match (self.search.unreachable_since, under_way) {
            (Some(since), _) => since,
            (None, Some(attempt)) => attempt.since,
            (None, None) => return None,
        };
        let at = since + HEDGE_AFTER;
        let at = self.search.through_not_before.map_or(at, |pause| at.max(pause));
        Some((Route::through(link.address.clone()), at))
    }

    /// The node that is said to lead and when it may be tried; none if there is
    /// none, or it is being tried already.
    fn hop_at(&self, now: Instant) -> Option<(String, Instant)> {
        let hint = self.hint.as_ref()?;
        let here = |link: &Link| link.address == hint.address || link.node == hint.node;
        if self.is_asked(&hint.address)
            || self.attempts.len() >= ATTEMPTS_MAX
            || self.link.as_ref().is_some_and(here)
        {
            return None;
        }
        let ready = self.endpoints.ready_at(&hint.address, now)?;
        let at = self.search.hop_not_before.map_or(ready, |at| at.max(ready));
        Some((hint.address.clone(), at))
    }

    /// A node that may be tried now, neither the connected one nor being tried.
    pub(super) fn another(&mut self, now: Instant) -> Option<String> {
        let here = self.link.as_ref().map(|link| link.address.as_str());
        let attempts = &self.attempts;
        let excluded = |address: &str| {
            Some(address) == here || attempts.iter().any(|attempt| attempt.asks(address))
        };
        match self.endpoints.next(now, excluded) {
            Next::Now(address) => Some(address),
            Next::At(_) | Next::None => None,
        }
    }

    pub(super) fn attempt(&mut self, route: Route, now: Instant, why: Why) -> Step {
        self.endpoints.asked(&route.address);
        self.attempts.push(Attempt { route: route.clone(), since: now, why });
        Step::Connect(route)
    }
}
