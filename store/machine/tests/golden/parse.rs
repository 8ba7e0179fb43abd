//! How scripts write commands.
//!
//! One line is one log entry, with ` ; ` between its commands. Before a
//! command may stand `t=MS` (the entry's stamp; else the time stays), a
//! session `s1#3` or `s1#3^2` (session 1, sequence 3, ack 2; ack 1 if left
//! out) and a scope `@job` or `@job/run`. Keys and values are escaped as for
//! people; `""` is the empty one, and `x*100` a hundred times x.

use holdfast_api::*;

#[path = "parse_coordination.rs"]
mod coordination;

pub enum Line {
    Entry(Entry),
    Read(Read),
    Ask(Ask),
    /// So many commands that the last answer alone is shown.
    Crowd(Entry),
}

/// Questions that are not reads.
pub enum Ask {
    Met { scope: Scope, condition: Condition, since: Option<Revision> },
    History { scope: Scope, prefix: Blob, from: Revision, max: usize },
    Resolve(Scope),
    Fenced(Scope),
    Due(usize),
    Purgeable { kept_ms: u64, max: usize },
    Counts,
    State,
    Revoked,
    Retired(NodeId),
    Told { lease: LeaseId, since: Revision },
}

pub fn line(text: &str, now: LogTime) -> Line {
    if let Some(jobs) = text.strip_prefix("crowd ") {
        return Line::Crowd(crowd(number(jobs), now));
    }
    let mut entry = Entry { time: now, commands: Vec::new() };
    for part in text.split(" ; ") {
        let mut words = Words(part.split_whitespace().collect());
        if let Some(time) = words.prefixed("t=") {
            entry.time = number(time);
        }
        let session = words.prefixed("s").filter(|word| word.contains('#')).map(session);
        let scope = words.prefixed("@").map(scope).unwrap_or_default();
        let verb = words.next();
        if let Some(read) = read(verb, &scope, &mut words) {
            words.end();
            return Line::Read(read);
        }
        if let Some(ask) = ask(verb, &scope, &mut words) {
            words.end();
            return Line::Ask(ask);
        }
        let command = command(verb, scope, &mut words);
        words.end();
        entry.commands.push(Proposal { session, command });
    }
    Line::Entry(entry)
}

/// Jobs `crowd-0` and so on, each with one run that ends and is deleted.
fn crowd(jobs: u64, time: LogTime) -> Entry {
    let commands = (0..jobs).flat_map(|n| {
        let job: Name = format!("crowd-{n}").parse().unwrap();
        let run: Name = "r1".parse().unwrap();
        [
            RunCommand::Open { job: job.clone(), run: None, takeover: false },
            RunCommand::End { job: job.clone(), run },
            RunCommand::DeleteJob { job },
        ]
    });
    let proposal = |command| Proposal { session: None, command: Command::Run(command) };
    Entry { time, commands: commands.map(proposal).collect() }
}

struct Words<'t>(std::collections::VecDeque<&'t str>);

impl<'t> Words<'t> {
    fn next(&mut self) -> &'t str {
        self.0.pop_front().expect("the command is too short")
    }

    fn maybe(&mut self) -> Option<&'t str> {
        self.0.pop_front()
    }

    /// The rest of the next word, if it has this prefix. No verb is taken for a prefix:
    /// none has digits after its first letter.
    fn prefixed(&mut self, prefix: &str) -> Option<&'t str> {
        let rest = self.0.front()?.strip_prefix(prefix)?;
        if prefix == "s" && !rest.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        self.0.pop_front();
        Some(rest)
    }

    fn blob(&mut self) -> Blob {
        blob(self.next())
    }

    fn blobs(&mut self) -> Vec<Blob> {
        let mut blobs = Vec::new();
        while !self.0.is_empty() {
            blobs.push(self.blob());
        }
        blobs
    }

    fn number(&mut self) -> u64 {
        number(self.next())
    }

    fn signed(&mut self) -> i64 {
        let word = self.next();
        word.parse().unwrap_or_else(|_| panic!("{word} is not a number"))
    }

    fn name(&mut self) -> Name {
        self.next().parse().unwrap()
    }

    fn end(&self) {
        assert!(self.0.is_empty(), "words too many: {:?}", self.0);
    }
}

fn blob(word: &str) -> Blob {
    match word.split_once('*') {
        _ if word == "\"\"" => Blob::from(""),
        Some((what, times)) if times.parse::<usize>().is_ok() => {
            Blob::from(what.repeat(number(times) as usize))
        }
        _ => Blob::from_escaped(word),
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("{word} is not a number"))
}

