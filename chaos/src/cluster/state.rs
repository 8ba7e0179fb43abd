//! What a run has made on this machine, in a file, so that `heal` can undo it
//! when the run was killed.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use super::foreign::{Broken, Foreign};
use super::process::Identity;
use super::{containers, disks, private};
use crate::network;

/// Between two looks at whether killed processes have ended, and how many.
const END_LOOK_EVERY: Duration = Duration::from_millis(20);
const END_LOOKS_MAX: u32 = 250;

/// Everything that a run has made.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The process of the run itself.
    pub owner: Identity,
    /// Processes that it started.
    pub processes: Vec<Identity>,
    /// The folder of its nodes, if it made one.
    pub folder: Option<PathBuf>,
    /// Names of its network namespaces.
    pub namespaces: Vec<String>,
    /// Where its file systems are mounted, in its folder.
    #[serde(default)]
    pub mounts: Vec<PathBuf>,
    /// Its projects of containers.
    #[serde(default)]
    pub projects: Vec<String>,
    /// The cluster that it works on, if it did not start it.
    #[serde(default)]
    pub foreign: Option<Foreign>,
}

/// A run's state, written again with every change.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    state: State,
}

/// Folder of the state of all runs of this user.
fn place() -> anyhow::Result<PathBuf> {
    private::folder("runs")
}

impl StateFile {
    /// The state file of this process.
    pub fn create(folder: Option<&Path>) -> anyhow::Result<StateFile> {
        let owner = Identity::of(std::process::id()).context("this process has a number")?;
        let path = place()?.join(format!("{}-{}.json", owner.pid, owner.start_ticks));
        let folder = folder.map(Path::to_owned);
        let state = State {
            owner,
            processes: vec![],
            folder,
            namespaces: vec![],
            mounts: vec![],
            projects: vec![],
            foreign: None,
        };
        let file = StateFile { path, state };
        file.write()?;
        Ok(file)
    }

    /// Records a started process.
    pub fn started(&mut self, process: Identity) -> anyhow::Result<()> {
        self.state.processes.retain(Identity::runs);
        self.state.processes.push(process);
        self.write()
    }

    /// A network namespace is about to be made.
    pub fn makes_namespace(&mut self, name: &str) -> anyhow::Result<()> {
        self.state.namespaces.push(name.to_owned());
        self.write()
    }

    /// A file system is about to be mounted.
    pub fn mounts(&mut self, at: &Path) -> anyhow::Result<()> {
        self.state.mounts.retain(|mount| disks::is_mounted(mount));
        self.state.mounts.push(at.to_owned());
        self.write()
    }

    /// Containers of a project are about to be started.
    pub fn makes_project(&mut self, name: &str) -> anyhow::Result<()> {
        self.state.projects.push(name.to_owned());
        self.write()
    }

    /// A cluster that is there is about to be worked on.
    pub fn works_on(&mut self, foreign: Foreign) -> anyhow::Result<()> {
        self.state.foreign = Some(foreign);
        self.write()
    }

    /// A node of that cluster is about to be broken; none: it is healed.
    pub fn breaks(&mut self, broken: Option<Broken>) -> anyhow::Result<()> {
        if let Some(foreign) = &mut self.state.foreign {
            foreign.broken = broken;
        }
        self.write()
    }

    /// The job on that cluster was deleted.
    pub fn job_is_deleted(&mut self) -> anyhow::Result<()> {
        if let Some(foreign) = &mut self.state.foreign {
            foreign.job = None;
        }
        self.write()
    }

    fn write(&self) -> anyhow::Result<()> {
        write(&self.path, &self.state)
    }
}

/// Writes a state as a whole, in the place of an older one.
fn write(path: &Path, state: &State) -> anyhow::Result<()> {
    let text = serde_json::to_vec_pretty(state)?;
    let new = path.with_extension("new");
    std::fs::write(&new, text).with_context(|| new.display().to_string())?;
    std::fs::rename(&new, path).with_context(|| path.display().to_string())
}

impl State {
    /// Whether there is a process, a namespace or a file system of it, or anything on a cluster
    /// that it did not start.
    fn is_left(&self) -> bool {
        self.processes.iter().any(Identity::runs)
            || self.namespaces.iter().any(|name| network::exists(name))
            || self.mounts.iter().any(|mount| disks::is_mounted(mount))
            || self.projects.iter().any(|name| containers::exists(name))
            || self.foreign.as_ref().is_some_and(Foreign::is_left)
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        // All that it names was dropped before; the rest is for `heal`.
        if !self.state.is_left() {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// Undoes what runs that have ended left; answers what it did.
pub fn heal() -> anyhow::Result<Vec<String>> {
    heal_in(&place()?)
}

/// The same of the runs whose states are in this folder.
fn heal_in(place: &Path) -> anyhow::Result<Vec<String>> {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(place)? {
        let path = entry?.path();
        if path.extension().is_none_or(|it| it != "json") {
            continue;
        }
        let mut state = match read(&path) {
            Ok(Some(state)) => state,
            // Its run has ended, and left nothing.
            Ok(None) => continue,
            Err(error) => {
                failed.push(format!("{error:#}"));
                continue;
            }
        };
        if state.owner.runs() {
            done.push(format!("run {} is under way, and left alone", state.owner.pid));
            continue;
        }
        let healed = heal_one(&mut state, &mut done);
        let recorded = match healed {
            Ok(()) => std::fs::remove_file(&path).with_context(|| path.display().to_string()),
            // What is undone by now is not undone again.
            Err(_) => write(&path, &state),
        };
        if let Err(error) = healed.and(recorded) {
            failed.push(format!(
                "run {}: {error:#}; if nothing of that is left, delete {}",
                state.owner.pid,
                path.display()
            ));
        }
    }
    if !failed.is_empty() {
        done.extend(failed);
        bail!("not everything could be undone; run it again:\n{}", done.join("\n"));
    }
    Ok(done)
}

/// Reads a state; none if the file has gone.
fn read(path: &Path) -> anyhow::Result<Option<State>> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| path.display().to_string())?,
    };
    let state = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not what a run writes; delete it", path.display()))?;
    Ok(Some(state))
}

