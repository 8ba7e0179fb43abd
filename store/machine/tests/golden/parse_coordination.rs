//! How scripts write commands and questions on leases, processes and rounds.
//!
//! An incarnation is `PROCESS.INCARNATION`, a call of it `0.1#3`, and as an arrival
//! `0.1#3^2@7=payload` (acknowledging all below 2, holding generation 7). The
//! terms of a round are words before its arrivals; see [`terms`].

use holdfast_api::*;

use super::{Words, number};

pub(super) fn command(verb: &str, scope: &Scope, words: &mut Words<'_>) -> Option<Command> {
    Some(match verb {
        "lease" => Command::Lease(lease(scope, words)),
        "register" => Command::Process(register(words)),
        "end" => Command::Process(end(words)),
        "remove" => {
            let (process, incarnation) = coordination(words.next());
            let (scope, reason) = (scope.clone(), text(&words.blob()));
            let command = ProcessCommand::Remove { scope, process, incarnation, reason };
            Command::Process(command)
        }
        "arrive" => {
            let (lease, round) = (words.number(), words.blob());
            let terms = terms(words);
            let arrivals = rest(words, arrival);
            Command::Round(RoundCommand::Arrive {
                lease: lease.into(),
                round,
                terms: Box::new(terms),
                arrivals,
            })
        }
        "withdraw" => {
            let lease = words.number();
            Command::Round(RoundCommand::Withdraw { lease: lease.into(), calls: rest(words, call) })
        }
        "acknowledge" => {
            let lease = words.number();
            Command::Round(RoundCommand::Acknowledge {
                lease: lease.into(),
                calls: rest(words, call),
            })
        }
        // `release GENERATION stopped|exited|excused LIFE …`; 0 = all of it.
        "release" => {
            let generation = words.number();
            let why = match words.next() {
                "stopped" => ReleaseWhy::Stopped,
                "exited" => ReleaseWhy::Exited,
                "excused" => ReleaseWhy::Excused,
                other => panic!("nobody releases by {other}"),
            };
            let releases = rest(words, |word| {
                let (process, incarnation) = coordination(word);
                Release { process, incarnation, generation }
            });
            Command::Round(RoundCommand::Release { scope: scope.clone(), releases, why })
        }
        // `revoke GENERATION LIFE|operator REASON`
        "revoke" => {
            let (scope, generation) = (scope.clone(), words.number());
            let by = Some(words.next()).filter(|by| *by != "operator").map(coordination);
            let by = by.map(|(process, incarnation)| Member { process, incarnation });
            let reason = text(&words.blob());
            Command::Round(RoundCommand::Revoke { scope, generation, by, reason })
        }
        "deadline" => {
            let (scope, round) = (scope.clone(), words.blob());
            let (generation, at) = (words.number(), words.number());
            Command::Round(RoundCommand::Deadline { scope, round, generation, at })
        }
        _ => return None,
    })
}

pub(super) fn read(verb: &str, scope: &Scope, words: &mut Words<'_>) -> Option<Read> {
    let scope = scope.clone();
    Some(match verb {
        "processes" => {
            let after = words.prefixed("after=").map(|word| number(word) as ProcessId);
            let limit = words.prefixed("limit=").map_or(0, number);
            Read::Processes { scope, after, limit }
        }
        "rounds" => Read::rounds(scope),
        "held" => Read::Held { scope, round: None, brief: false },
        "closed" => {
            let generation = words.number();
            let payloads = words.prefixed("payloads").is_some();
            Read::Closed { scope, generation, payloads }
        }
        "iteration" => {
            let asks = words.maybe().map(coordination);
            let process = asks.map(|(process, _)| process);
            let incarnation = asks.map_or(0, |(_, incarnation)| incarnation);
            Read::Iteration { scope, process, incarnation }
        }
        "events" => {
            let after = words.prefixed("after=").map_or(0, number);
            let limit = words.prefixed("limit=").map_or(0, number);
            Read::Events { job: scope.job, after, limit }
        }
        "feed" => {
            let lease = words.number();
            let since = words.prefixed("since=").map_or(0, number);
            let have = words.prefixed("have=").map_or(Vec::new(), numbers);
            Read::Feed { lease: lease.into(), since, have }
        }
        "plan" => {
            let (mut without_hosts, mut without) = (Vec::new(), Vec::new());
            while let Some(host) = words.prefixed("host=") {
                without_hosts.push(host.to_owned());
            }
            while let Some(process) = words.prefixed("p=") {
                without.push(number(process) as ProcessId);
            }
            Read::Plan { scope, without_hosts, without }
        }
        _ => return None,
    })
}

