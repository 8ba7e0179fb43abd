//! The client's one task: connects the pure parts, [`Calls`] and
//! [`LeaderTracker`], with sockets and time.

mod wake;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use holdfast_api::version::MINOR_REPORTS;
use holdfast_api::{AgentReport, Hello, Reply, ReplyBody, Request, RequestBody};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use self::wake::Wake;
use crate::backoff::Backoff;
use crate::call::{Call, CallId};
use crate::calls::{BATCH_REQUESTS_MAX, Calls};
use crate::connection::{Connection, ConnectionError, Route, connect};
use crate::leader_tracker::{Arrival, LeaderTracker, Step, Wants};
use crate::liveness::{Liveness, PeerState};
use crate::lookout::{self, Look, Lookout, Situation};
use crate::options::Options;
use crate::questions::{About, Questions};
use crate::replies::News;
use crate::resume::{Ledger, Resumed};
use crate::session::Session;
use crate::session_keeper::SessionKeeper;
use crate::statistics::Counters;

/// Time that a closing client gives the cluster to end its session.
const FAREWELL: Duration = Duration::from_secs(1);

/// A leader that has answered nothing for this long is asked for proof that it
/// leads.
const PROOF_AFTER: Duration = Duration::from_millis(300);

/// How often other tasks get a turn before a frame goes out, while more small commands are likely
/// to come. A turn may wake another thread, so nobody takes one alone.
const GATHER_TURNS_MAX: usize = 16;

/// What the handles send to the task.
#[derive(Debug)]
pub(crate) enum Event {
    Submit(CallId, Box<Call>),
    Abandon(CallId),
    HasRoom(CallId),
    Report(Box<AgentReport>),
    Close,
}

pub(crate) struct Actor {
    options: Options,
    inbox: mpsc::UnboundedReceiver<Event>,
    counters: Arc<Counters>,
    tasks: TaskTracker,
    random: StdRng,
    calls: Calls,
    leader_tracker: LeaderTracker,
    attempts: FuturesUnordered<BoxFuture<'static, Attempted>>,
    link: Option<Link>,
    lookout: Lookout,
    /// The attempt to connect to one, while there is one.
    lookout_attempt: Option<BoxFuture<'static, Attempted>>,
    /// Since when a leader has owed proof that it leads.
    unanswered_since: Option<Instant>,
    /// Since when the connected node has owed an answer that it gives at once, and
    /// been silent.
    owes_since: Option<Instant>,
    /// The latest report of this program, and when it was made.
    report: Option<(AgentReport, Instant)>,
    /// Set once the client is being closed: when to stop waiting.
    farewell: Option<Instant>,
}

/// The connection in use.
struct Link {
    route: Route,
    since: Instant,
    connection: Connection,
    liveness: Liveness,
    questions: Questions,
    /// Whether the report is still to be sent to the node, which would understand it.
    report_due: bool,
    takes_reports: bool,
    /// Heartbeats as last seen: a connection on which anything moves is not silent.
    moved: u64,
}

/// An attempt to connect, at its end.
type Attempted = (Route, Result<(Hello, Connection), ConnectionError>);

impl Actor {
    pub(crate) fn new(
        options: Options,
        inbox: mpsc::UnboundedReceiver<Event>,
        counters: Arc<Counters>,
        tasks: TaskTracker,
    ) -> Actor {
        let mut random = match options.seed {
            Some(seed) => StdRng::seed_from_u64(seed),
            None => StdRng::from_rng(&mut rand::rng()),
        };
        let backoff = Backoff::new(options.backoff_min, options.backoff_max);
        let session_keeper = SessionKeeper::new(options.session_ttl, StdRng::from_rng(&mut random));
        Actor {
            calls: Calls::new(session_keeper, backoff, counters.clone()),
            leader_tracker: LeaderTracker::new(options.endpoints.clone(), backoff),
            attempts: FuturesUnordered::new(),
            link: None,
            lookout: Lookout::new(),
            lookout_attempt: None,
            unanswered_since: None,
            owes_since: None,
            report: None,
            farewell: None,
            options,
            inbox,
            counters,
            tasks,
            random,
        }
    }

