//! `holdfast-chaos check`.

use std::path::PathBuf;

use anyhow::Context;
use holdfast_chaos::judge::Verdict;
use holdfast_chaos::recording::Recording;
use holdfast_chaos::{History, Report, check};

use super::{print, verdict};

/// Judge recorded runs again, and recorded histories of rounds
///
/// What a folder holds is seen from its content: a run that `run --report` wrote,
/// or the history of one job of `make chaos-rounds`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Judge what these folders hold.
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
}

/// Judges all of them.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let (runs, rounds): (Vec<&PathBuf>, Vec<&PathBuf>) =
        arguments.folders.iter().partition(|folder| Recording::is_in(folder));
    let mut worst = Verdict::Pass;
    for folder in runs {
        worst = worst.max(verdict::judge(folder)?);
    }
    if !rounds.is_empty() {
        worst = worst.max(check_rounds(&rounds)?);
    }
    Ok(worst.exit_code())
}

fn check_rounds(folders: &[&PathBuf]) -> anyhow::Result<Verdict> {
    let mut report = Report::default();
    for folder in folders {
        let history = History::read(folder).with_context(|| {
            format!("{} is neither a recorded run nor a history of rounds", folder.display())
        })?;
        let mut one = check(&history);
        for violation in &mut one.violations {
            violation.text = format!("{}: {}", folder.display(), violation.text);
        }
        report.add(one);
    }
    print(&report);
    Ok(if report.violations.is_empty() { Verdict::Pass } else { Verdict::Fail })
}
