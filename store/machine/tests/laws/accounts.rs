//! The machine's own accounts of its content, compared with the model's.

use holdfast_api::read::JobInfo;
use holdfast_api::*;
use holdfast_machine::Machine;
use proptest::prelude::*;

use crate::model::Model;

pub fn runs(machine: &Machine) -> Vec<(Name, Name)> {
    let ReadOutcome::Jobs(jobs) = machine.read(&Read::Jobs).outcome else { panic!() };
    let mut runs = Vec::new();
    for JobInfo { job, .. } in jobs {
        for info in infos(machine, &job) {
            runs.push((job.clone(), info.run));
        }
    }
    runs
}

/// Revision of a run's opening; 0 if there is none.
pub fn opened(machine: &Machine, job: &Name, run: &Name) -> Revision {
    match machine.read(&Read::Runs { job: job.clone() }).outcome {
        ReadOutcome::Runs(infos) => {
            infos.iter().find(|info| info.run == *run).map_or(0, |info| info.opened)
        }
        _ => 0,
    }
}

fn infos(machine: &Machine, job: &Name) -> Vec<RunInfo> {
    match machine.read(&Read::Runs { job: job.clone() }).outcome {
        ReadOutcome::Runs(infos) => infos,
        other => panic!("{other:?}"),
    }
}

/// All keys of a run, read a page of two at a time.
pub fn list(machine: &Machine, job: &Name, run: &Name) -> Vec<KeyEntry> {
    let scope = Scope { job: job.clone(), run: Some(run.clone()) };
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let prefix = Blob::from("");
        let read = Read::List { scope: scope.clone(), prefix, after, limit: 2, keys_only: false };
        match machine.read(&read).outcome {
            ReadOutcome::Page { entries, next } => {
                all.extend(entries);
                match next {
                    Some(next) => after = Some(next),
                    None => return all,
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Contents and accounts of every run, of every job and of the whole.
pub fn check(machine: &Machine, model: &Model) -> Result<(), TestCaseError> {
    let ReadOutcome::Jobs(jobs) = machine.read(&Read::Jobs).outcome else { panic!() };
    let in_use = model.jobs.iter().filter(|(_, job)| !job.runs.is_empty());
    prop_assert_eq!(jobs.len(), in_use.clone().count());
    let (mut keys_of_all, mut bytes_of_all, mut runs_of_all) = (0, 0, 0);
    for (job, (name, model)) in jobs.iter().zip(in_use) {
        prop_assert_eq!(job.job.as_str(), name);
        let (mut keys_of_job, mut bytes_of_job) = (0, 0);
        let infos = infos(machine, &job.job);
        prop_assert_eq!(infos.len(), model.runs.len());
        for info in infos {
            let model = &model.runs[info.run.as_str()];
            let listed = list(machine, &job.job, &info.run).into_iter().map(|entry| {
                let KeyEntry { key, value, created, modified, version } = entry;
                let bytes = value.unwrap().as_bytes().to_vec();
                let value = crate::model::Value { bytes, created, modified, version };
                (key.as_bytes().to_vec(), value)
            });
            prop_assert!(listed.eq(model.keys.clone()));
            let mut keys = model.keys.len() as u64;
            let mut bytes: usize =
                model.keys.iter().map(|(key, value)| key.len() + value.bytes.len()).sum();
            for (key, queue) in &model.queues {
                keys += queue.len() as u64;
                bytes += queue.iter().map(|value| key.len() + value.len()).sum::<usize>();
                let scope = Scope { job: job.job.clone(), run: Some(info.run.clone()) };
                let key = Blob::from(key.clone());
                let length = machine.read(&Read::QueueLength { scope, key }).outcome;
                prop_assert_eq!(length, ReadOutcome::Count { count: queue.len() as u64 });
            }
            prop_assert_eq!((info.keys, info.bytes), (keys, bytes as u64));
            keys_of_job += keys;
            bytes_of_job += bytes as u64;
            runs_of_all += 1;
        }
        prop_assert_eq!((job.keys, job.bytes), (keys_of_job, bytes_of_job));
        keys_of_all += keys_of_job;
        bytes_of_all += bytes_of_job;
    }
    let counts = machine.counts();
    prop_assert_eq!(counts.runs, runs_of_all);
    prop_assert_eq!((counts.keys, counts.bytes), (keys_of_all, bytes_of_all));
    Ok(())
}
