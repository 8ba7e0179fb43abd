//! A command that is not started, and the one to use instead.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use tracing::warn;

use super::launcher::Launcher;
use super::torch_version::{self, Found, STATIC_SINCE, Version};
use super::torchrun::{self, Around, Contradiction, Rendezvous};
use crate::command_line::RunFlags;
use crate::remedy::quoted;
use crate::settings::Settings;

/// The command was not started: it bypasses the agent, which is itself in order.
pub const EXIT_CODE: u8 = 2;

/// Why a command was not started.
#[derive(Debug)]
pub enum Refusal {
    /// Its own arguments lead its ranks past the agent.
    Contradicts {
        /// How the command bypasses the agent.
        contradiction: Contradiction,
        /// The words before the command.
        before: Vec<OsString>,
    },
    /// Its torch dies of a port that is served already.
    TooOld {
        /// The version of torch that is too old.
        version: Version,
        /// The Python that has it.
        python: PathBuf,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Contradicts { contradiction, before } => {
                f.write_str("not started: this command would leave its ranks without Holdfast\n")?;
                for reason in &contradiction.reasons {
                    writeln!(f, "  {reason}")?;
                }
                let words = before.iter().chain(&contradiction.corrected);
                let words: Vec<String> = words.map(|word| quoted(word)).collect();
                let command = words.join(" ");
                write!(f, "use instead:\n  {command}\nor keep it as it is with --allow-bypass")
            }
            Refusal::TooOld { version, python } => write!(
                f,
                "not started: torchrun of torch {version} ({}) dies when its port is served \
                 already, as the agent does; torch {STATIC_SINCE} is the first that goes on as \
                 a client\nupgrade it (pip install 'torch>={STATIC_SINCE}'), or start the ranks \
                 without torchrun, each with RANK and WORLD_SIZE and the same --run:\n  \
                 RANK=0 WORLD_SIZE=2 holdfast-agent run --run NAME -- python train.py\n\
                 or start it nevertheless with --allow-bypass",
                python.display()
            ),
        }
    }
}

/// Where the command's nodes would meet, if it would work with the agent;
/// bounded in time.
pub async fn judge(
    settings: &Settings,
    flags: &RunFlags,
    launcher: &Launcher,
    command: &[OsString],
) -> Result<Rendezvous, Refusal> {
    // A program that keeps its master address finds the agent by itself.
    let Some(torchrun) = torchrun::find(command).filter(|_| !flags.keep_master_addr) else {
        return Ok(Rendezvous::Static);
    };
    let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let found = torch_version::of(torchrun.program).await;
    let around = Around {
        ports: settings.tcpstore.iter().copied().map(super::environment::reachable).collect(),
        pet_backend: text("PET_RDZV_BACKEND"),
        pet_nodes: text("PET_NNODES"),
        pet_node_rank: text("PET_NODE_RANK").is_some(),
        slurm: launcher.is_slurm_step(),
        has_ours: matches!(&found, Found::Known { has_ours: true, .. }),
    };
    if let Some(contradiction) = torchrun.contradiction(&around) {
        if !flags.allow_bypass {
            let all: Vec<OsString> = std::env::args_os().collect();
            let before = all[..all.len().saturating_sub(command.len())].to_vec();
            return Err(Refusal::Contradicts { contradiction, before });
        }
        for reason in &contradiction.reasons {
            warn!("allowed to bypass Holdfast: {reason}");
        }
    }
    match found {
        Found::Known { version, python, .. } if version < STATIC_SINCE && !flags.allow_bypass => {
            return Err(Refusal::TooOld { version, python });
        }
        Found::Known { .. } => {}
        Found::Unknown(why) => warn!(
            "cannot tell which torch torchrun would use ({why}); it needs {STATIC_SINCE} or newer"
        ),
    }
    Ok(torchrun.rendezvous(&around))
}
