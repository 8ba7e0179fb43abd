//! Calls of a hook: the program that breaks and heals nodes of a cluster that is there.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::process::Identity;

/// Bound on one call.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Calls it; it has to succeed in its time. `started` is told which process it is.
pub(crate) async fn call(
    command: Command,
    words: &str,
    started: impl FnOnce(Identity) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut command = tokio::process::Command::from(command);
    // A Ctrl-C at the terminal is ours alone: the hook heals on.
    command.process_group(0).stdin(Stdio::null());
    let child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
    let mut hook = Hook { group: child.id(), child };
    if let Some(process) = hook.group.and_then(Identity::of) {
        started(process)?;
    }
    let ended = tokio::time::timeout(TIME_MAX, hook.child.wait()).await;
    let status = ended.with_context(|| format!("{words} took longer than {TIME_MAX:?}"))??;
    hook.group = None;
    ensure!(status.success(), "{words} ended with {status}");
    Ok(())
}

/// A running hook, with all that it started: killed when dropped.
struct Hook {
    child: tokio::process::Child,
    /// Its process group; none once it has ended.
    group: Option<u32>,
}

impl Drop for Hook {
    fn drop(&mut self) {
        let group = self.group.and_then(|group| i32::try_from(group).ok());
        if let Some(group) = group
            && matches!(self.child.try_wait(), Ok(None))
        {
            // It may end by itself in this moment.
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_hook_leads_a_group_of_its_own_and_its_failure_names_the_call() {
        let mut group = Command::new("sh");
        // The fifth word is the process group.
        group.args([
            "-c",
            "read -r pid name state parent group rest < /proc/$$/stat && test $group = $$",
        ]);
        call(group, "hook", |_| Ok(())).await.unwrap();
        let error = call(Command::new("false"), "hook heal cut 1", |_| Ok(())).await.unwrap_err();
        assert_eq!(error.to_string(), "hook heal cut 1 ended with exit status: 1");
    }
}