fn session(word: &str) -> SessionRef {
    let (id, rest) = word.split_once('#').unwrap();
    let (sequence, ack) = rest.split_once('^').unwrap_or((rest, "1"));
    SessionRef { id: number(id).into(), sequence: number(sequence), ack: number(ack) }
}

fn scope(word: &str) -> Scope {
    let (job, run) = match word.split_once('/') {
        Some((job, run)) => (job, Some(run.parse().unwrap())),
        None => (word, None),
    };
    Scope { job: job.parse().unwrap(), run }
}

fn read(verb: &str, scope: &Scope, words: &mut Words<'_>) -> Option<Read> {
    let scope = scope.clone();
    Some(match verb {
        "get" => Read::Get { scope, key: words.blob() },
        "multi-get" => Read::MultiGet { scope, keys: words.blobs() },
        "check" => Read::Check { scope, keys: words.blobs() },
        "list" => {
            let prefix = words.blob();
            let after = words.prefixed("after=").map(Blob::from_escaped);
            let limit = words.prefixed("limit=").map_or(0, number);
            let keys_only = words.prefixed("keys-only").is_some();
            Read::List { scope, prefix, after, limit, keys_only }
        }
        "count" => Read::Count { scope, prefix: words.blob() },
        "queue-length" => Read::QueueLength { scope, key: words.blob() },
        "jobs" => Read::Jobs,
        "runs" => Read::Runs { job: words.name() },
        _ => return coordination::read(verb, &scope, words),
    })
}

fn ask(verb: &str, scope: &Scope, words: &mut Words<'_>) -> Option<Ask> {
    let scope = scope.clone();
    Some(match verb {
        "met" => {
            let key = words.blob();
            let least = words.prefixed(">=").map(|least| Until::AtLeast(least.parse().unwrap()));
            let condition = Condition { key, until: least.unwrap_or_default() };
            Ask::Met { scope, condition, since: words.prefixed("since=").map(number) }
        }
        "history" => {
            let prefix = words.blob();
            let from = words.prefixed("from=").map_or(1, number);
            let max = words.prefixed("max=").map_or(1000, number) as usize;
            Ask::History { scope, prefix, from, max }
        }
        "resolve" => Ask::Resolve(scope),
        "fenced" => Ask::Fenced(scope),
        "due" => Ask::Due(words.maybe().map_or(100, number) as usize),
        "purgeable" => Ask::Purgeable {
            kept_ms: words.number(),
            max: words.maybe().map_or(100, number) as usize,
        },
        "counts" => Ask::Counts,
        "state" => Ask::State,
        "revoked" => Ask::Revoked,
        "is-retired" => Ask::Retired(words.number()),
        "told" => Ask::Told { lease: words.number().into(), since: words.number() },
        _ => return None,
    })
}

fn command(verb: &str, scope: Scope, words: &mut Words<'_>) -> Command {
    match verb {
        "session" => Command::Session(session_command(words)),
        "run" => Command::Run(run_command(words)),
        "leader-started" => {
            Command::Cluster(ClusterCommand::LeaderStarted { node: words.number() })
        }
        "tick" => Command::Cluster(ClusterCommand::Tick),
        "found" => Command::Cluster(ClusterCommand::Found {
            cluster_id: String::from_utf8(words.blob().as_bytes().to_vec()).unwrap(),
        }),
        "limits" => Command::Cluster(ClusterCommand::SetLimits { limits: limits(words) }),
        "feature-level" => {
            Command::Cluster(ClusterCommand::SetFeatureLevel { level: words.number() as u32 })
        }
        "pipeline" => {
            // Up to a comma each.
            let mut ops = Vec::new();
            while let Some(verb) = words.maybe() {
                if verb != "," {
                    ops.push(kv(verb, words));
                }
            }
            Command::Pipeline { scope, ops }
        }
        "revoke-token" => {
            let (token, keep_ms) = (words.name(), words.number());
            Command::Cluster(ClusterCommand::RevokeToken { token, keep_ms })
        }
        "retire" => Command::Cluster(ClusterCommand::RetireNode { node: words.number() }),
        _ => match coordination::command(verb, &scope, words) {
            Some(command) => command,
            None => Command::Kv { scope, op: kv(verb, words) },
        },
    }
}

