//! A second opinion on keys, queues and runs: written from the documented
//! rules, with plain maps and copies, sharing no code with the machine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use holdfast_api::*;

type Bytes = Vec<u8>;

#[derive(Clone, Default)]
pub struct Model {
    pub revision: u64,
    pub jobs: BTreeMap<String, Job>,
}

#[derive(Clone, Default)]
pub struct Job {
    pub runs: BTreeMap<String, Run>,
    open: Option<String>,
    numbers_used: u64,
}

#[derive(Clone, Default)]
pub struct Run {
    ended: bool,
    pub keys: BTreeMap<Bytes, Value>,
    pub queues: BTreeMap<Bytes, VecDeque<Bytes>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    pub bytes: Bytes,
    pub created: u64,
    pub modified: u64,
    pub version: u64,
}

impl Model {
    /// The outcome of a command, or none for any refusal.
    pub fn apply(&mut self, command: &Command) -> Option<Outcome> {
        match command {
            Command::Kv { scope, op } => self.kv(scope, op).map(Outcome::Kv),
            Command::Run(command) => self.run(command).map(Outcome::Run),
            other => panic!("the model does not know {other:?}"),
        }
    }

    fn kv(&mut self, scope: &Scope, op: &KvOp) -> Option<KvOutcome> {
        let job_name = scope.job.to_string();
        let new = !self.jobs.contains_key(&job_name);
        let named = scope.run.as_ref().map(Name::to_string);
        let run_name = match (new, named) {
            (true, named) => named.unwrap_or("default".to_owned()),
            (false, Some(named)) => named,
            (false, None) => self.jobs[&job_name].open.clone()?,
        };
        let before = match new {
            true => Run::default(),
            false => self.jobs[&job_name].runs.get(&run_name)?.clone(),
        };
        if before.ended {
            return None;
        }
        let mut after = before.clone();
        let outcome = after.kv(op, self.revision + 1)?;
        if after.keys != before.keys || after.queues != before.queues {
            self.revision += 1;
            let job = self.jobs.entry(job_name).or_default();
            if new {
                job.opened(&run_name);
            }
            job.runs.insert(run_name, after);
        }
        Some(outcome)
    }

    fn run(&mut self, command: &RunCommand) -> Option<RunOutcome> {
        let next = self.revision + 1;
        let outcome = match command {
            RunCommand::Open { job, run, takeover: _ } => {
                let job = self.jobs.entry(job.to_string()).or_default();
                let automatic = format!("r{}", job.numbers_used + 1);
                let name = run.as_ref().map_or(automatic, Name::to_string);
                let run = name.parse().unwrap();
                if let Some(present) = job.runs.get(&name) {
                    let joined = RunOutcome::Opened { run, created: false, ended: None };
                    return (!present.ended).then_some(joined);
                }
                let former = job.open.take();
                if let Some(former) = &former {
                    job.runs.get_mut(former).unwrap().ended = true;
                }
                job.runs.insert(name.clone(), Run::default());
                job.opened(&name);
                let ended = former.map(|former| former.parse().unwrap());
                RunOutcome::Opened { run, created: true, ended }
            }
            RunCommand::End { job, run } => {
                let job = self.jobs.get_mut(job.as_str())?;
                let run = job.runs.get_mut(run.as_str())?;
                if run.ended {
                    return Some(RunOutcome::Ended);
                }
                run.ended = true;
                job.open = None;
                RunOutcome::Ended
            }
            RunCommand::Delete { job, run } => {
                let job = self.jobs.get_mut(job.as_str())?;
                if !job.runs.get(run.as_str())?.ended {
                    return None;
                }
                job.runs.remove(run.as_str());
                RunOutcome::Deleted
            }
            // Made from level 2 on, which this model does not know.
            RunCommand::Purge { .. } | RunCommand::DeleteJob { .. } => return None,
        };
        self.revision = next;
        Some(outcome)
    }
}

impl Job {
    fn opened(&mut self, name: &str) {
        self.open = Some(name.to_owned());
        if let Some(number) = name.strip_prefix('r').and_then(|digits| digits.parse().ok()) {
            self.numbers_used = self.numbers_used.max(number);
        }
    }
}

