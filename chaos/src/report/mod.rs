//! The report of a run: `report.json` for programs, `report.html` for people,
//! one page without anything from outside.
//!
//! | module | holds |
//! | --- | --- |
//! | [`page`] | the page |
//! | [`timeline`] | faults over latency and outcomes |
//! | [`lines`] | a small history drawn as time lines |
//! | [`text`] | text that is safe within a page |

pub mod lines;
pub mod page;
pub mod text;
pub mod timeline;

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use crate::summary::Summary;

/// Writes both; answers the path of the page.
pub fn write(folder: &Path, summary: &Summary) -> anyhow::Result<PathBuf> {
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        anyhow::Ok(path)
    };
    write("report.json", serde_json::to_string_pretty(&document(summary))?)?;
    write("report.html", page::page(summary))
}

/// The report for programs, as JSON.
pub fn document(summary: &Summary) -> Value {
    let Summary { verdict, reasons, description, judgements, counts, notes, .. } = summary;
    let checkers = judgements.iter().map(|(workload, judgement)| {
        let violations = judgement.violations.iter().map(|violation| {
            let operations = violation.operations.iter().map(|operation| {
                json!({
                    "client": operation.client,
                    "call": operation.call,
                    "returned": operation.returned,
                    "action": operation.action,
                    "outcome": operation.outcome,
                })
            });
            json!({
                "key": violation.key,
                "text": violation.text,
                "operations": operations.collect::<Vec<_>>(),
                "conflict": violation.conflict,
            })
        });
        json!({
            "workload": workload,
            "checker": judgement.checker,
            "verdict": judgement.verdict,
            "proves": judgement.checker.proves(),
            "keys": judgement.keys,
            "operations": judgement.operations,
            "refused": judgement.refused,
            "unknown": judgement.unknown,
            "note": judgement.note,
            "violations": violations.collect::<Vec<_>>(),
        })
    });
    let workloads = summary.workloads.iter().map(|(workload, counts)| {
        json!({
            "workload": workload,
            "ok": counts.ok,
            "refused": counts.refused,
            "unknown": counts.unknown,
            "definite_percent": counts.definite_percent(),
        })
    });
    json!({
        "verdict": verdict,
        "reasons": reasons,
        "run": description,
        "operations": {
            "ok": counts.ok,
            "refused": counts.refused,
            "unknown": counts.unknown,
            "definite_percent": counts.definite_percent(),
        },
        "workloads": workloads.collect::<Vec<_>>(),
        "checkers": checkers.collect::<Vec<_>>(),
        "kinds": summary.kinds(),
        "recovery": summary.recovery_figures(),
        "notes": notes,
    })
}
