//! The page: readable on paper, on a narrow screen, by day and by night.

use std::fmt::Write;

use super::text::{escape, lasting};
use super::{lines, timeline};
use crate::judge::Verdict;
use crate::nemesis::Nemesis;
use crate::summary::Summary;

const STYLE: &str = include_str!("style.css");

/// The whole page, as HTML.
pub fn page(summary: &Summary) -> String {
    let verdict = summary.verdict.as_str();
    let sections = [
        head(summary),
        failures(summary),
        run(summary),
        format!("<h2>Timeline</h2>\n{}", timeline::draw(summary)),
        faults(summary),
        recovery(summary),
        checkers(summary),
        left_out(summary),
    ];
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>Holdfast chaos: {verdict}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n</html>\n",
        sections.concat()
    )
}

fn head(summary: &Summary) -> String {
    let verdict = summary.verdict.as_str();
    let words = match summary.verdict {
        Verdict::Pass => "Everything that the clients saw can be true.",
        Verdict::Fail => "Something was seen that cannot be true, or the cluster broke.",
        Verdict::Unknown => "It was not decided. This is not a pass.",
    };
    let kinds = summary.kinds().counted();
    let kinds = kinds.map(|counted| format!(" Faults: {counted}.")).unwrap_or_default();
    let mut html = format!("<h1 class=\"{verdict}\">{verdict}</h1>\n<p>{words}{kinds}</p>\n");
    if !summary.reasons.is_empty() {
        let items: Vec<String> =
            summary.reasons.iter().map(|it| format!("<li>{}</li>\n", escape(it))).collect();
        html.push_str(&format!("<ul>\n{}</ul>\n", items.concat()));
    }
    html
}

fn failures(summary: &Summary) -> String {
    let mut violations: Vec<_> = summary
        .judgements
        .iter()
        .flat_map(|(workload, it)| it.violations.iter().map(move |one| (workload, it.checker, one)))
        .collect();
    violations.sort_by_key(|(_, _, violation)| violation.operations.len());
    let mut html = String::new();
    for (n, (workload, checker, violation)) in violations.into_iter().enumerate() {
        let title = if n == 0 { "The smallest failing history" } else { "Another one" };
        // Writing to a string does not fail.
        let _ = write!(
            html,
            "<h2>{title}</h2>\n<p>Workload {}, checker {}, key <code>{}</code>: {}.</p>\n<p class=\"legend\">Each line is an operation from its call to its return; moments are in order, and not to scale. An open end: it may have happened at any later time, or never.</p>\n{}",
            escape(workload),
            checker.as_str(),
            escape(&violation.key),
            escape(&violation.text),
            lines::draw(violation)
        );
    }
    html
}

/// Rows of two cells.
fn pairs(rows: &[(&str, String)]) -> String {
    let rows: Vec<String> = rows
        .iter()
        .map(|(name, value)| format!("<tr><th scope=\"row\">{name}</th><td>{value}</td></tr>\n"))
        .collect();
    format!("<table class=\"facts\">\n{}</table>\n", rows.concat())
}

/// How faults on a network are made.
const NETWORK: &str = "a network namespace for each node on a bridge of the run's own; nft drops packets, tc makes them slow";
/// How faults of disks are made.
const DISKS: &str = "an ext4 image for each node, mounted through a loop device; a loss of power takes away what the kernel had not written to it, which SIGKILL does not";

/// With what the nodes of a run were surrounded, so that faults of a kind could be made.
fn layer(summary: &Summary, is: fn(Nemesis) -> bool, used: &str, else_used: &str) -> String {
    let planned = summary.description.planned.iter();
    let injected = summary.description.faults.iter().map(|fault| &fault.nemesis);
    let mut names = planned.chain(injected).flat_map(|name| name.split('+'));
    let is_used = names.any(|name| Nemesis::named(name).is_some_and(is));
    if is_used { used } else { else_used }.to_owned()
}

