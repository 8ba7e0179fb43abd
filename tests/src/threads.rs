//! Threads of a program that stand still while its others go on.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// Some threads of a process, stopped until this is dropped.
#[derive(Debug)]
pub struct StoppedThreads {
    go_on: Option<Sender<()>>,
    holder: Option<JoinHandle<()>>,
}

impl StoppedThreads {
    /// Stops the threads of this name; the kernel serves their sockets on.
    ///
    /// # Panics
    ///
    /// If there are none, or they cannot be stopped.
    pub fn named(process: u32, name: &str) -> StoppedThreads {
        let ids = ids_of(process, name);
        assert!(!ids.is_empty(), "process {process} has no thread {name}");
        let (stopped, are_stopped) = channel();
        let (go_on, may_go_on) = channel();
        // One thread holds them: the kernel identifies a tracer by its thread.
        let holder = std::thread::spawn(move || {
            for id in &ids {
                ptrace::seize(*id, ptrace::Options::empty()).expect("a child can be traced");
                ptrace::interrupt(*id).expect("it is traced");
                waitpid(*id, Some(WaitPidFlag::__WALL)).expect("it stops");
            }
            stopped.send(()).expect("the test waits");
            // An end of the test ends this, too.
            let _ = may_go_on.recv();
            for id in ids {
                // It may have ended.
                let _ = ptrace::detach(id, None);
            }
        });
        are_stopped.recv().expect("threads of a child can be stopped");
        StoppedThreads { go_on: Some(go_on), holder: Some(holder) }
    }
}

impl Drop for StoppedThreads {
    fn drop(&mut self) {
        drop(self.go_on.take());
        if let Some(holder) = self.holder.take() {
            // Its panic was already reported.
            drop(holder.join());
        }
    }
}

fn ids_of(process: u32, name: &str) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let tasks = tasks.filter_map(|task| {
        let task = task.ok()?;
        let its_name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let id = task.file_name().to_str()?.parse().ok()?;
        (its_name.trim() == name).then_some(Pid::from_raw(id))
    });
    tasks.collect()
}
