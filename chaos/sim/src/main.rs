//! Whole clusters with their clients and trainers in one thread, from a seed.
//!
//! Entry points: [`Simulation::run`] (one seed, in this process) and
//! [`batch::Batch::run`] (many seeds, each in a process of its own). The binary
//! `holdfast-sim` is a command line around them.
//!
//! | module | holds |
//! | --- | --- |
//! | `simulation` | one seed, from the founding to the recovery |
//! | `host` | a process with a runtime, a clock and turns of its own |
//! | `network` | connections as TCP has them, and what goes wrong with links |
//! | `node` | a store node as a process |
//! | `workload` | clients, trainers and the operator as processes |
//! | `episodes` | when something goes wrong, and what holds of leadership then |
//! | `faults`, `flaps`, `crashes` | what goes wrong |
//! | `checks`, `history`, `violation` | what must hold |
//! | `journal` | what happens, line by line |
//! | `system` | what the operating system answers to a simulated thread |
//! | `batch` | many seeds, each in a process of its own |
//!
//! # Architecture invariants
//!
//! * Clocks, random bytes, sockets and disks come from the simulation: the same seed
//!   writes the same journal, byte for byte.
//! * The simulated nodes, clients and trainers are the code of the real programs; only
//!   what is below their seams is replaced.
//! * The checks read the state of the nodes and their disks, and change nothing.
//! * An undecided seed is never a pass.
//!
//! # Modules that know each other
//!
//! * `crashes`, `flaps`, `simulation`: the simulation gives both their turns, and they
//!   change the simulation.
//! * `host`, `journal`: the journal names the host that runs, and a host tells it when
//!   its turn begins and ends.

mod batch;
mod checks;
mod crashes;
mod episodes;
mod faults;
mod flaps;
mod history;
mod host;
mod journal;
mod network;
mod node;
mod simulation;
mod system;
mod violation;
mod workload;

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use anyhow::Context;
use clap::{Parser, ValueEnum};

use batch::Batch;
use flaps::Flaps;
use journal::Journal;
use simulation::{Options, Report, Simulation};
use violation::Violation;

/// Exit codes besides success: a promise was broken; undecided.
const FAIL: u8 = 1;
const UNKNOWN: u8 = 3;

/// Violations that are listed; the others follow from the first.
const LISTED_MAX: usize = 12;

/// Memory of the simulated thread's stack: futures of debug builds are large.
const STACK_BYTES: usize = 64 << 20;

/// Simulate clusters from seeds, each the same every time
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Repeat one seed, with all that happens printed
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Try these seeds, each in a process of its own
    #[arg(long, value_name = "A..B", default_value = "1..100", value_parser = batch::seeds)]
    seeds: (u64, u64),
    /// How often something goes wrong in a seed
    #[arg(long, value_name = "N", default_value_t = 7)]
    episodes: u32,
    /// Disks do nothing when they are asked to sync
    #[arg(long)]
    syncs_lie: bool,
    /// Flap one follower's link to the leader in this way, in place of all else: nothing may change
    #[arg(long, value_name = "HOW")]
    flap: Option<flaps::Flap>,
    /// How often the link flaps
    #[arg(long, value_name = "N", default_value_t = 1_000, requires = "flap")]
    times: u32,
    /// A defect to find, by its name (a build with `--features holdfast-api/planted` has some)
    #[arg(long, value_name = "NAME")]
    planted: Option<String>,
    /// A crash point, at which a node loses its power in each episode (in such a build)
    #[arg(long, value_name = "NAME", conflicts_with = "flap")]
    crash: Option<String>,
    /// Stop at the first seed that fails
    #[arg(long)]
    until_found: bool,
    /// Folder that keeps which seeds were tried; those that this very program has passed are not
    /// tried again
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Seeds at a time [default: one for each processor]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// File for what happens in the one seed, in place of the standard output
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Print the result of the one seed alone
    #[arg(long)]
    quiet: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let ended = match cli.seed {
        Some(seed) => one(seed, &cli),
        None => many(&cli),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("holdfast-sim: {error:#}");
        ExitCode::from(UNKNOWN)
    })
}