fn kv(verb: &str, words: &mut Words<'_>) -> KvOp {
    match verb {
        "put" => KvOp::Put { key: words.blob(), value: words.blob() },
        "multi-put" => {
            let mut entries = Vec::new();
            while !words.0.is_empty() {
                entries.push(KeyValue { key: words.blob(), value: words.blob() });
            }
            KvOp::MultiPut { entries }
        }
        "add" => KvOp::Add { key: words.blob(), delta: words.signed() },
        "max" => KvOp::Max { key: words.blob(), number: words.signed() },
        "cas" => {
            KvOp::CompareAndSet { key: words.blob(), expected: words.blob(), desired: words.blob() }
        }
        "cas-revision" => KvOp::CompareRevisionAndSet {
            key: words.blob(),
            revision: words.number(),
            value: words.blob(),
        },
        "append" => KvOp::Append { key: words.blob(), value: words.blob() },
        "delete" => KvOp::Delete { key: words.blob() },
        "push" => KvOp::QueuePush { key: words.blob(), value: words.blob() },
        "pop" => KvOp::QueuePop { key: words.blob() },
        "transaction" => transaction(words),
        other => panic!("there is no command {other}"),
    }
}

/// `transaction [if COMPARE , …] [then STEP , …] [else STEP , …]`
fn transaction(words: &mut Words<'_>) -> KvOp {
    let (mut compare, mut then, mut or_else) = (Vec::new(), Vec::new(), Vec::new());
    let mut part = "";
    while let Some(word) = words.maybe() {
        match (word, part) {
            ("if" | "then" | "else", _) => part = word,
            (",", _) => {}
            (word, "if") => compare.push(match word {
                "value" => Compare::Value { key: words.blob(), value: words.blob() },
                "revision" => Compare::Revision { key: words.blob(), revision: words.number() },
                "exists" => Compare::Exists { key: words.blob(), exists: true },
                "absent" => Compare::Exists { key: words.blob(), exists: false },
                other => panic!("there is no comparison {other}"),
            }),
            (word, "then") => then.push(step(word, words)),
            (word, "else") => or_else.push(step(word, words)),
            (word, _) => panic!("{word} belongs behind if, then or else"),
        }
    }
    KvOp::Transaction { compare, then, or_else }
}

fn step(verb: &str, words: &mut Words<'_>) -> TransactionOp {
    match verb {
        "get" => TransactionOp::Get { key: words.blob() },
        "put" => TransactionOp::Put { key: words.blob(), value: words.blob() },
        "add" => TransactionOp::Add { key: words.blob(), delta: words.signed() },
        "append" => TransactionOp::Append { key: words.blob(), value: words.blob() },
        "delete" => TransactionOp::Delete { key: words.blob() },
        other => panic!("there is no step {other}"),
    }
}

fn session_command(words: &mut Words<'_>) -> SessionCommand {
    match words.next() {
        "open" => SessionCommand::Open {
            nonce: Nonce(words.number(), 0),
            ttl_ms: words.number(),
            job: words.prefixed("job=").map(|job| job.parse().unwrap()),
            lease: words.maybe().map(|lease| lease.parse().expect("a lease is a number")),
        },
        "keep-alive" => SessionCommand::KeepAlive { session: words.number().into() },
        "close" => SessionCommand::Close { session: words.number().into() },
        "expire" => {
            SessionCommand::Expire { session: words.number().into(), deadline: words.number() }
        }
        other => panic!("there is no session command {other}"),
    }
}

fn run_command(words: &mut Words<'_>) -> RunCommand {
    match words.next() {
        "open" => RunCommand::Open {
            job: words.name(),
            run: words.maybe().filter(|run| *run != "-").map(|run| run.parse().unwrap()),
            takeover: words.maybe() == Some("takeover"),
        },
        "end" => RunCommand::End { job: words.name(), run: words.name() },
        "delete" => RunCommand::Delete { job: words.name(), run: words.name() },
        "purge" => {
            RunCommand::Purge { job: words.name(), run: words.name(), ended_at: words.number() }
        }
        "delete-job" => RunCommand::DeleteJob { job: words.name() },
        other => panic!("there is no run command {other}"),
    }
}

/// The default limits, but for those named: `limits key_bytes_max=10 …`
fn limits(words: &mut Words<'_>) -> Limits {
    let mut limits = serde_json::to_value(Limits::default()).unwrap();
    let whole = serde_json::to_value(limits::Whole::from(&Limits::default()));
    let mut whole = whole.unwrap();
    let (mut coordination, mut budget) = (whole["life"].take(), whole["budget"].take());
    while let Some(word) = words.maybe() {
        let (field, value) = word.split_once('=').unwrap();
        let of = [&mut coordination, &mut budget, &mut limits];
        let of = of.into_iter().find(|of| of.get(field).is_some());
        of.unwrap_or_else(|| panic!("there is no limit {field}"))[field] = number(value).into();
    }
    limits["life"] = coordination;
    limits["budget"] = budget;
    serde_json::from_value(limits).unwrap()
}
