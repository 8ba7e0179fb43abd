//! The command line, and how much effort it asks for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;

use crate::measure::{self, Measurement};

/// Measures the real programs on this machine and prints a table in Markdown.
#[derive(Debug, Parser)]
#[command(name = "holdfast-bench", version)]
pub struct Arguments {
    /// Fewer repetitions: minutes become one or two, and figures scatter more
    #[arg(long)]
    pub quick: bool,
    /// How often each fault of `matrix` is made [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub faults: Option<u16>,
    /// Only this measurement; may be given several times (--list names them)
    #[arg(long, value_name = "NAME", conflicts_with = "write", value_parser = known)]
    pub only: Vec<&'static Measurement>,
    /// Writes the table to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Lists the measurements and ends
    #[arg(long)]
    pub list: bool,
    /// Folder with the programs [default: the folder of this program]
    #[arg(long, value_name = "DIR")]
    pub binaries: Option<PathBuf>,
    /// Folder for the data of the nodes, on the disk to be measured
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    pub data: PathBuf,
    /// A Python that can import torch, whose TCPStore server is then a peer
    #[arg(long, env = "HOLDFAST_PYTHON", default_value = ".venv/bin/python", value_name = "FILE")]
    pub python: PathBuf,
    /// A Python that can import holdfast and NVRx, whose restart is then measured
    #[arg(
        long,
        env = "HOLDFAST_WHEEL_PYTHON",
        default_value = "target/wheel/venv/bin/python",
        value_name = "FILE"
    )]
    pub wheel_python: PathBuf,
}

fn known(name: &str) -> Result<&'static Measurement, String> {
    measure::ALL
        .iter()
        .find(|measurement| measurement.name() == name)
        .ok_or_else(|| "there is no such measurement; --list names them".to_owned())
}

impl Arguments {
    /// The measurements asked for, in the order of the table.
    pub fn chosen(&self) -> impl Iterator<Item = &'static Measurement> {
        let all = self.only.is_empty();
        measure::ALL.iter().filter(move |measurement| all || self.only.contains(measurement))
    }
}

/// Inputs of every measurement.
#[derive(Debug)]
pub struct Bench {
    /// Folder of the programs.
    pub binaries: PathBuf,
    /// Where nodes keep their data: below here.
    pub data: PathBuf,
    /// A Python that may have torch.
    pub python: PathBuf,
    /// A Python that may have holdfast and NVRx.
    pub wheel_python: PathBuf,
    /// How often and how long.
    pub effort: Effort,
    /// Whether this is a quick run.
    pub quick: bool,
}

/// How often and how long things are measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Repetitions, of which the median counts.
    pub rounds: usize,
    /// Length of one closed-loop load.
    pub load: Duration,
    /// Load before it that does not count.
    pub warm_up: Duration,
    /// How many leaders are killed.
    pub kills: usize,
    /// How many leaders are frozen with SIGSTOP.
    pub freezes: usize,
    /// Times that each fault of the matrix is made.
    pub faults: usize,
    /// Rounds of one barrier.
    pub barriers: usize,
    /// Keys of the big state.
    pub keys: usize,
    /// Snapshots of it that are made under load.
    pub snapshots: usize,
    /// Watchers that have nothing to do with what is written.
    pub watchers: usize,
}

const THOROUGH: Effort = Effort {
    rounds: 5,
    load: Duration::from_secs(3),
    warm_up: Duration::from_millis(500),
    kills: 20,
    freezes: 10,
    faults: 5,
    barriers: 15,
    keys: 1_000_000,
    snapshots: 5,
    watchers: 100_000,
};

const QUICK: Effort = Effort {
    rounds: 2,
    load: Duration::from_millis(1_000),
    warm_up: Duration::from_millis(300),
    kills: 5,
    freezes: 2,
    faults: 2,
    barriers: 5,
    snapshots: 2,
    ..THOROUGH
};

impl Bench {
    /// Looks whether everything is where it should be.
    pub fn prepare(arguments: &Arguments) -> anyhow::Result<Bench> {
        let binaries = match &arguments.binaries {
            Some(folder) => folder.clone(),
            None => {
                let own = std::env::current_exe().context("finding this program")?;
                own.parent().unwrap_or(Path::new(".")).to_owned()
            }
        };
        for program in ["holdfast-store", "holdfast-agent"] {
            ensure!(
                binaries.join(program).exists(),
                "{program} is not in {}; build it (cargo build --release --bins) or give --binaries",
                binaries.display()
            );
        }
        std::fs::create_dir_all(&arguments.data)
            .with_context(|| format!("making {}", arguments.data.display()))?;
        let mut effort = if arguments.quick { QUICK } else { THOROUGH };
        effort.faults = arguments.faults.map_or(effort.faults, usize::from);
        Ok(Bench {
            binaries,
            data: arguments.data.clone(),
            python: arguments.python.clone(),
            wheel_python: arguments.wheel_python.clone(),
            effort,
            quick: arguments.quick,
        })
    }

    /// An empty folder on the disk to be measured; deleted when dropped.
    pub fn folder(&self) -> anyhow::Result<tempfile::TempDir> {
        tempfile::Builder::new()
            .prefix("holdfast-bench-")
            .tempdir_in(&self.data)
            .with_context(|| format!("making a folder in {}", self.data.display()))
    }
}
