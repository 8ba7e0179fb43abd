//! A run in a folder: what its clients called and got, a file for each, and
//! beside them `run.json`, which says how the run was made.
//!
//! A client writes a line before each call and after each return, as
//! [`json_lines`] does.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::history::{History, Moment};
use crate::operation::{Action, Operation, Outcome};
use crate::run::Description;
use crate::workload::Workload;
use crate::{clock, history, json_lines};

/// The folder of the clients' files, within that of the run.
pub const HISTORY: &str = "history";
/// The folder of the histories of jobs, within that of the run: a folder for each job, `WORKLOAD-N`.
pub const JOBS: &str = "jobs";
/// The file that describes the run.
pub const DESCRIPTION: &str = "run.json";

/// One line of a client's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    /// The client is about to call.
    Call {
        /// Its number within the file, from 1.
        id: u64,
        at: Moment,
        workload: String,
        key: String,
        action: Action,
    },
    /// A call has ended.
    Return { id: u64, at: Moment, outcome: Outcome },
}

/// A client's own file.
#[derive(Debug)]
pub struct ClientFile {
    file: File,
    calls: u64,
}

impl ClientFile {
    /// Makes `FOLDER/history/CLIENT.jsonl`, which must not be there yet.
    pub fn create(folder: &Path, client: &str) -> std::io::Result<ClientFile> {
        let folder = folder.join(HISTORY);
        fs::create_dir_all(&folder)?;
        let file = File::create_new(json_lines::path(&folder, client))?;
        Ok(ClientFile { file, calls: 0 })
    }

    /// Writes that a call begins now; answers its number.
    pub fn call(&mut self, workload: &str, key: &str, action: Action) -> std::io::Result<u64> {
        self.calls += 1;
        let (workload, key) = (workload.to_owned(), key.to_owned());
        let line = Line::Call { id: self.calls, at: clock::now(), workload, key, action };
        json_lines::append(&mut self.file, &line)?;
        Ok(self.calls)
    }

    /// Writes that a call has ended now.
    pub fn returned(&mut self, id: u64, outcome: Outcome) -> std::io::Result<()> {
        json_lines::append(&mut self.file, &Line::Return { id, at: clock::now(), outcome })
    }
}

/// A run that was read again.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// How it was made; none if its run was killed before it wrote that, or the file was removed.
    pub description: Option<Description>,
    /// In order of their calls.
    pub operations: Vec<Operation>,
    /// The histories of the jobs whose ranks called rounds, with the workload of each and its name.
    pub jobs: Vec<(Workload, String, History)>,
    /// Calls in the file of each client.
    pub calls: BTreeMap<String, u64>,
    /// Last lines that were cut off, in words.
    pub notes: Vec<String>,
}

/// Why a recorded run cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The records cannot be read.
    #[error(transparent)]
    Lines(#[from] json_lines::Error),
    /// The history of a job cannot be read.
    #[error(transparent)]
    Job(#[from] history::Error),
    /// The description is not one.
    #[error("{}: {why}", path.display())]
    Description {
        /// The file that was read.
        path: PathBuf,
        /// What is wrong with its JSON, and where.
        why: serde_json::Error,
    },
    /// There is nothing to judge.
    #[error(
        "{} holds no recorded run: name the folder that `holdfast-chaos run --report` wrote",
        path.display()
    )]
    Empty {
        /// The folder that was read.
        path: PathBuf,
    },
}

/// How many records each program of each job wrote, by job and program.
pub type RecordCounts = BTreeMap<String, BTreeMap<String, u64>>;

/// Counts the records of the jobs in the folder of a run.
pub fn records(folder: &Path) -> Result<RecordCounts, Error> {
    Ok(count(&jobs(&folder.join(JOBS))?))
}

impl Recording {
    /// Whether a folder holds a run of this kind.
    pub fn is_in(folder: &Path) -> bool {
        folder.join(HISTORY).is_dir() || folder.join(DESCRIPTION).is_file()
    }

