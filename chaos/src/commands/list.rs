//! `holdfast-chaos list`.

use std::collections::BTreeMap;

use comfy_table::{ContentArrangement, Table, presets};
#[cfg(feature = "planted")]
use holdfast_api::crash::Point;
use holdfast_chaos::judge::Checker;
use holdfast_chaos::nemesis::Nemesis;
use holdfast_chaos::nemesis::group::{self, Group};
use holdfast_chaos::network::{Layer, Permitted};
use holdfast_chaos::workload::Workload;
use serde::Serialize;

use super::print;

/// List workloads, nemeses and checkers: what each does and proves, what it needs
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Print it in this format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// How it is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// Tables for people to read.
    Table,
    /// JSON for programs to read.
    Json,
}

#[derive(Debug, Serialize)]
struct Listed {
    workloads: Vec<ListedWorkload>,
    nemeses: Vec<ListedNemesis>,
    /// The pairs of faults that `--pairs` injects.
    pairs: Vec<String>,
    /// Those that cannot be there at the same time.
    excluded_pairs: Vec<Excluded>,
    checkers: Vec<ListedChecker>,
    /// Points at which processes can be ended: none in a build without them.
    #[cfg(feature = "planted")]
    crash_points: Vec<ListedPoint>,
}

#[derive(Debug, Serialize)]
struct ListedWorkload {
    name: &'static str,
    does: &'static str,
    judged_by: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct ListedNemesis {
    name: &'static str,
    does: &'static str,
    needs: &'static str,
    /// Why it cannot be done here; null if it can.
    forbidden: Option<String>,
    /// What shapes packets here; null if it cannot be done, or is no fault of that kind.
    layer: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct Excluded {
    pair: String,
    why: &'static str,
}

#[derive(Debug, Serialize)]
struct ListedChecker {
    name: &'static str,
    proves: &'static str,
}

#[cfg(feature = "planted")]
#[derive(Debug, Serialize)]
struct ListedPoint {
    name: &'static str,
    /// The step before or after it.
    step: &'static str,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let permitted = Permitted::find();
    let workload = |it: Workload| ListedWorkload {
        name: it.as_str(),
        does: it.about(),
        judged_by: it.checkers().iter().map(|checker| checker.as_str()).collect(),
    };
    let nemesis = |it: Nemesis| ListedNemesis {
        name: it.as_str(),
        does: it.about(),
        needs: it.needs(),
        forbidden: it.forbidden(&permitted),
        layer: it.layer(&permitted).map(Layer::as_str),
    };
    let checker = |it: Checker| ListedChecker { name: it.as_str(), proves: it.proves() };
    let listed = Listed {
        workloads: Workload::ALL.map(workload).into(),
        nemeses: Nemesis::ALL.map(nemesis).into(),
        pairs: Group::pairs().iter().map(ToString::to_string).collect(),
        excluded_pairs: excluded(),
        checkers: Checker::ALL.map(checker).into(),
        #[cfg(feature = "planted")]
        crash_points: Point::all()
            .map(|point| ListedPoint { name: point.as_str(), step: point.step.about() })
            .collect(),
    };
    match arguments.output {
        Output::Json => print(serde_json::to_string_pretty(&listed)?),
        Output::Table => print_tables(&listed),
    }
    Ok(0)
}

fn excluded() -> Vec<Excluded> {
    let mut excluded = Vec::new();
    for (n, one) in Nemesis::ALL.iter().enumerate() {
        for other in &Nemesis::ALL[n + 1..] {
            if let Some(why) = group::excluded(*one, *other) {
                let pair = format!("{}+{}", one.as_str(), other.as_str());
                excluded.push(Excluded { pair, why });
            }
        }
    }
    excluded
}

fn print_tables(listed: &Listed) {
    let mut workloads = table(&["WORKLOAD", "CLIENTS", "JUDGED BY"]);
    for it in &listed.workloads {
        workloads.add_row([it.name, it.does, &it.judged_by.join(", ")]);
    }
    let mut nemeses = table(&["NEMESIS", "WHAT IT DOES", "NEEDS", "HERE"]);
    for it in &listed.nemeses {
        let here = match (&it.forbidden, it.layer) {
            (Some(why), _) => format!("no: {why}"),
            (None, Some(layer)) => format!("yes, by {layer}"),
            (None, None) => "yes".to_owned(),
        };
        nemeses.add_row([it.name, it.does, it.needs, &here]);
    }
    let mut checkers = table(&["CHECKER", "WHAT A PASS PROVES"]);
    for it in &listed.checkers {
        checkers.add_row([it.name, it.proves]);
    }
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for it in &listed.excluded_pairs {
        *reasons.entry(it.why).or_default() += 1;
    }
    let mut excluded = table(&["PAIRS THAT CANNOT BE", "WHY"]);
    for (why, count) in reasons {
        excluded.add_row([&count.to_string(), why]);
    }
    #[cfg(feature = "planted")]
    {
        let mut points = table(&["CRASH POINT", "THE STEP BEFORE OR AFTER IT"]);
        for it in &listed.crash_points {
            points.add_row([it.name, it.step]);
        }
        print(format!("{points}\n"));
    }
    let pairs = listed.pairs.join("\n");
    print(format!(
        "{workloads}\n\n{nemeses}\n\nPAIRS (--pairs)\n{pairs}\n\n{excluded}\n\n{checkers}"
    ));
}

fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(head);
    table
}