/// Undoes all that can be; the error names everything that cannot.
fn heal_one(state: &mut State, done: &mut Vec<String>) -> anyhow::Result<()> {
    let mut errors = heal_here(state, done);
    if let Some(foreign) = &mut state.foreign {
        errors.extend(foreign.heal(done).err());
    }
    let errors: Vec<String> = errors.iter().map(|error| format!("{error:#}")).collect();
    ensure!(errors.is_empty(), errors.join("; "));
    Ok(())
}

/// Undoes what is on this machine; answers what went wrong.
fn heal_here(state: &State, done: &mut Vec<String>) -> Vec<anyhow::Error> {
    let mut errors = Vec::new();
    let is_own = |mount: &&PathBuf| {
        mount.parent().is_some_and(private::is_of_a_run) && disks::is_mounted(mount)
    };
    // A process that waits for its disk does not end.
    for mount in state.mounts.iter().filter(is_own) {
        errors.extend(disks::thaw(mount).err());
    }
    for process in state.processes.iter().filter(|process| process.runs()) {
        match process.kill_group() {
            // It may have ended by itself.
            Err(error) if process.runs() => errors.push(error),
            _ => done.push(format!("killed process {} of run {}", process.pid, state.owner.pid)),
        }
    }
    errors.extend(await_ends(&state.processes).err());
    for mount in state.mounts.iter().filter(is_own) {
        match disks::unmount(mount) {
            Ok(_) => done.push(format!("unmounted {}", mount.display())),
            Err(error) => errors.push(error),
        }
    }
    for name in &state.namespaces {
        match network::delete(name) {
            Ok(true) => done.push(format!("deleted network namespace {name}")),
            Ok(false) => {}
            Err(error) => errors.push(error),
        }
    }
    for name in &state.projects {
        match containers::remove(name) {
            Ok(true) => done.push(format!("removed the containers of {name}")),
            Ok(false) => {}
            Err(error) => errors.push(error),
        }
    }
    let folder = state.folder.as_deref().filter(|folder| private::is_of_a_run(folder));
    // Nothing is deleted on a disk that is still there.
    if let Some(folder) = folder
        && !state.mounts.iter().any(|mount| disks::is_mounted(mount))
    {
        match std::fs::remove_dir_all(folder).with_context(|| folder.display().to_string()) {
            Ok(()) => done.push(format!("deleted {}", folder.display())),
            Err(error) => errors.push(error),
        }
    }
    errors
}

/// Waits until killed processes, which hold their namespace, have ended.
fn await_ends(processes: &[Identity]) -> anyhow::Result<()> {
    for _ in 0..END_LOOKS_MAX {
        if !processes.iter().any(Identity::runs) {
            return Ok(());
        }
        std::thread::sleep(END_LOOK_EVERY);
    }
    bail!("a process did not end within {:?}", END_LOOK_EVERY * END_LOOKS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_forgotten_only_when_nothing_of_it_is_left() {
        let mut file = StateFile::create(None).unwrap();
        let (path, own) = (file.path.clone(), file.state.owner);
        file.started(own).unwrap();
        drop(file);
        assert!(path.exists());
        drop(StateFile::create(None).unwrap());
        assert!(!path.exists());

        let mut file = StateFile::create(None).unwrap();
        let job = Some("chaos-1".parse().unwrap());
        file.works_on(Foreign { job, ..Foreign::default() }).unwrap();
        file.breaks(Some(Broken { fault: "cut".to_owned(), node: 1 })).unwrap();
        file.job_is_deleted().unwrap();
        drop(file);
        let state: State = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let foreign = state.foreign.unwrap();
        assert_eq!((foreign.job, foreign.broken.unwrap().node), (None, 1));
        drop(StateFile::create(None).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn what_cannot_be_undone_or_read_keeps_nothing_else_from_being_undone() {
        let folder = tempfile::tempdir().unwrap();
        // No process has this start time any more.
        let owner = Identity { pid: std::process::id(), start_ticks: 0 };
        let broken = Some(Broken { fault: "cut".to_owned(), node: 1 });
        let foreign = Foreign { hook: Some("true".into()), broken, ..Foreign::default() };
        let state = State {
            owner,
            processes: vec![owner],
            folder: None,
            namespaces: vec!["of-somebody-else".to_owned()],
            mounts: vec![],
            projects: vec![],
            foreign: Some(foreign),
        };
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("1.json"), "rubbish").unwrap();
        write(&path("2.json"), &state).unwrap();
        write(&path("3.json"), &State { namespaces: vec![], ..state }).unwrap();
        let error = heal_in(folder.path()).unwrap_err().to_string();
        for said in ["1.json is not what a run writes", "of-somebody-else is not a network"] {
            assert!(error.contains(said), "{said}: {error}");
        }
        assert_eq!(error.matches("healed cut of node 1").count(), 2, "{error}");
        assert!(path("2.json").exists() && !path("3.json").exists());
        let left = read(&path("2.json")).unwrap().unwrap();
        assert_eq!(left.foreign.unwrap().broken, None);
        assert!(read(&path("4.json")).unwrap().is_none());
    }
}
