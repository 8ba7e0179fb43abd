//! Laws of the machine, tried on random logs.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeMap;

use holdfast_api::*;
use holdfast_machine::{Applied, Effect, Machine, RunKey, decode_entry, encode_entry};
use proptest::prelude::*;

mod accounts;
mod coordination;
mod generate;
mod held;
mod known;
mod model;
mod order;
mod roll_call;
mod sessions;
mod waits;

fn config() -> ProptestConfig {
    ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() }
}

fn image(machine: &Machine) -> Vec<u8> {
    let mut image = Vec::new();
    machine.encode(&mut image).unwrap();
    image
}

fn restored(machine: &Machine) -> Machine {
    Machine::decode(&mut &image(machine)[..]).unwrap()
}

fn batches(applied: &Applied) -> impl Iterator<Item = &WatchBatch> {
    applied.effects.iter().filter_map(|effect| match effect {
        Effect::Changed(batch) => Some(&**batch),
        Effect::RunOpened { .. }
        | Effect::RunEnded { .. }
        | Effect::Recorded { .. }
        | Effect::Notify(_) => None,
    })
}

proptest! {
    #![proptest_config(config())]

    /// Two replicas agree on every answer and on the state, also when one of
    /// them reads its entries from the log and is copied at every step.
    #[test]
    fn replicas_agree(entries in generate::entries(40)) {
        let (mut one, mut two) = (Machine::new(), Machine::new());
        let mut copies = Vec::new();
        for entry in &entries {
            let logged = decode_entry(&encode_entry(entry)).unwrap();
            prop_assert_eq!(&logged, entry);
            let (here, there) = (one.apply(entry), two.apply(&logged));
            prop_assert_eq!(here.answers.len(), entry.commands.len());
            prop_assert_eq!(here.answers, there.answers);
            prop_assert_eq!(here.effects, there.effects);
            copies.push((two.clone(), two.digest()));
        }
        prop_assert_eq!(one.digest(), two.digest());
        prop_assert_eq!(one.counts(), two.counts());
        for (copy, digest) in copies {
            prop_assert_eq!(copy.digest(), digest, "a copy moved");
        }
    }

    /// A snapshot at any index and the log after it give the state, the answers and the
    /// effects that the whole log gives.
    #[test]
    fn a_snapshot_at_every_index_is_as_good_as_the_log(entries in generate::entries(16)) {
        let mut states = vec![Machine::new()];
        let mut outcomes = Vec::new();
        for entry in &entries {
            let mut next = states[states.len() - 1].clone();
            outcomes.push(next.apply(entry));
            states.push(next);
        }
        for start in 0..=entries.len() {
            let mut machine = restored(&states[start]);
            prop_assert_eq!(image(&machine), image(&states[start]));
            for index in start..entries.len() {
                let applied = machine.apply(&entries[index]);
                prop_assert_eq!(&applied.answers, &outcomes[index].answers);
                prop_assert_eq!(&applied.effects, &outcomes[index].effects);
                prop_assert_eq!(machine.counts(), states[index + 1].counts());
                prop_assert_eq!(machine.due(machine.time(), 99), states[index + 1].due(states[index + 1].time(), 99));
            }
            prop_assert_eq!(machine.digest(), states[entries.len()].digest());
        }
    }

    /// Revisions grow by one, each is reported once, and an answer never carries an older
    /// revision than the one before unless it is a replay.
    #[test]
    fn revisions_grow_by_one(entries in generate::entries(40)) {
        let mut machine = Machine::new();
        let mut revision = 0;
        for entry in &entries {
            let applied = machine.apply(entry);
            let mut answered = revision;
            for answer in applied.answers.iter().filter(|answer| !answer.replayed) {
                prop_assert!(answer.revision == answered || answer.revision == answered + 1);
                answered = answer.revision;
            }
            for batch in batches(&applied) {
                prop_assert_eq!(batch.revision, revision + 1);
                revision = batch.revision;
            }
            prop_assert_eq!(machine.revision(), revision);
            prop_assert_eq!(answered, revision);
        }
    }

    /// Refusals and passing time change nothing.
    #[test]
    fn a_refusal_changes_nothing(entries in generate::entries(40)) {
        let mut machine = Machine::new();
        for entry in &entries {
            machine.apply(&Entry { time: entry.time, commands: Vec::new() });
            for proposal in &entry.commands {
                let before = machine.digest();
                let plain = Proposal { session: None, command: proposal.command.clone() };
                let applied = machine.apply(&Entry { time: 0, commands: vec![plain] });
                if matches!(applied.answers[0].outcome, Outcome::Refused(_)) {
                    prop_assert_eq!(machine.digest(), before);
                    prop_assert_eq!(applied.effects, vec![]);
                }
            }
        }
    }

    /// The history is a gap-free suffix of all reported events.
    #[test]
    fn the_history_is_what_was_told(
        entries in generate::entries(40),
        prefix in proptest::sample::select(vec!["", "k/"]),
        max in 0usize..5,
    ) {
        let mut machine = Machine::new();
        let mut told: Vec<WatchBatch> = Vec::new();
        for entry in &entries {
            told.extend(batches(&machine.apply(entry)).cloned());
        }
        let oldest = machine.counts().history_oldest;
        for (job, run) in [("a", "default"), ("a", "r1"), ("b", "x"), ("b", "r2")] {
            let run = RunKey { job: job.parse().unwrap(), run: run.parse().unwrap() };
            let mut expected = Vec::new();
            // A run of the same name that was deleted before is another run.
            let opened = accounts::opened(&machine, &run.job, &run.run);
            let kept = told.iter().filter(|batch| batch.revision >= oldest.max(opened));
            for batch in kept {
                let wanted = |change: &&Change| {
                    (&change.job, &change.run) == (&run.job, &run.run)
                        && change.key.as_bytes().starts_with(prefix.as_bytes())
                };
                let changes: Vec<_> = batch.changes.iter().filter(wanted).cloned().collect();
                if !changes.is_empty() {
                    expected.push(WatchBatch { revision: batch.revision, changes });
                }
            }
            prop_assert_eq!(
                machine.history(&run, prefix.as_bytes(), oldest - 1..=u64::MAX, 1).is_err(),
                oldest > opened.max(1)
            );
            // Read as a watch does: a piece at a time.
            let mut found = Vec::new();
            let mut from = oldest;
            loop {
                let piece = machine.history(&run, prefix.as_bytes(), from..=u64::MAX, max).unwrap();
                let Some(last) = piece.last() else { break };
                from = last.revision + 1;
                found.extend(piece);
            }
            prop_assert_eq!(found, expected);
        }
    }

    /// A resumed wait gets exactly what happened since; what was pushed is for one consumer,
    /// and counts while it is there.
    #[test]
    fn a_resumed_wait_hears_what_happened(
        entries in generate::plain_entries(30),
        since in 0u64..40,
        least in -5i64..5,
    ) {
        let mut machine = Machine::new();
        let mut told: Vec<WatchBatch> = Vec::new();
        for entry in &entries {
            told.extend(batches(&machine.apply(entry)).cloned());
        }
        let run = RunKey { job: "a".parse().unwrap(), run: "default".parse().unwrap() };
        let opened = accounts::opened(&machine, &run.job, &run.run);
        for key in ["", "a", "k/1"].map(Blob::from) {
            let mut later = told
                .iter()
                .filter(|batch| batch.revision > since && batch.revision >= opened)
                .flat_map(|batch| &batch.changes)
                .filter(|c| c.key == key && (&c.job, &c.run) == (&run.job, &run.run));
            let exists = Condition { key: key.clone(), until: Until::Exists };
            let appeared =
                later.clone().any(|change| matches!(change.kind, ChangeKind::Put { .. }));
            let now = machine.met(&run, &exists, None);
            prop_assert_eq!(machine.met(&run, &exists, Some(since)), now || appeared);
            let reached = Condition { key: key.clone(), until: Until::AtLeast(least) };
            let was_reached = later.any(|change| match &change.kind {
                ChangeKind::Put { value, .. } => {
                    model::leading_number(value.as_bytes()).is_some_and(|number| number >= least)
                }
                _ => false,
            });
            let now = machine.met(&run, &reached, None);
            prop_assert_eq!(machine.met(&run, &reached, Some(since)), now || was_reached);
        }
    }

    /// Keys, queues and runs behave like the reference model.
    #[test]
    fn keys_queues_and_runs_behave_as_documented(entries in generate::plain_entries(60)) {
        let mut machine = Machine::new();
        let mut model = model::Model::default();
        for entry in &entries {
            let answers = machine.apply(entry).answers;
            for (proposal, answer) in entry.commands.iter().zip(answers) {
                let expected = model.apply(&proposal.command);
                match answer.outcome {
                    Outcome::Refused(_) => prop_assert_eq!(expected, None, "{:?}", proposal),
                    outcome => prop_assert_eq!(Some(outcome), expected, "{:?}", proposal),
                }
                prop_assert_eq!(answer.revision, model.revision);
            }
            accounts::check(&machine, &model)?;
        }
    }

    /// An observer that only gets the changes, and forgets deleted runs, knows all keys.
    #[test]
    fn the_changes_tell_every_key(entries in generate::plain_entries(40)) {
        let mut machine = Machine::new();
        let mut heard = BTreeMap::new();
        for entry in &entries {
            let applied = machine.apply(entry);
            let deletions = deletions(entry, &applied);
            for batch in batches(&applied) {
                for change in &batch.changes {
                    let place = (change.job.clone(), change.run.clone(), change.key.clone());
                    match &change.kind {
                        ChangeKind::Put { value, version } => {
                            heard.insert(place, (value.clone(), *version));
                        }
                        ChangeKind::Delete => {
                            prop_assert!(heard.remove(&place).is_some(), "it was not there");
                        }
                        ChangeKind::Push { .. } | ChangeKind::Pop { .. } => {}
                    }
                }
                if let Some((job, run)) = deletions.get(&batch.revision) {
                    heard.retain(|place, _| (&place.0, &place.1) != (job, run));
                }
            }
        }
        for (job, run) in accounts::runs(&machine) {
            let known = accounts::list(&machine, &job, &run).into_iter().map(|entry| {
                ((job.clone(), run.clone(), entry.key), (entry.value.unwrap(), entry.version))
            });
            for (place, what) in known {
                prop_assert_eq!(heard.remove(&place), Some(what));
            }
        }
        prop_assert!(heard.is_empty(), "{heard:?} is gone, and nobody was told");
    }
}

/// The runs that an entry deleted, by the revision at which it did.
fn deletions(entry: &Entry, applied: &Applied) -> BTreeMap<Revision, (Name, Name)> {
    let answered = entry.commands.iter().zip(&applied.answers);
    let deletion = |(proposal, answer): (&Proposal, &Answer)| match &proposal.command {
        Command::Run(RunCommand::Delete { job, run })
            if answer.outcome == Outcome::Run(RunOutcome::Deleted) =>
        {
            Some((answer.revision, (job.clone(), run.clone())))
        }
        _ => None,
    };
    answered.filter_map(deletion).collect()
}