impl Run {
    fn kv(&mut self, op: &KvOp, revision: u64) -> Option<KvOutcome> {
        let steps = |steps: &[TransactionOp]| steps.to_vec();
        let put = |key: &Blob, value: &Blob| TransactionOp::Put {
            key: key.clone(),
            value: value.clone(),
        };
        let modified =
            |run: &Run, key: &Blob| run.keys.get(key.as_bytes()).map_or(0, |v| v.modified);
        let value = |run: &Run, key: &Blob| {
            run.keys.get(key.as_bytes()).map(|v| Blob::from(v.bytes.clone()))
        };
        Some(match op {
            KvOp::Put { key, value } => {
                self.write(&[put(key, value)], revision)?;
                KvOutcome::Written
            }
            KvOp::MultiPut { entries } => {
                let all: Vec<_> = entries.iter().map(|e| put(&e.key, &e.value)).collect();
                self.write(&all, revision)?;
                KvOutcome::Written
            }
            KvOp::Append { key, value } => {
                let step = TransactionOp::Append { key: key.clone(), value: value.clone() };
                self.write(&[step], revision)?;
                KvOutcome::Written
            }
            KvOp::Add { key, delta } => {
                let step = TransactionOp::Add { key: key.clone(), delta: *delta };
                match self.write(&[step], revision)?.remove(0) {
                    TransactionOutcome::Added { value } => KvOutcome::Added { value },
                    other => panic!("{other:?}"),
                }
            }
            // The model's cluster is at the first feature level.
            KvOp::Max { .. } => return None,
            KvOp::Delete { key } => {
                let step = TransactionOp::Delete { key: key.clone() };
                match self.write(&[step], revision)?.remove(0) {
                    TransactionOutcome::Deleted { existed } => KvOutcome::Deleted { existed },
                    other => panic!("{other:?}"),
                }
            }
            KvOp::CompareAndSet { key, expected, desired } => {
                let present = value(self, key);
                let swapped = match &present {
                    Some(present) => present == expected,
                    None => expected.is_empty(),
                };
                if swapped {
                    self.write(&[put(key, desired)], revision)?;
                }
                let (value, modified) = (value(self, key), modified(self, key));
                KvOutcome::Compared { swapped, value, modified }
            }
            KvOp::CompareRevisionAndSet { key, revision: expected, value: desired } => {
                let swapped = modified(self, key) == *expected;
                if swapped {
                    self.write(&[put(key, desired)], revision)?;
                }
                let (value, modified) = (value(self, key), modified(self, key));
                KvOutcome::Compared { swapped, value, modified }
            }
            KvOp::QueuePush { key, value } => {
                let queue = self.queues.entry(key.as_bytes().to_vec()).or_default();
                queue.push_back(value.as_bytes().to_vec());
                KvOutcome::Pushed { length: queue.len() as u64 }
            }
            KvOp::QueuePop { key } => {
                let queue = self.queues.entry(key.as_bytes().to_vec()).or_default();
                let length = queue.len() as u64;
                let value = queue.pop_front().map(Blob::from);
                if queue.is_empty() {
                    self.queues.remove(key.as_bytes());
                }
                KvOutcome::Popped { length, value }
            }
            KvOp::Transaction { compare, then, or_else } => {
                let holds = |comparison: &Compare| match comparison {
                    Compare::Value { key, value: wanted } => {
                        value(self, key).as_ref() == Some(wanted)
                    }
                    Compare::Revision { key, revision } => modified(self, key) == *revision,
                    Compare::Exists { key, exists } => value(self, key).is_some() == *exists,
                };
                let succeeded = compare.iter().all(holds);
                let branch = if succeeded { steps(then) } else { steps(or_else) };
                KvOutcome::Transaction { succeeded, outcomes: self.write(&branch, revision)? }
            }
        })
    }

    /// Carries steps out one by one on plain values, then gives every key
    /// that was written one new version.
    fn write(&mut self, steps: &[TransactionOp], revision: u64) -> Option<Vec<TransactionOutcome>> {
        let mut values: BTreeMap<Bytes, Bytes> =
            self.keys.iter().map(|(key, value)| (key.clone(), value.bytes.clone())).collect();
        let (mut written, mut deleted) = (BTreeSet::new(), BTreeSet::new());
        let mut outcomes = Vec::new();
        for step in steps {
            outcomes.push(match step {
                TransactionOp::Get { key } => TransactionOutcome::Value {
                    value: values.get(key.as_bytes()).cloned().map(Blob::from),
                },
                TransactionOp::Put { key, value } => {
                    values.insert(key.as_bytes().to_vec(), value.as_bytes().to_vec());
                    written.insert(key.as_bytes().to_vec());
                    TransactionOutcome::Written
                }
                TransactionOp::Append { key, value } => {
                    values.entry(key.as_bytes().to_vec()).or_default().extend(value.as_bytes());
                    written.insert(key.as_bytes().to_vec());
                    TransactionOutcome::Written
                }
                TransactionOp::Add { key, delta } => {
                    let text = values.get(key.as_bytes());
                    let number = text.map_or(Some(0), |text| leading_number(text))?;
                    let sum = number.wrapping_add(*delta);
                    values.insert(key.as_bytes().to_vec(), sum.to_string().into_bytes());
                    written.insert(key.as_bytes().to_vec());
                    TransactionOutcome::Added { value: sum }
                }
                TransactionOp::Delete { key } => {
                    let existed = values.remove(key.as_bytes()).is_some();
                    written.insert(key.as_bytes().to_vec());
                    if existed {
                        deleted.insert(key.as_bytes().to_vec());
                    }
                    TransactionOutcome::Deleted { existed }
                }
            });
        }
        for key in written {
            let before = self.keys.remove(&key).filter(|_| !deleted.contains(&key));
            if let Some(bytes) = values.remove(&key) {
                let created = before.as_ref().map_or(revision, |before| before.created);
                let version = before.map_or(1, |before| before.version + 1);
                self.keys.insert(key, Value { bytes, created, modified: revision, version });
            }
        }
        Some(outcomes)
    }
}

pub fn leading_number(text: &[u8]) -> Option<i64> {
    let text: String = text.iter().map(|byte| char::from(*byte)).collect();
    let text = text.trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
    let signs = usize::from(text.starts_with(['+', '-']));
    let digits = text[signs..].chars().take_while(char::is_ascii_digit).count();
    text[..signs + digits].parse().ok()
}