/// `lease grant NONCE HOST TTL`, `lease expire LEASE DEADLINE`, and so on.
fn lease(scope: &Scope, words: &mut Words<'_>) -> LeaseCommand {
    match words.next() {
        "grant" => LeaseCommand::Grant {
            scope: scope.clone(),
            nonce: Nonce(words.number(), 0),
            host: text(&words.blob()),
            ttl_ms: words.number(),
            store_lost_ms_max: words.prefixed("lost=").map(number),
        },
        "join" => LeaseCommand::Join {
            job: scope.job.clone(),
            nonce: Nonce(words.number(), 0),
            host: text(&words.blob()),
            ttl_ms: words.number(),
            run: match (words.maybe(), &scope.run) {
                (Some("new"), _) => RunChoice::New,
                (Some("held"), _) => RunChoice::Held,
                (_, Some(name)) => RunChoice::Named(name.clone()),
                _ => RunChoice::Auto,
            },
            takeover: words.maybe() == Some("takeover"),
            store_lost_ms_max: None,
        },
        "leave" => LeaseCommand::Leave { lease: words.number().into() },
        "keep-alive" => LeaseCommand::KeepAlive { lease: words.number().into() },
        "revoke" => LeaseCommand::Revoke { lease: words.number().into() },
        "expire" => LeaseCommand::Expire { lease: words.number().into(), deadline: words.number() },
        other => panic!("there is no lease command {other}"),
    }
}

/// `register LEASE NONCE [p=N] [replaces=I] [takeover] [standby] [POLICY …]
/// [LABEL=VALUE …]`; see [`policy`].
fn register(words: &mut Words<'_>) -> ProcessCommand {
    let (lease, nonce) = (words.number(), Nonce(words.number(), 0));
    let process = words.prefixed("p=").map(|word| number(word) as ProcessId);
    let replaces = words.prefixed("replaces=").map_or(0, number);
    let takeover = words.prefixed("takeover").is_some();
    let role = match words.prefixed("standby") {
        Some(_) => Role::Standby,
        None => Role::Active,
    };
    let mut numbers = Policy::default();
    let mut labels = Labels::new();
    while let Some(word) = words.maybe() {
        let (name, value) = word.split_once('=').expect("a number or a label, and its value");
        if !policy(&mut numbers, name, value) {
            labels.insert(name.to_owned(), text(&super::blob(value)));
        }
    }
    let policy = Box::new(numbers);
    ProcessCommand::Register {
        lease: lease.into(),
        process,
        nonce,
        replaces,
        takeover,
        role,
        labels,
        policy,
    }
}

/// `world=N min=N last_call=MS active_min=N restarts_max=N window=MS`, and any
/// number of `step=…`; see [`assignment`]. False if it is none of these.
fn policy(policy: &mut Policy, name: &str, value: &str) -> bool {
    match name {
        "world" => policy.world = number(value) as u32,
        "min" => policy.members_min = number(value) as u32,
        "last_call" => policy.last_call_ms = number(value),
        "active_min" => policy.active_min = number(value) as u32,
        "restarts_max" => policy.restarts_max = number(value) as u32,
        "window" => policy.restarts_window_ms = number(value),
        "step" => policy.assignment.push(assignment(value)),
        _ => return false,
    }
    true
}

/// `end LEASE LIFE CAUSE …`; `CAUSE!` if its exit was seen.
fn end(words: &mut Words<'_>) -> ProcessCommand {
    let lease = words.number();
    let mut ends = Vec::new();
    while let Some(who) = words.maybe() {
        let (process, incarnation) = coordination(who);
        let word = words.next();
        let seen = word.strip_suffix('!');
        let (cause, exit_seen) = (cause(seen.unwrap_or(word)), seen.is_some());
        ends.push(ProcessEnd { process, incarnation, cause, exit_seen });
    }
    ProcessCommand::End { lease: lease.into(), ends }
}

fn cause(word: &str) -> Cause {
    let (what, detail) = word.split_once('=').unwrap_or((word, "0"));
    match what {
        "left" => Cause::Left,
        "raised" => Cause::Raised { error: text(&super::blob(detail)) },
        "gone" => Cause::Gone,
        "exited" => Cause::Exited { code: detail.parse().unwrap() },
        "signaled" => Cause::Signaled { signal: detail.parse().unwrap() },
        "unresponsive" => Cause::Unresponsive { silent_ms: number(detail) },
        "removed" => Cause::Removed { reason: text(&super::blob(detail)) },
        other => panic!("there is no cause {other}"),
    }
}