    /// Reads the recording in a folder.
    pub fn read(folder: &Path) -> Result<Recording, Error> {
        let mut recording = Recording { description: describe(folder)?, ..Recording::default() };
        recording.jobs = jobs(&folder.join(JOBS))?;
        for (_, _, history) in &recording.jobs {
            recording.notes.extend_from_slice(&history.notes);
        }
        let history = folder.join(HISTORY);
        let clients = if history.is_dir() { json_lines::files(&history)? } else { Vec::new() };
        for (client, path) in clients {
            let mut reader = Reader { client: client.clone(), ..Reader::default() };
            let is_cut = json_lines::read(&path, |line| reader.take(line))?;
            let operations = reader.finish();
            recording.calls.insert(client, operations.len() as u64);
            recording.operations.extend(operations);
            if is_cut {
                recording.notes.push(json_lines::cut_off(&path));
            }
        }
        if recording.operations.is_empty() && recording.jobs.is_empty() {
            return Err(Error::Empty { path: folder.to_owned() });
        }
        recording.operations.sort_by_key(|operation| operation.call);
        Ok(recording)
    }

    /// Counts the records of its jobs.
    pub fn records(&self) -> RecordCounts {
        count(&self.jobs)
    }
}

fn count(jobs: &[(Workload, String, History)]) -> RecordCounts {
    let of = |history: &History| -> BTreeMap<String, u64> {
        let programs = history.programs.iter();
        programs.map(|(program, records)| (program.clone(), records.len() as u64)).collect()
    };
    jobs.iter().map(|(_, job, history)| (job.clone(), of(history))).collect()
}

/// Reads the histories of jobs; none if there is no such folder.
fn jobs(folder: &Path) -> Result<Vec<(Workload, String, History)>, Error> {
    let failed = |source| json_lines::Error::File { path: folder.to_owned(), source };
    let mut jobs = Vec::new();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(jobs),
        Err(source) => return Err(failed(source).into()),
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let job = entry.file_name().to_string_lossy().into_owned();
        let workload = job.rsplit_once('-').and_then(|(workload, _)| Workload::named(workload));
        if let Some(workload) = workload.filter(|it| it.is_of_jobs()) {
            jobs.push((workload, job, History::read(&entry.path())?));
        }
    }
    jobs.sort_by(|one, other| one.1.cmp(&other.1));
    Ok(jobs)
}

fn describe(folder: &Path) -> Result<Option<Description>, Error> {
    let path = folder.join(DESCRIPTION);
    match fs::read(&path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map(Some).map_err(|why| Error::Description { path, why })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(json_lines::Error::File { path, source }.into()),
    }
}

/// Puts the calls of one client together from its lines.
#[derive(Debug, Default)]
struct Reader {
    client: String,
    open: BTreeMap<u64, Operation>,
    done: Vec<Operation>,
    calls: u64,
    /// The moment of the line before.
    latest: Moment,
}

impl Reader {
    fn take(&mut self, line: Line) -> Result<(), String> {
        let (Line::Call { at, .. } | Line::Return { at, .. }) = line;
        let latest = std::mem::replace(&mut self.latest, at);
        if at < latest {
            return Err(format!("its moment {at} lies before {latest} of a line above it"));
        }
        match line {
            Line::Call { id, at, workload, key, action } => {
                self.calls += 1;
                if id != self.calls {
                    return Err(format!("call {id} stands where call {} belongs", self.calls));
                }
                if Workload::named(&workload).is_none() {
                    return Err(format!("unknown workload {workload:?}"));
                }
                let client = self.client.clone();
                let outcome = Outcome::Unknown { why: "it never returned".to_owned() };
                let call = at;
                let operation =
                    Operation { client, workload, key, call, returned: None, action, outcome };
                self.open.insert(id, operation);
            }
            Line::Return { id, at, outcome } => {
                let Some(operation) = self.open.remove(&id) else {
                    return Err(format!("call {id} returns, and is not under way"));
                };
                self.done.push(Operation { returned: Some(at), outcome, ..operation });
            }
        }
        Ok(())
    }

