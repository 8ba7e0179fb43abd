//! Commands on what processes hold together.

use clap::{Args, Subcommand};
use holdfast_api::{Blob, Generation, ProcessId};

use crate::argument;

/// Commands on held rounds: communicators, locks.
#[derive(Debug, Subcommand)]
pub(crate) enum CommCommand {
    /// List all groups of the job: generation, phase, members, how many hold it, how many wait for
    /// the next one, and why it was revoked
    #[command(visible_alias = "ls")]
    List,
    /// Show all of a group: members, who has not released it and what ends that, who waits, who is
    /// new, why it was revoked, and what happens next
    Show {
        #[command(flatten)]
        group: GroupArgs,
    },
    /// Say that nothing of a group runs in a process any more, where its exit was not seen
    ///
    /// You vouch for something that the cluster cannot see: the process has exited, or its host is
    /// off, and no collective of this generation runs in it, on its GPUs or on its network. The
    /// next generation may close at once. If you are wrong, two generations of the group run side
    /// by side, and results can be corrupted without an error. A process that is alive is refused:
    /// end it with `process remove`, and its agent kills it and reports the exit.
    Excuse {
        #[command(flatten)]
        group: GroupArgs,
        /// The process, as `comm show` names it
        process: ProcessId,
        /// Go on although the process is alive as far as the cluster knows, and its agent could
        /// report the exit
        #[arg(long)]
        yes_it_is_gone: bool,
    },
    /// End the present generation of a group: its members have to stop, and form the next one
    ///
    /// A member that has not stopped in time is declared dead, and its agent kills it. A
    /// generation that was revoked before stays as it is.
    Revoke {
        #[command(flatten)]
        group: GroupArgs,
        /// Say why: shown in the event log and to the members
        #[arg(long, value_name = "TEXT", default_value = "no reason given")]
        reason: String,
    },
}

/// The group that a subcommand of `holdfast comm` is about.
#[derive(Debug, Args)]
pub(crate) struct GroupArgs {
    /// The group: the name of its round
    #[arg(value_parser = argument::blob(), value_name = "GROUP")]
    pub(crate) name: Blob,
    /// Take the group whose present generation this is, where several have the name
    /// [default: the only one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) generation: Option<Generation>,
}