    /// Keeps a ledger for the next process, and goes on with the session that another
    /// one left, if one did.
    pub(crate) fn keep(&mut self, ledger: Box<dyn Ledger>, resumed: Option<&Resumed>) {
        self.calls.keep(ledger);
        if let Some(Resumed { session, window, ttl, next, in_flight }) = resumed {
            let wanted = in_flight.keys().copied().collect();
            let session = Session::resumed(*session, *window, *next, wanted);
            self.calls.session_keeper.resumed(session, *ttl, Instant::now());
        }
    }

    pub(crate) async fn run(mut self) {
        while !self.is_over() {
            let now = Instant::now();
            let wake_at = self.act(now);
            match self.wake(wake_at, now).await {
                Wake::Event(event) => {
                    self.on_event(event);
                    // The runtime runs this task right after the caller that woke it. Others
                    // that are ready go first: what all submit is looked at together.
                    if self.calls.are_several() {
                        tokio::task::yield_now().await;
                    }
                    self.take_events();
                }
                Wake::Room => {
                    self.gather().await;
                    self.send(Instant::now());
                }
                Wake::Incoming(Some(Ok(replies))) => self.on_replies(replies),
                Wake::Incoming(Some(Err(error))) => self.lost(&error),
                Wake::Incoming(None) => self.lost(&ConnectionError::Closed),
                Wake::Attempt(route, result) => self.on_attempt(route, result),
                Wake::LookoutAttempt(route, result) => self.on_lookout_attempt(&route, result),
                Wake::Lookout(replies) => self.on_lookout(replies),
                Wake::Time => {}
            }
        }
    }

    /// Does everything that is due. Answers when to look again.
    fn act(&mut self, now: Instant) -> Option<Instant> {
        let leads = self.leader_tracker.leads();
        self.calls.tick(now, leads, || self.leader_tracker.tried());
        let alive_until = self.check_liveness(now);
        self.note_unanswered(now);
        self.note_progress(now);
        let navigate_at = loop {
            match self.leader_tracker.next(now, self.wants(), self.owes_since) {
                Step::Connect(route) => self.attempt(route),
                Step::Poll => {
                    if let Some(link) = &mut self.link {
                        link.questions.ask(About::Leader);
                    }
                }
                Step::Wait(at) => break at,
            }
        };
        self.counters.set_leader(self.leader_tracker.leader());
        let proof_at = self.ask_for_proof(now);
        let look_at = self.look_out(now);
        let questions = self.link.as_mut().map(|link| &mut link.questions);
        let level_at = questions.and_then(|questions| questions.look_at_level(now));
        let next_tick = self.calls.next_tick(now);
        [next_tick, alive_until, navigate_at, proof_at, look_at, level_at, self.farewell]
            .into_iter()
            .flatten()
            .min()
    }

    /// Notes since when callers have waited for a leader, or for proof that the
    /// present one leads.
    fn note_unanswered(&mut self, now: Instant) {
        let wants_leader = self.calls.wants() == Wants::Leader;
        if wants_leader && !self.leader_tracker.leads() {
            self.unanswered_since.get_or_insert(now);
        } else if !wants_leader && !self.calls.expects_answers() {
            self.unanswered_since = None;
        }
        self.counters.set_unanswered_since(self.unanswered_since);
    }

    /// A connection on which a long frame makes progress is not silent.
    fn note_progress(&mut self, now: Instant) {
        let Some(link) = &mut self.link else { return };
        let moved = link.connection.activity();
        if std::mem::replace(&mut link.moved, moved) != moved
            && let Some(since) = &mut self.owes_since
        {
            *since = now;
        }
    }