fn many(cli: &Cli) -> anyhow::Result<ExitCode> {
    let mut arguments = vec!["--episodes".to_owned(), cli.episodes.to_string()];
    arguments.extend(cli.syncs_lie.then(|| "--syncs-lie".to_owned()));
    if let Some(planted) = &cli.planted {
        arguments.extend(["--planted".to_owned(), planted.clone()]);
    }
    if let Some(crash) = &cli.crash {
        arguments.extend(["--crash".to_owned(), crash.clone()]);
    }
    if let Some(flap) = cli.flap.and_then(|flap| flap.to_possible_value()) {
        let (flap, times) = (flap.get_name().to_owned(), cli.times.to_string());
        arguments.extend(["--flap".to_owned(), flap, "--times".to_owned(), times]);
    }
    let (jobs, until_found) = (cli.jobs, cli.until_found);
    let batch = Batch { seeds: cli.seeds, arguments, jobs, until_found, out: cli.out.clone() };
    let totals = batch.run()?;
    Ok(match totals {
        batch::Totals { failed: 1.., .. } => ExitCode::from(FAIL),
        batch::Totals { unknown: 1.., .. } => ExitCode::from(UNKNOWN),
        batch::Totals { .. } => ExitCode::SUCCESS,
    })
}

fn one(seed: u64, cli: &Cli) -> anyhow::Result<ExitCode> {
    if let Some(defect) = &cli.planted {
        holdfast_api::planted::plant(defect).map_err(anyhow::Error::msg)?;
    }
    let out: Option<Box<dyn Write + Send>> = match &cli.journal {
        Some(path) => {
            let file = std::fs::File::create(path);
            let file = file.with_context(|| format!("cannot write {}", path.display()))?;
            Some(Box::new(BufWriter::new(file)))
        }
        None if cli.quiet => None,
        None => Some(Box::new(BufWriter::new(std::io::stdout()))),
    };
    let flaps = cli.flap.map(|flap| Flaps { flap, times: cli.times });
    let options = Options { seed, episodes: cli.episodes, syncs_lie: cli.syncs_lie, flaps };
    let report = simulate(options, cli.crash.clone(), Journal::new(out))?;
    let known = |violation: &&Violation| !matches!(violation, Violation::Unknown { .. });
    let verdict = match report.violations.iter().find(known) {
        Some(_) => "fail",
        None if report.violations.is_empty() => "pass",
        None => "unknown",
    };
    let (lines, digest) = report.journal;
    println!("seed {seed}: {verdict}; {lines} lines, {digest:016x}; {}", report.summary);
    for violation in report.violations.iter().take(LISTED_MAX) {
        println!("  {violation}");
    }
    if let Some(more) = report.violations.len().checked_sub(LISTED_MAX).filter(|more| *more > 0) {
        println!("  and {more} more");
    }
    if !report.violations.is_empty() || cli.flap.is_some() {
        println!("  after {}", report.faults.join(", "));
    }
    Ok(match verdict {
        "pass" => ExitCode::SUCCESS,
        "fail" => ExitCode::from(FAIL),
        _ => ExitCode::from(UNKNOWN),
    })
}

/// Simulates on a new thread: keys of hash maps are drawn once for each thread.
fn simulate(options: Options, crash: Option<String>, journal: Journal) -> anyhow::Result<Report> {
    let panics: Arc<Mutex<Vec<String>>> = Arc::default();
    let (noted, noting) = (panics.clone(), journal.clone());
    std::panic::set_hook(Box::new(move |panic| {
        let what = panic.to_string().replace('\n', " ");
        noting.note(format_args!("PANIC {what}"));
        if let Ok(mut panics) = noted.lock() {
            panics.push(what);
        }
    }));
    let thread = std::thread::Builder::new().name("simulated".to_owned()).stack_size(STACK_BYTES);
    let simulated = thread.spawn(move || {
        system::simulate(options.seed);
        let logged = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::INFO)
            .without_time()
            .with_ansi(false)
            .with_writer(journal.clone())
            .finish();
        let run = || Simulation::run(options, crash.as_deref(), journal);
        let report = tracing::subscriber::with_default(logged, run);
        (report, threads())
    })?;
    let (mut report, threads) = match simulated.join() {
        Ok((report, threads)) => (report.map_err(anyhow::Error::msg)?, threads),
        Err(_) => anyhow::bail!("the simulation panicked: {:?}", panics.lock()),
    };
    // This one, and the simulated one.
    if threads.len() > 2 {
        report.violations.push(Violation::Threads { names: threads });
    }
    if let Ok(panics) = panics.lock() {
        let panicked = |what: &String| Violation::Panicked { what: what.clone() };
        report.violations.extend(panics.iter().map(panicked));
    }
    Ok(report)
}

/// The names of this program's threads.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    tasks.filter_map(|task| Some(name(task).ok()?.trim().to_owned())).collect()
}
