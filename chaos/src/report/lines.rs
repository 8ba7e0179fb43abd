//! A small history drawn as time lines: one line for each operation, from its
//! call to its return, moments in their order and not to scale.

use std::fmt::Write;

use super::text::escape;
use crate::history::Moment;
use crate::judge::Violation;
use crate::operation::{Operation, Outcome};

/// Most operations that are drawn.
const DRAWN_MAX: usize = 60;

/// The violation as a drawing of lines.
pub fn draw(violation: &Violation) -> String {
    // The operations in conflict are among those that are drawn.
    let last = violation.conflict.iter().max().map_or(0, |last| last + 1);
    let start = last.saturating_sub(DRAWN_MAX);
    let end = violation.operations.len().min(start + DRAWN_MAX);
    let drawn = &violation.operations[start..end];
    let moments = moments(drawn);
    let mut html = String::from("<ol class=\"lines\">\n");
    for (n, operation) in drawn.iter().enumerate() {
        let in_conflict = violation.conflict.contains(&(start + n));
        let class = if in_conflict { " class=\"conflict\"" } else { "" };
        let mark = match (in_conflict, violation.conflict.len()) {
            (false, _) => "",
            (true, 1) => "<strong> ◄ cannot be true</strong>",
            (true, _) => "<strong> ◄ cannot both be true</strong>",
        };
        let label = escape(&operation.to_string());
        let why = match &operation.outcome {
            Outcome::Refused { why } | Outcome::Unknown { why } if !why.is_empty() => {
                format!(" <small>({})</small>", escape(why))
            }
            _ => String::new(),
        };
        // Writing to a string does not fail.
        let _ = writeln!(html, "<li{class}>{label}{why}{mark}{}</li>", bar(operation, &moments));
    }
    html.push_str("</ol>\n");
    let left_out = violation.operations.len() - drawn.len();
    if left_out > 0 {
        let _ = writeln!(html, "<p>{left_out} more are in report.json.</p>");
    }
    html
}

/// All moments of the operations, in order.
fn moments(operations: &[Operation]) -> Vec<Moment> {
    let ends = operations.iter().map(Operation::end).filter(|end| *end != Moment::MAX);
    let mut moments: Vec<Moment> = operations.iter().map(|it| it.call).chain(ends).collect();
    moments.sort_unstable();
    moments.dedup();
    moments
}

fn bar(operation: &Operation, moments: &[Moment]) -> String {
    let steps = moments.len().max(2) as f64;
    let place = |moment: Moment| {
        let before = moments.partition_point(|other| *other < moment);
        (before as f64 + 0.5) * 100.0 / steps
    };
    let open = operation.end() == Moment::MAX;
    let start = place(operation.call);
    let end = if open { 100.0 } else { place(operation.end()) };
    let class = if open { "open" } else { "bar" };
    format!(
        "<svg viewBox=\"0 0 100 6\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"from its call to its return\"><line class=\"axis\" x1=\"0\" y1=\"3\" x2=\"100\" y2=\"3\"/><rect class=\"{class}\" x=\"{start:.2}\" y=\"1\" width=\"{:.2}\" height=\"4\"/></svg>",
        (end - start).max(0.6)
    )
}