fn run(summary: &Summary) -> String {
    let it = &summary.description;
    let counts = summary.counts;
    let lasted = it.ended.map_or("unknown".to_owned(), |end| lasting(end.saturating_sub(it.began)));
    let nodes: Vec<String> = it
        .nodes
        .iter()
        .map(|node| {
            format!("{} at {} ({})", node.id, node.address, node.version.as_deref().unwrap_or("?"))
        })
        .collect();
    let commit = it.commit.iter().chain(&it.commit_doubts).cloned().collect::<Vec<_>>().join("; ");
    let commit = if commit.is_empty() { "unknown".to_owned() } else { commit };
    let rows = [
        ("again with", format!("<code>{}</code>", escape(&it.command))),
        ("seed", it.seed.to_string()),
        ("version", escape(&it.version)),
        ("commit", escape(&commit)),
        ("nodes", escape(&nodes.join(", "))),
        ("workloads", escape(&it.workloads.join(", "))),
        ("clients", it.clients.len().to_string()),
        ("lasted", lasted),
        (
            "operations",
            format!(
                "{}: {} done, {} refused, {} unknown ({:.1} % known for certain)",
                counts.all(),
                counts.ok,
                counts.refused,
                counts.unknown,
                counts.definite_percent()
            ),
        ),
        ("network", layer(summary, Nemesis::is_on_network, NETWORK, "the machine's own")),
        ("disks", layer(summary, Nemesis::is_on_disk, DISKS, "folders of the machine's own")),
    ];
    format!("<h2>What was run</h2>\n{}", pairs(&rows))
}

/// So many bytes of a cell stay on one line.
const SHORT: usize = 12;

/// A table whose cells carry their column's name, for narrow screens.
fn table(columns: &[&str], rows: Vec<Vec<String>>) -> String {
    let head: Vec<String> =
        columns.iter().map(|name| format!("<th scope=\"col\">{name}</th>")).collect();
    let mut html =
        format!("<table class=\"wide\">\n<thead><tr>{}</tr></thead>\n<tbody>\n", head.concat());
    for row in rows {
        let cells: Vec<String> = columns
            .iter()
            .zip(row)
            .map(|(name, cell)| {
                let class = if cell.len() <= SHORT { " class=\"short\"" } else { "" };
                format!("<td{class} data-name=\"{name}\">{cell}</td>")
            })
            .collect();
        let _ = writeln!(html, "<tr>{}</tr>", cells.concat());
    }
    html.push_str("</tbody>\n</table>\n");
    html
}

fn faults(summary: &Summary) -> String {
    let it = &summary.description;
    if it.faults.is_empty() {
        return "<h2>Faults</h2>\n<p>There were none.</p>\n".to_owned();
    }
    let rows = it.faults.iter().enumerate().map(|(n, fault)| {
        let evidence = match (&fault.evidence, &fault.error) {
            (Some(evidence), _) => escape(evidence),
            (None, Some(error)) => format!("<strong>not injected: {}</strong>", escape(error)),
            (None, None) => "<strong>nothing shows that it was there</strong>".to_owned(),
        };
        let mut healed: Vec<String> = Vec::new();
        for recovery in summary.recoveries.iter().filter(|it| it.fault == n) {
            let time = recovery.nanoseconds.map_or("never".to_owned(), lasting);
            healed.push(format!("{}: {time}", escape(&recovery.class)));
        }
        vec![
            (n + 1).to_string(),
            match &fault.group {
                Some(group) => {
                    format!("{} <small>of {}</small>", escape(&fault.nemesis), escape(group))
                }
                None => escape(&fault.nemesis),
            },
            lasting(fault.struck.unwrap_or(fault.begin).saturating_sub(it.began)),
            fault.end.map_or("never".to_owned(), |end| lasting(end.saturating_sub(fault.begin))),
            escape(&fault.what),
            evidence,
            healed.join("; "),
        ]
    });
    let columns = ["no.", "nemesis", "at", "for", "what", "how it is known", "first write after"];
    format!("<h2>Faults</h2>\n{}", table(&columns, rows.collect()))
}

fn recovery(summary: &Summary) -> String {
    let figures = summary.recovery_figures();
    if figures.is_empty() {
        return String::new();
    }
    let ms = |ms: Option<u64>| ms.map_or("–".to_owned(), |ms| format!("{ms} ms"));
    let rows = figures.iter().map(|it| {
        vec![
            escape(&it.nemesis),
            escape(&it.class),
            it.faults.to_string(),
            ms(it.median_ms),
            ms(it.worst_ms),
            it.never.to_string(),
        ]
    });
    let columns = ["nemesis", "clients", "faults", "median", "worst", "never"];
    format!(
        "<h2>Recovery</h2>\n<p class=\"legend\">From the beginning of a fault's injection to the return of the first write that was called after the injection and acknowledged.</p>\n{}",
        table(&columns, rows.collect())
    )
}

fn checkers(summary: &Summary) -> String {
    let rows = summary.judgements.iter().map(|(workload, it)| {
        let verdict = it.verdict.as_str();
        let note = it.note.as_deref().map(escape).unwrap_or_default();
        vec![
            escape(workload),
            it.checker.as_str().to_owned(),
            format!("<span class=\"{verdict}\">{verdict}</span> {note}"),
            it.operations.to_string(),
            it.keys.to_string(),
            it.refused.to_string(),
            it.unknown.to_string(),
            escape(it.checker.proves()),
        ]
    });
    let columns = [
        "workload",
        "checker",
        "verdict",
        "operations",
        "keys",
        "refused",
        "unknown",
        "a pass proves",
    ];
    format!("<h2>Checkers</h2>\n{}", table(&columns, rows.collect()))
}