    /// Keeps a second connection while anything depends on the leader; answers when to
    /// look again.
    fn look_out(&mut self, now: Instant) -> Option<Instant> {
        let depends = self.calls.wants() >= Wants::Warm || self.calls.expects_answers();
        let since = self.link.as_ref().map(|link| link.since);
        let situation = Situation {
            leader: self.leader_tracker.connected_leader().zip(since),
            needed: depends && self.farewell.is_none(),
        };
        if !situation.needed {
            self.lookout_attempt = None;
        }
        let look = self.lookout.next(now, situation, self.random.random());
        self.counters.set_lookout(self.lookout.node());
        match look {
            Look::Wait(at) => at,
            Look::Connect => match self.leader_tracker.lookout_address(now) {
                Some(address) => {
                    self.lookout_attempt = Some(self.connecting(Route::to(address)));
                    None
                }
                None => {
                    self.lookout.failed(now, self.random.random());
                    Some(now + lookout::LOOKOUT_AFTER)
                }
            },
        }
    }

    fn on_lookout_attempt(
        &mut self,
        route: &Route,
        result: Result<(Hello, Connection), ConnectionError>,
    ) {
        self.lookout_attempt = None;
        let (now, random) = (Instant::now(), self.random.random());
        match result {
            Ok((hello, connection)) if self.leader_tracker.is_of_cluster(&hello) => {
                tracing::debug!(%route, node = hello.node, "a second node tells who leads");
                self.lookout.connected(&hello, connection, now, random);
            }
            Ok(_) => self.lookout.failed(now, random),
            Err(error) => {
                tracing::debug!(%route, %error, "cannot connect to a second node");
                self.lookout.failed(now, random);
            }
        }
    }

    fn on_lookout(&mut self, replies: Option<Vec<Reply>>) {
        let is_over = |reply: &Reply| lookout::is_over(reply.id, &reply.body);
        let Some(replies) = replies.filter(|replies| !replies.iter().any(is_over)) else {
            return self.lookout.failed(Instant::now(), self.random.random());
        };
        for reply in replies {
            if let ReplyBody::LeaderChanged { term, leader } = reply.body {
                self.leader_tracker.leader_changed(term, leader, Instant::now());
            }
        }
    }

    /// What it needs of a connection. While a leader owes an answer another one is
    /// looked for, if only to know that there is one.
    fn wants(&self) -> Wants {
        match self.unanswered_since {
            Some(_) => Wants::Leader,
            None => self.calls.wants(),
        }
    }

    /// Whether only a leader with a majority can have sent this reply.
    fn proves_leader(&self, reply: &Reply) -> bool {
        let Some(link) = &self.link else { return false };
        let answers = match link.questions.open(reply.id) {
            Some(About::Leader) => true,
            Some(About::Life) => self.leader_tracker.leads(),
            Some(About::Level) | None => false,
        };
        let is_answer = !matches!(reply.body, ReplyBody::Problem(_));
        answers && is_answer || self.calls.proves_leader(reply)
    }

    /// Asks a leader that sends nothing else for proof; answers when to look again.
    fn ask_for_proof(&mut self, now: Instant) -> Option<Instant> {
        let since = self.unanswered_since?;
        let link = self.link.as_mut().filter(|_| self.leader_tracker.leads())?;
        let at = since.max(link.since) + PROOF_AFTER;
        if now < at {
            return Some(at);
        }
        link.questions.ask_unless_asked(About::Life);
        None
    }

    fn on_event(&mut self, event: Option<Event>) {
        match event {
            Some(Event::Submit(id, call)) => self.calls.submit(id, *call),
            Some(Event::Abandon(id)) => self.calls.abandon(id),
            Some(Event::HasRoom(id)) => self.calls.has_room(id),
            Some(Event::Report(report)) => {
                self.report = Some((*report, Instant::now()));
                if let Some(link) = &mut self.link {
                    link.report_due = link.takes_reports;
                }
            }
            // All handles are gone.
            Some(Event::Close) | None => self.close(),
        }
    }

