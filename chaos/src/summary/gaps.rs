//! Missing parts of a recording.

use std::collections::{BTreeMap, BTreeSet};

use crate::recording::{RecordCounts, Recording};
use crate::run::Description;
use crate::workload::Workload;

/// What a recording lacks.
pub(super) struct Gaps {
    /// What is missing, in words.
    pub(super) doubts: Vec<String>,
    /// Whether clients made calls that it does not hold, or may have: whatever looks wrong
    /// may be explained by one of them, and is not the cluster's fault.
    pub(super) are_calls_lost: bool,
    /// The same of the records of jobs, and of what looks wrong in their rounds.
    pub(super) are_records_lost: bool,
}

impl Gaps {
    /// Compares a recording with the counts in its `run.json`.
    pub(super) fn of(recording: &Recording) -> Gaps {
        let doubts = recording.notes.clone();
        let mut gaps = Gaps { doubts, are_calls_lost: false, are_records_lost: false };
        let Some(description) = &recording.description else {
            let text = "run.json is missing: nothing is known of the clients and the faults";
            gaps.doubts.push(text.to_owned());
            (gaps.are_calls_lost, gaps.are_records_lost) = (true, true);
            return gaps;
        };
        if description.ended.is_none() && description.stopped.is_none() {
            gaps.doubts.push("the run was killed before its end".to_owned());
        }
        gaps.add_calls(description, &recording.calls);
        gaps.add_records(description, &recording.records());
        gaps
    }

    fn add_calls(&mut self, description: &Description, calls: &BTreeMap<String, u64>) {
        let Some(made) = &description.calls else {
            if description.ended.is_some() {
                let text = "run.json does not say how many calls each client made";
                self.doubts.push(text.to_owned());
            }
            for client in description.clients.iter().filter(|it| !calls.contains_key(&it.name)) {
                self.doubts.push(format!("the file of client {} is missing", client.name));
                self.are_calls_lost = true;
            }
            return;
        };
        for (name, said, read) in differences(made, calls) {
            let text = format!("client {name} made {said} calls, and {read} are in its file");
            self.doubts.push(text);
            self.are_calls_lost |= read < said;
        }
    }

    fn add_records(&mut self, description: &Description, records: &RecordCounts) {
        let is_of_jobs = |name: &String| Workload::named(name).is_some_and(Workload::is_of_jobs);
        let Some(made) = &description.records else {
            if description.ended.is_some() && description.workloads.iter().any(is_of_jobs) {
                let text = "run.json does not say how many records each job made";
                self.doubts.push(text.to_owned());
            }
            return;
        };
        let none = BTreeMap::new();
        let jobs: BTreeSet<&String> = made.keys().chain(records.keys()).collect();
        for job in jobs {
            let Some(read) = records.get(job) else {
                self.doubts.push(format!("the history of job {job} is missing"));
                self.are_records_lost = true;
                continue;
            };
            for (program, said, read) in differences(made.get(job).unwrap_or(&none), read) {
                self.doubts.push(format!(
                    "{program} of job {job} made {said} records, and {read} are in its file"
                ));
                self.are_records_lost |= read < said;
            }
        }
    }
}

/// Those with two counts that differ: the name, the first count and the second.
fn differences<'a>(
    one: &'a BTreeMap<String, u64>,
    other: &'a BTreeMap<String, u64>,
) -> impl Iterator<Item = (&'a str, u64, u64)> {
    let names: BTreeSet<&'a String> = one.keys().chain(other.keys()).collect();
    let count = |of: &BTreeMap<String, u64>, name: &String| of.get(name).copied().unwrap_or(0);
    let counted = move |name: &'a String| (name.as_str(), count(one, name), count(other, name));
    names.into_iter().map(counted).filter(|(_, one, other)| one != other)
}