/// `among=set:0,1` or `among=generation:G`, `quorum=MIN..MAX/SETTLE
/// require-all fail=MS evict=MS`, then what is made of it: `advance`,
/// `vote:RULE`, `block`, `exit`, `form`, `ready`, `close`. `hold=SPEC` for a
/// held one, with `stop=MS` and `forms=MS`.
fn terms(words: &mut Words<'_>) -> Terms {
    let mut terms = Terms::default();
    while let Some(word) = words.0.front().copied().filter(|word| !is_call(word)) {
        words.next();
        let (term, value) = word.split_once('=').unwrap_or((word, ""));
        let deadline = |then| Some(Deadline { after_ms: number(value), then });
        match term {
            "among" => terms.among = among(value),
            "quorum" => terms.rule = quorum(value),
            "require-all" => terms.require_all = true,
            "fail" => terms.deadline = deadline(AtDeadline::Fail),
            "evict" => terms.deadline = deadline(AtDeadline::Evict),
            "advance" => terms.conclusion = Conclusion::Advance,
            "vote:and" => terms.conclusion = Conclusion::Vote(VoteRule::And),
            "vote:unanimous" => terms.conclusion = Conclusion::Vote(VoteRule::Unanimous),
            "vote:plurality" => terms.conclusion = Conclusion::Vote(VoteRule::Plurality),
            "block" => terms.conclusion = Conclusion::Block,
            "exit" => terms.conclusion = Conclusion::Exit,
            "form" => terms.conclusion = Conclusion::Form,
            "ready" => terms.conclusion = Conclusion::Ready,
            "close" => terms.conclusion = Conclusion::Close,
            "hold" => terms.hold.get_or_insert_default().spec = super::blob(value),
            "stop" => terms.hold.get_or_insert_default().stop_ms_max = number(value),
            "forms" => terms.hold.get_or_insert_default().form_ms_max = number(value),
            other => panic!("there is no term {other}"),
        }
    }
    terms
}

fn among(value: &str) -> Among {
    match value.split_once(':') {
        Some(("generation", generation)) => Among::Generation(number(generation)),
        Some(("set", set)) => {
            let set = numbers(set).into_iter().map(|process| process as ProcessId);
            Among::Set(set.collect())
        }
        _ => panic!("a round is among set:PROCESSES or generation:NUMBER, not {value}"),
    }
}

fn quorum(value: &str) -> Rule {
    let (bounds, settle) = value.split_once('/').unwrap_or((value, "0"));
    let (min, max) = bounds.split_once("..").expect("min..max");
    Rule::Quorum { min: number(min) as u32, max: number(max) as u32, settle_ms: number(settle) }
}

/// `shift`, `fill`, `grouped:LABEL:MIN:MAX`, `most:N`, `divisible:N`.
fn assignment(word: &str) -> AssignmentStep {
    let parts: Vec<_> = word.split(':').collect();
    match parts[..] {
        ["shift"] => AssignmentStep::Shift,
        ["fill"] => AssignmentStep::FillGaps,
        ["grouped", label, min, max] => AssignmentStep::FilterGrouped {
            label: label.to_owned(),
            min: number(min) as u32,
            max: number(max) as u32,
        },
        ["most", max] => AssignmentStep::MaxActive { max: number(max) as u32 },
        ["divisible", by] => AssignmentStep::DivisibleBy { divisor: number(by) as u32 },
        _ => panic!("there is no step {word}"),
    }
}

fn is_call(word: &str) -> bool {
    word.split_once('#').is_some_and(|(who, _)| who.contains('.'))
}

fn arrival(word: &str) -> Arrival {
    let (who, payload) = word.split_once('=').unwrap_or((word, ""));
    let (who, holds) = who.split_once('@').unwrap_or((who, "0"));
    let (who, ack) = who.split_once('^').unwrap_or((who, "0"));
    let CallId { process, incarnation, call } = call(who);
    let (ack, holds) = (number(ack), number(holds));
    Arrival { process, incarnation, call, ack, payload: super::blob(payload), holds }
}

fn call(word: &str) -> CallId {
    let (who, call) = word.split_once('#').expect("a call is LIFE#NUMBER");
    let (process, incarnation) = coordination(who);
    CallId { process, incarnation, call: number(call) }
}

fn coordination(word: &str) -> (ProcessId, Incarnation) {
    let (process, incarnation) = word.split_once('.').expect("a life is PROCESS.INCARNATION");
    (number(process) as ProcessId, number(incarnation))
}

fn numbers(word: &str) -> Vec<u64> {
    word.split(',').filter(|word| !word.is_empty()).map(number).collect()
}

fn rest<T>(words: &mut Words<'_>, one: impl Fn(&str) -> T) -> Vec<T> {
    std::iter::from_fn(|| words.maybe()).map(one).collect()
}

fn text(blob: &Blob) -> String {
    String::from_utf8(blob.as_bytes().to_vec()).unwrap()
}