    fn close(&mut self) {
        // What was submitted before is completed like everything else.
        self.inbox.close();
        while let Ok(event) = self.inbox.try_recv() {
            if let Event::Submit(id, call) = event {
                self.calls.submit(id, *call);
            }
        }
        self.calls.close();
        self.farewell = Some(Instant::now() + FAREWELL);
    }

    /// Whether the client was closed, and its session has ended or cannot be ended.
    fn is_over(&self) -> bool {
        let Some(farewell) = self.farewell else { return false };
        self.calls.session_keeper.is_over() || self.link.is_none() || Instant::now() >= farewell
    }

    /// Takes what is in the inbox, within a bound.
    fn take_events(&mut self) {
        for _ in 0..BATCH_REQUESTS_MAX {
            if self.farewell.is_some() {
                break;
            }
            match self.inbox.try_recv() {
                Ok(event) => self.on_event(Some(event)),
                Err(_) => break,
            }
        }
    }

    /// Lets callers submit before a frame goes out: what goes together costs nodes and disks
    /// little more than one alone. Those that have just been answered are likely to submit again.
    async fn gather(&mut self) {
        for _ in 0..GATHER_TURNS_MAX {
            if !self.leader_tracker.leads() || !self.calls.expects_more() {
                break;
            }
            tokio::task::yield_now().await;
            self.take_events();
        }
    }

    /// Packs everything that waits into one frame and hands it to the writer.
    fn send(&mut self, now: Instant) {
        // Events that are here already go out with it.
        self.take_events();
        let leads = self.leader_tracker.leads();
        let Some(link) = &mut self.link else { return };
        let mut batch = link.questions.take_due(leads, || self.calls.next_wire());
        if let Some((report, at)) = &self.report
            && link.report_due
        {
            let age = u64::try_from(now.duration_since(*at).as_millis()).unwrap_or(u64::MAX);
            let body = RequestBody::Report(report.clone().aged(age));
            let request = Request { id: self.calls.next_wire(), body };
            // A long one goes with the next frame.
            link.report_due = !self.calls.may_carry(&request);
            batch.push(match link.report_due {
                true => self.calls.introduction(&report.job),
                false => request,
            });
        }
        self.calls.fill(&mut batch, leads, now);
        let owes =
            |request: &Request| is_prompt(request) && !self.calls.is_introduction(request.id);
        if batch.iter().any(owes) {
            self.owes_since.get_or_insert(now);
        }
        if !batch.is_empty() {
            self.calls.commit();
            // There was room a moment ago and this task alone sends. If the
            // writer is gone, the reader's end says why.
            let _ = link.connection.outgoing.try_send(batch);
        }
    }

    fn on_replies(&mut self, replies: Vec<Reply>) {
        let now = Instant::now();
        let questions = self.link.as_ref().map(|link| &link.questions);
        let asked = |reply: &Reply| questions.and_then(|questions| questions.open(reply.id));
        // A node knows the level whatever else it owes, and answers an introduction.
        let is_owed = |reply: &Reply| {
            asked(reply) != Some(About::Level) && !self.calls.is_introduction(reply.id)
        };
        if replies.iter().any(is_owed) {
            self.leader_tracker.useful();
            self.owes_since = None;
        }
        for reply in replies {
            if self.proves_leader(&reply) {
                self.unanswered_since = None;
                // Known before the caller gets its answer.
                self.counters.set_unanswered_since(None);
            }
            let random = &mut || self.random.random();
            let Some(link) = &mut self.link else { return };
            let news = match (link.questions.answered(reply.id), &reply.body) {
                (None, _) => self.calls.on_reply(reply, now, random),
                (Some(About::Level), body) => {
                    let is_low = match body {
                        ReplyBody::Status(status) => self.calls.level_known(status.feature_level),
                        _ => true,
                    };
                    if is_low {
                        link.questions.level_is_low(now, random());
                    }
                    News::None
                }
                (Some(_), ReplyBody::Problem(problem)) => News::NotLeader(problem.leader.clone()),
                (Some(About::Leader), _) => {
                    // Until now the node was only asked who leads.
                    self.calls.begins_frames();
                    self.leader_tracker.led();
                    self.attempts.clear();
                    News::None
                }
                (Some(About::Life), _) => News::None,
            };
            if let News::NotLeader(leader) = news {
                self.leader_tracker.not_leader(leader, now, random);
            }
        }
    }

