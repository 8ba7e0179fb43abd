//! `holdfast-chaos check`.

use std::path::PathBuf;

use anyhow::Context;
use holdfast_chaos::judge::Verdict;
use holdfast_chaos::recording::Recording;
use holdfast_chaos::report::text::printable;
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
    let (mut report, mut notes) = (Report::default(), Vec::new());
    for folder in folders {
        let history = History::read(folder).with_context(|| {
            format!("{} is neither a recorded run nor a history of rounds", folder.display())
        })?;
        let mut one = check(&history);
        notes.extend(history.notes);
        for violation in &mut one.violations {
            violation.text = format!("{}: {}", folder.display(), violation.text);
        }
        report.add(one);
    }
    print(&report);
    for note in &notes {
        print(format!("not decided: {}", printable(note)));
    }
    Ok(match (report.violations.is_empty(), notes.is_empty()) {
        (false, _) => Verdict::Fail,
        (true, false) => Verdict::Unknown,
        (true, true) => Verdict::Pass,
    })
}

#[cfg(test)]
mod tests {
    use holdfast_chaos::Recorder;
    use holdfast_chaos::history::What;

    use super::*;

    #[test]
    fn a_history_whose_last_line_was_cut_off_is_no_pass() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let mut recorder = Recorder::open(&path, "rank-0-1").unwrap();
        for _ in 0..2 {
            recorder.record(What::NotJoined { why: "no leader".to_owned() }).unwrap();
        }
        assert_eq!(check_rounds(&[&path]).unwrap(), Verdict::Pass);
        let file = path.join("rank-0-1.jsonl");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, &text[..text.len() - 5]).unwrap();
        assert_eq!(check_rounds(&[&path]).unwrap(), Verdict::Unknown);
    }
}
