//! How a run is concluded: the verdict in words, and the report.

use std::path::Path;

use holdfast_chaos::judge::Verdict;
use holdfast_chaos::recording::Recording;
use holdfast_chaos::report;
use holdfast_chaos::report::text::printable;
use holdfast_chaos::summary::{self, Summary};

use super::print;

/// Judges the content of a folder, prints the verdict, and writes the report.
pub(super) fn judge(folder: &Path) -> anyhow::Result<Verdict> {
    let summary = summary::summarize(Recording::read(folder)?);
    conclude(folder, &summary);
    Ok(summary.verdict)
}

/// Prints the verdict, then writes the report: the verdict appears even if the folder
/// cannot be written.
fn conclude(folder: &Path, summary: &Summary) {
    print!("{}", said(summary));
    let verdict = match summary.kinds().counted() {
        Some(counted) => format!("{}: {counted}", summary.verdict.as_str()),
        None => summary.verdict.as_str().to_owned(),
    };
    match report::write(folder, summary) {
        Ok(page) => print(format!("{verdict}: see {}", printable(&page.to_string_lossy()))),
        Err(error) => {
            print(verdict);
            eprintln!("warning: no report could be written: {}", printable(&format!("{error:#}")));
        }
    }
}

/// The verdict in words. Text from a history is made safe for a terminal.
fn said(summary: &Summary) -> String {
    let mut lines = Vec::new();
    for (workload, judgement) in &summary.judgements {
        lines.push(format!(
            "{:<12} {:<8} {:<8} {} operations on {} keys, {} refused, {} unknown",
            printable(workload),
            judgement.checker.as_str(),
            judgement.verdict.as_str(),
            judgement.operations,
            judgement.keys,
            judgement.refused,
            judgement.unknown
        ));
    }
    let faults = &summary.description.faults;
    let seen = faults.iter().filter(|fault| fault.evidence.is_some()).count();
    let kinds = summary.kinds();
    let counted = kinds.counted().map(|counted| format!("; {counted}")).unwrap_or_default();
    lines.push(format!("{} faults, {seen} of them verified{counted}", faults.len()));
    lines.extend(kinds.missing().iter().map(|line| printable(line)));
    for fault in faults.iter().filter(|fault| fault.evidence.is_none()) {
        let why = fault.error.as_deref().unwrap_or("nothing shows that it was there");
        lines.push(printable(&format!("not verified: {}: {why}", fault.nemesis)));
    }
    for reason in &summary.reasons {
        lines.push(printable(&format!("{}: {reason}", summary.verdict.as_str())));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use holdfast_chaos::run::Description;
    use holdfast_chaos::run::drive::save;

    use super::*;

    /// A history whose moments, numbers and names harm careless code.
    fn hostile() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let history = folder.path().join("history");
        std::fs::create_dir(&history).unwrap();
        let call = |id: u32, workload: &str, action: &str| {
            format!(
                "{{\"call\":{{\"id\":{id},\"at\":{},\"workload\":\"{workload}\",\"key\":\"\\u001b[2J\",\"action\":{action}}}}}\n",
                u64::MAX
            )
        };
        let answered = |id: u32, answer: &str| {
            let outcome = format!("{{\"ok\":{{\"answer\":{answer}}}}}");
            format!("{{\"return\":{{\"id\":{id},\"at\":{},\"outcome\":{outcome}}}}}\n", u64::MAX)
        };
        let lines = [
            call(1, "lease", "{\"grant\":{\"ttl_ms\":1,\"processes\":2}}"),
            answered(1, &format!("{{\"granted\":{{\"lease\":7,\"ttl_ms\":{}}}}}", u64::MAX)),
            call(2, "lease", "{\"keep_alive\":{\"lease\":7}}"),
            answered(2, "{\"alive\":false}"),
            call(3, "counter", &format!("{{\"add\":{{\"delta\":{}}}}}", i64::MAX)),
            answered(3, &format!("{{\"sum\":{}}}", i64::MAX)),
            call(4, "counter", &format!("{{\"add\":{{\"delta\":{}}}}}", i64::MAX)),
            answered(4, "{\"sum\":-2}"),
            call(5, "counter", "\"read\""),
            answered(5, &format!("{{\"value\":\"{}\"}}", i64::MIN)),
            call(6, "counter", &format!("{{\"add\":{{\"delta\":{}}}}}", i64::MAX)),
            call(7, "counter", &format!("{{\"add\":{{\"delta\":{}}}}}", i64::MAX - 1)),
        ];
        std::fs::write(history.join("a.jsonl"), lines.concat()).unwrap();
        let calls = Some(BTreeMap::from([("a".to_owned(), 7)]));
        save(folder.path(), &Description { calls, ended: Some(1), ..Description::default() })
            .unwrap();
        folder
    }

    #[test]
    fn a_hostile_history_is_judged_and_commands_no_terminal() {
        let folder = hostile();
        let summary = summary::summarize(Recording::read(folder.path()).unwrap());
        assert_eq!(summary.verdict, Verdict::Fail, "{:?}", summary.reasons);
        let said = said(&summary);
        assert!(said.contains("\\u{1b}[2J") && !said.contains('\u{1b}'), "{said}");
        conclude(folder.path(), &summary);
        assert!(folder.path().join("report.html").is_file());
    }

    #[test]
    fn what_was_planned_and_not_injected_is_said() {
        let folder = hostile();
        let mut summary = summary::summarize(Recording::read(folder.path()).unwrap());
        summary.description.planned = vec!["ring".to_owned(), "kill\u{1b}-leader".to_owned()];
        let said = said(&summary);
        assert!(said.contains("0 faults, 0 of them verified; 0 of 2 kinds injected\n"), "{said}");
        assert!(said.contains("not injected in this time: kill\\u{1b}-leader, ring\n"), "{said}");
    }

    #[test]
    fn a_folder_that_takes_no_report_costs_nobody_the_verdict() {
        let folder = hostile();
        let summary = summary::summarize(Recording::read(folder.path()).unwrap());
        conclude(&folder.path().join("there-is-no-such-folder"), &summary);
    }
}