fn left_out(summary: &Summary) -> String {
    let mut items: Vec<String> = summary
        .description
        .left_out
        .iter()
        .map(|it| format!("<li>{}: {}</li>\n", escape(&it.name), escape(&it.why)))
        .collect();
    let missing = summary.kinds().missing();
    let lines = missing.iter().chain(&summary.notes);
    items.extend(lines.map(|line| format!("<li>{}</li>\n", escape(line))));
    let body = match items.is_empty() {
        true => "<p>Nothing that was asked for.</p>\n".to_owned(),
        false => format!("<ul>\n{}</ul>\n", items.concat()),
    };
    format!("<h2>What was left out</h2>\n{body}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Action, Answer, Operation, Outcome};
    use crate::recording::Recording;
    use crate::run::{Description, FaultRecord, LeftOut};
    use crate::summary::summarize;

    fn operation(call: u64, action: Action, answer: Answer) -> Operation {
        Operation {
            client: "<script>".to_owned(),
            workload: "register".to_owned(),
            key: "k & co".to_owned(),
            call,
            returned: Some(call + 5_000_000),
            action,
            outcome: Outcome::Ok { answer, revision: None },
        }
    }

    fn failed() -> Summary {
        let value = "a\"<".to_owned();
        let fault = FaultRecord {
            nemesis: "kill-leader".to_owned(),
            begin: 9_000_000,
            ..FaultRecord::default()
        };
        let left_out = LeftOut { name: "delay".to_owned(), why: "no <netem>".to_owned() };
        let description = Description {
            workloads: vec!["register".to_owned()],
            faults: vec![fault],
            left_out: vec![left_out],
            ended: Some(1),
            ..Description::default()
        };
        let operations = vec![
            operation(0, Action::Write { value: value.clone() }, Answer::Done),
            operation(10_000_000, Action::Read, Answer::Value(None)),
            operation(20_000_000, Action::Read, Answer::Value(Some(value))),
        ];
        summarize(Recording { description: Some(description), operations, ..Recording::default() })
    }

    #[test]
    fn the_verdict_comes_first_and_the_two_operations_are_marked() {
        let page = page(&failed());
        let verdict = page.find("<h1 class=\"fail\">fail</h1>").expect("a verdict");
        let history = page.find("The smallest failing history").expect("a history");
        assert!(verdict < history && history < page.find("Timeline").expect("a timeline"));
        assert_eq!(page.matches("<li class=\"conflict\">").count(), 2, "{page}");
        assert!(page.contains("nothing shows that it was there"), "{page}");
        assert!(page.contains("no &lt;netem&gt;"), "{page}");
    }

    #[test]
    fn it_is_said_with_what_network_and_disks_the_nodes_ran() {
        let mut summary = failed();
        let plain = page(&summary);
        assert!(plain.contains("the machine&#39;s own") || plain.contains("the machine's own"));
        assert!(!plain.contains("a network namespace for each node"), "{plain}");
        summary.description.planned = vec!["ring+power-loss".to_owned()];
        let page = page(&summary);
        for layer in ["a network namespace for each node", "an ext4 image for each node"] {
            assert!(page.contains(layer), "{page}");
        }
    }

    #[test]
    fn a_doubt_about_the_commit_stands_beside_it() {
        let mut summary = failed();
        assert!(page(&summary).contains("<th scope=\"row\">commit</th><td>unknown</td>"));
        summary.description.commit = Some("abc".to_owned());
        summary.description.commit_doubts = vec!["it was <changed>".to_owned()];
        let page = page(&summary);
        assert!(page.contains("<td>abc; it was &lt;changed&gt;</td>"), "{page}");
    }

    #[test]
    fn kinds_of_faults_that_were_not_there_are_listed() {
        let mut summary = failed();
        summary.description.planned = vec!["kill-leader".to_owned(), "<ring>".to_owned()];
        summary.description.faults[0].what = "killed node 1".to_owned();
        let page = page(&summary);
        assert!(page.contains("Faults: 1 of 2 kinds injected."), "{page}");
        assert!(page.contains("<li>not injected in this time: &lt;ring&gt;</li>"), "{page}");
        assert!(page.contains("<li>injected, not seen to act: kill-leader</li>"), "{page}");
    }

    #[test]
    fn a_page_holds_nothing_but_its_own_elements() {
        let page = page(&failed());
        assert!(!page.contains("<script"), "{page}");
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