    /// All of them; those that have not returned are of unknown outcome.
    fn finish(mut self) -> Vec<Operation> {
        self.done.extend(self.open.into_values());
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Answer;

    fn recorded() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let mut file = ClientFile::create(folder.path(), "a").unwrap();
        let call = file.call("register", "k", Action::Read).unwrap();
        let outcome = Outcome::Ok { answer: Answer::Value(None), revision: Some(3) };
        file.returned(call, outcome).unwrap();
        file.call("register", "k", Action::Delete).unwrap();
        let path = folder.path().join(HISTORY).join("a.jsonl");
        (folder, path)
    }

    #[test]
    fn a_call_that_never_returned_is_unknown() {
        let (folder, _) = recorded();
        let read = Recording::read(folder.path()).unwrap();
        assert_eq!(read.operations.len(), 2);
        assert_eq!(read.operations[0].answer(), Some(&Answer::Value(None)));
        assert!(read.operations[1].is_unknown() && read.notes.is_empty());
        assert!(Recording::is_in(folder.path()) && read.description.is_none());
    }

    #[test]
    fn a_last_line_that_was_cut_off_is_left_out_and_said() {
        let (folder, path) = recorded();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 5]).unwrap();
        let read = Recording::read(folder.path()).unwrap();
        assert_eq!(read.operations.len(), 1);
        assert!(read.notes[0].contains("a.jsonl: the last line was cut off"), "{:?}", read.notes);
        assert_eq!(read.calls["a"], 1);
    }

    #[test]
    fn records_of_jobs_are_counted_and_one_that_was_cut_off_is_said() {
        let (folder, _) = recorded();
        let job = folder.path().join(JOBS).join("vote-0");
        fs::create_dir_all(&job).unwrap();
        let mut recorder = history::Recorder::open(&job, "rank-0-1").unwrap();
        for _ in 0..2 {
            recorder.record(history::What::Leave).unwrap();
        }
        assert_eq!(records(folder.path()).unwrap()["vote-0"]["rank-0-1"], 2);
        let path = json_lines::path(&job, "rank-0-1");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 5]).unwrap();
        let read = Recording::read(folder.path()).unwrap();
        assert_eq!(read.records()["vote-0"]["rank-0-1"], 1);
        let [note] = &read.notes[..] else { panic!("{:?}", read.notes) };
        assert!(note.contains("rank-0-1.jsonl: the last line was cut off"), "{note}");
    }

    #[test]
    fn lines_that_no_client_writes_are_refused_by_file_and_number() {
        let (folder, path) = recorded();
        let good = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = good.lines().collect();
        let again = format!("{}\n{}\n", lines[0], lines[0]);
        let lone = format!("{}\n", lines[1]);
        let misspelt = good.replacen("\"key\"", "\"kay\"", 1);
        let nobodys = good.replace("register", "registre");
        let back = format!("{}\n{}\n", lines[2].replace("\"id\":2", "\"id\":1"), lines[1]);
        for (text, place, why) in [
            ("rubbish\n".to_owned(), "a.jsonl:1", "expected"),
            (again, "a.jsonl:2", "call 1 stands where call 2 belongs"),
            (lone, "a.jsonl:1", "not under way"),
            (misspelt, "a.jsonl:1", "unknown field `kay`"),
            (nobodys, "a.jsonl:1", "unknown workload \"registre\""),
            (back, "a.jsonl:2", "lies before"),
        ] {
            fs::write(&path, &text).unwrap();
            let error = Recording::read(folder.path()).unwrap_err().to_string();
            assert!(error.contains(place) && error.contains(why), "{why}: {error}");
        }
    }

    #[test]
    fn a_folder_without_operations_is_an_error_that_names_the_fix() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(HISTORY)).unwrap();
        let error = Recording::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("name the folder"), "{error}");
    }
}
