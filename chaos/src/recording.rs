//! A run in a folder: what its clients called and got, a file for each, and
//! beside them `run.json`, which says how the run was made.
//!
//! A client writes a line before each call and after each return, each with one
//! `write(2)`, so that a kill loses one line at most.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::history::Moment;
use crate::operation::{Action, Operation, Outcome};
use crate::workload::Workload;
use crate::{clock, run::Description};

/// The folder of the clients' files, within that of the run.
pub const HISTORY: &str = "history";
/// The file that says how the run was made.
pub const DESCRIPTION: &str = "run.json";

/// One line of a client's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    /// The client is about to call.
    Call {
        /// Its number within the file, from 1.
        id: u64,
        /// The moment before.
        at: Moment,
        /// For which checker.
        workload: String,
        /// On what.
        key: String,
        /// What is asked.
        action: Action,
    },
    /// A call has ended.
    Return {
        /// Which.
        id: u64,
        /// The moment after.
        at: Moment,
        /// What is known of it.
        outcome: Outcome,
    },
}

/// A client's own file.
#[derive(Debug)]
pub struct ClientFile {
    file: File,
    calls: u64,
}

impl ClientFile {
    /// Makes `FOLDER/history/CLIENT.jsonl`.
    pub fn create(folder: &Path, client: &str) -> std::io::Result<ClientFile> {
        let folder = folder.join(HISTORY);
        fs::create_dir_all(&folder)?;
        let file = File::create_new(folder.join(format!("{client}.jsonl")))?;
        Ok(ClientFile { file, calls: 0 })
    }

    /// Writes that a call begins now; answers its number.
    pub fn call(&mut self, workload: &str, key: &str, action: Action) -> std::io::Result<u64> {
        self.calls += 1;
        let (workload, key) = (workload.to_owned(), key.to_owned());
        self.write(&Line::Call { id: self.calls, at: clock::now(), workload, key, action })?;
        Ok(self.calls)
    }

    /// Writes that a call has ended now.
    pub fn returned(&mut self, id: u64, outcome: Outcome) -> std::io::Result<()> {
        self.write(&Line::Return { id, at: clock::now(), outcome })
    }

    fn write(&mut self, line: &Line) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }
}

/// A run that was read again.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// How it was made; none if its run was killed before it wrote that, or somebody
    /// took it away.
    pub description: Option<Description>,
    /// In order of their calls.
    pub operations: Vec<Operation>,
    /// Calls in the file of each client.
    pub calls: BTreeMap<String, u64>,
    /// Last lines that were cut off, in words.
    pub notes: Vec<String>,
}

/// Why a recorded run cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not what a client writes.
    #[error("{}:{line}: {why}; the history was edited or damaged, and is not judged", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The description is not one.
    #[error("{}: {why}", path.display())]
    Description {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: serde_json::Error,
    },
    /// There is nothing to judge.
    #[error(
        "{} holds no recorded run: name the folder that `holdfast-chaos run --report` wrote",
        path.display()
    )]
    Empty {
        /// The folder.
        path: PathBuf,
    },
}

impl Recording {
    /// Whether a folder holds a run of this kind.
    pub fn is_in(folder: &Path) -> bool {
        folder.join(HISTORY).is_dir()
    }

    /// Reads a folder.
    pub fn read(folder: &Path) -> Result<Recording, Error> {
        let mut recording = Recording { description: describe(folder)?, ..Recording::default() };
        for path in files(folder)? {
            let client = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let text = fs::read_to_string(&path);
            let text = text.map_err(|source| Error::File { path: path.clone(), source })?;
            let (operations, cut) = parse(&client, &text).map_err(|(line, why)| Error::Line {
                path: path.clone(),
                line,
                why,
            })?;
            recording.calls.insert(client, operations.len() as u64);
            recording.operations.extend(operations);
            if cut {
                let note = format!("{}: the last line was cut off, and left out", path.display());
                recording.notes.push(note);
            }
        }
        if recording.operations.is_empty() {
            return Err(Error::Empty { path: folder.to_owned() });
        }
        recording.operations.sort_by_key(|operation| operation.call);
        Ok(recording)
    }
}

fn describe(folder: &Path) -> Result<Option<Description>, Error> {
    let path = folder.join(DESCRIPTION);
    match fs::read(&path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map(Some).map_err(|why| Error::Description { path, why })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::File { path, source }),
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let folder = folder.join(HISTORY);
    let failed = |source| Error::File { path: folder.clone(), source };
    let entries: Result<Vec<_>, _> = fs::read_dir(&folder).map_err(failed)?.collect();
    let paths = entries.map_err(failed)?.into_iter().map(|entry| entry.path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|it| it == "jsonl")).collect();
    paths.sort();
    Ok(paths)
}

/// The operations of one file, and whether its last line was cut off.
fn parse(client: &str, text: &str) -> Result<(Vec<Operation>, bool), (usize, String)> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut open: BTreeMap<u64, Operation> = BTreeMap::new();
    let (mut done, mut calls, mut latest) = (Vec::new(), 0, 0);
    for (number, line) in (1..).zip(whole.lines()) {
        let wrong = |why: String| (number, why);
        let line: Line = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        let (Line::Call { at, .. } | Line::Return { at, .. }) = line;
        if at < latest {
            return Err(wrong(format!("its moment {at} lies before {latest} of a line above it")));
        }
        latest = at;
        match line {
            Line::Call { id, at, workload, key, action } => {
                calls += 1;
                if id != calls {
                    return Err(wrong(format!("call {id} stands where call {calls} belongs")));
                }
                if Workload::named(&workload).is_none() {
                    return Err(wrong(format!("there is no workload {workload:?}")));
                }
                let client = client.to_owned();
                let outcome = Outcome::Unknown { why: "it never returned".to_owned() };
                let call = at;
                let operation =
                    Operation { client, workload, key, call, returned: None, action, outcome };
                open.insert(id, operation);
            }
            Line::Return { id, at, outcome } => {
                let Some(operation) = open.remove(&id) else {
                    return Err(wrong(format!("call {id} returns, and is not under way")));
                };
                done.push(Operation { returned: Some(at), outcome, ..operation });
            }
        }
    }
    done.extend(open.into_values());
    Ok((done, !text.is_empty() && !text.ends_with('\n')))
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
            (nobodys, "a.jsonl:1", "there is no workload \"registre\""),
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