    fn check_liveness(&mut self, now: Instant) -> Option<Instant> {
        let leads = self.leader_tracker.leads();
        let link = self.link.as_mut()?;
        let expecting = self.calls.expects_answers() || link.questions.expects_answers();
        match link.liveness.check(now, link.connection.activity(), expecting) {
            PeerState::Fine(at) => at,
            PeerState::Probe(at) => {
                link.questions.ask(About::Life);
                if leads {
                    self.unanswered_since.get_or_insert(now);
                }
                Some(at)
            }
            PeerState::Dead => {
                self.lost(&ConnectionError::Silent);
                None
            }
        }
    }

    fn attempt(&mut self, route: Route) {
        let attempt = self.connecting(route);
        self.attempts.push(attempt);
    }

    fn connecting(&self, route: Route) -> BoxFuture<'static, Attempted> {
        let cluster_id = self.leader_tracker.cluster_id().map(str::to_owned);
        let credentials = self.options.credentials();
        let timeout = self.options.connect_timeout * self.leader_tracker.patience(&route.address);
        let tasks = self.tasks.clone();
        let attempt = async move {
            let cluster_id = cluster_id.as_deref();
            let result = connect(&route, cluster_id, credentials, timeout, &tasks).await;
            (route, result)
        };
        attempt.boxed()
    }

    fn on_attempt(&mut self, route: Route, result: Result<(Hello, Connection), ConnectionError>) {
        let now = Instant::now();
        let random = &mut || self.random.random();
        match result {
            Err(error) => {
                tracing::debug!(%route, %error, "cannot connect");
                self.leader_tracker.attempt_failed(&route, error.to_string(), now, random);
                if let Some(problem) = self.leader_tracker.denied(&route.address, error.denial()) {
                    self.calls.shut_out(&problem);
                }
            }
            Ok((hello, connection)) => {
                if self.leader_tracker.connected(&route, &hello, now, random) == Arrival::Drop {
                    return;
                }
                tracing::debug!(%route, node = hello.node, leader = ?hello.leader, "connected");
                self.counters.connects.add(1);
                self.counters.set_addresses(self.leader_tracker.addresses());
                if let Some(old) = self.link.take() {
                    self.calls.link_lost(&format!("left {} for {route}", old.route));
                }
                if self.leader_tracker.leads() {
                    self.attempts.clear();
                }
                let mut questions = Questions::new();
                if self.calls.linked(hello.minor, hello.level) {
                    questions.level_is_low(now, self.random.random());
                }
                self.owes_since = None;
                let takes_reports = hello.minor >= MINOR_REPORTS;
                self.link = Some(Link {
                    route,
                    since: now,
                    connection,
                    report_due: takes_reports && self.report.is_some(),
                    takes_reports,
                    moved: 0,
                    liveness: Liveness::new(
                        self.options.probe_after,
                        self.options.probe_timeout,
                        now,
                    ),
                    questions,
                });
            }
        }
    }

    fn lost(&mut self, error: &ConnectionError) {
        let Some(link) = self.link.take() else { return };
        let random = &mut || self.random.random();
        tracing::debug!(route = %link.route, %error, "lost the connection");
        self.leader_tracker.lost(error.to_string(), Instant::now(), random);
        self.owes_since = None;
        self.calls.link_lost(&format!("the connection to {} was lost ({error})", link.route));
    }
}

/// Whether a healthy node answers it at once.
fn is_prompt(request: &Request) -> bool {
    matches!(
        request.body,
        RequestBody::Propose(_) | RequestBody::Read { .. } | RequestBody::Wait { .. }
    )
}
