//! The faults of a run over the latency and the outcomes of its operations.

use std::fmt::Write;

use crate::history::Moment;
use crate::operation::Operation;
use crate::summary::Summary;

/// Into how many slices the time of a run is cut.
const SLICES: usize = 160;
const WIDTH: f64 = 1_000.0;
/// Width on the left for the names of decades.
const SCALE_WIDTH: f64 = 70.0;
/// Numbers of faults stand one below the other if they are closer than this.
const LABEL_WIDTH: f64 = 30.0;
const LABEL_HEIGHT: f64 = 18.0;
const LABEL_ROWS: u32 = 4;
/// Height of the latencies, from the top.
const LATENCY_HEIGHT: f64 = 220.0;
/// Height of the outcomes, below the latencies.
const OUTCOME_HEIGHT: f64 = 120.0;
const GAP: f64 = 20.0;
/// Latencies from 0.1 ms to 10 s fit: decades.
const DECADES: f64 = 5.0;
const LEAST_NS: f64 = 100_000.0;

/// The events of one slice.
#[derive(Debug, Clone, Default)]
struct Slice {
    latencies: Vec<Moment>,
    ok: u32,
    refused: u32,
    unknown: u32,
}

/// The drawing, with its axes in words below it.
pub fn draw(summary: &Summary) -> String {
    let Some((from, to)) = span(summary) else {
        return "<p>There is nothing to draw.</p>".to_owned();
    };
    let x = |moment: Moment| {
        let part = moment.saturating_sub(from) as f64 / (to - from).max(1) as f64;
        part.clamp(0.0, 1.0) * WIDTH
    };
    let height = LATENCY_HEIGHT + GAP + OUTCOME_HEIGHT;
    let mut svg = format!(
        "<svg class=\"timeline\" viewBox=\"-{SCALE_WIDTH} 0 {} {height}\" role=\"img\" aria-label=\"faults over latency and outcomes\">\n",
        WIDTH + SCALE_WIDTH
    );
    // Writing to a string does not fail.
    let (mut before, mut row) = (f64::MIN, 0);
    for (n, fault) in summary.description.faults.iter().enumerate() {
        let (start, end) = (x(fault.begin), x(fault.end.unwrap_or(to)));
        row = if start - before < LABEL_WIDTH { (row + 1) % LABEL_ROWS } else { 0 };
        before = start;
        let class = if fault.evidence.is_some() { "fault" } else { "fault missed" };
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{start:.1}\" y=\"0\" width=\"{:.1}\" height=\"{height}\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            (end - start).max(2.0),
            start + 2.0,
            LABEL_HEIGHT * f64::from(row + 1),
            n + 1
        );
    }
    for decade in 1..DECADES as u32 {
        let y = LATENCY_HEIGHT * (1.0 - f64::from(decade) / DECADES);
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"0\" y1=\"{y:.1}\" x2=\"{WIDTH}\" y2=\"{y:.1}\"/><text class=\"scale\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            6.0 - SCALE_WIDTH,
            y + 6.0,
            ["1 ms", "10 ms", "100 ms", "1 s"][decade as usize - 1]
        );
    }
    let slices = slices(&summary.operations, from, to);
    svg.push_str(&latencies(&slices));
    svg.push_str(&outcomes(&slices));
    svg.push_str("</svg>\n");
    let seconds = (to - from) as f64 / 1e9;
    let _ = writeln!(
        svg,
        "<p class=\"legend\">{seconds:.0} s from left to right. Above: latency of what was done, median (line) and worst (dots) of each slice. Below: operations done, <span class=\"refused\">refused</span>, <span class=\"unknown\">unknown</span>. Bands: the faults, by their numbers in the table; hollow: not verified.</p>"
    );
    svg
}

/// From the first call to the last return.
fn span(summary: &Summary) -> Option<(Moment, Moment)> {
    let from = summary.operations.first()?.call;
    let ends = summary.operations.iter().filter_map(|operation| operation.returned);
    Some((from, ends.max().unwrap_or(from).max(from.saturating_add(1))))
}

fn slices(operations: &[Operation], from: Moment, to: Moment) -> Vec<Slice> {
    let mut slices = vec![Slice::default(); SLICES];
    for operation in operations {
        if !operation.is_on_store() {
            continue;
        }
        let part = (operation.call - from) as f64 / (to - from).max(1) as f64;
        let slice = &mut slices[((part * SLICES as f64) as usize).min(SLICES - 1)];
        match (operation.is_refused(), operation.is_unknown(), operation.returned) {
            (true, ..) => slice.refused += 1,
            (_, false, Some(returned)) => {
                slice.ok += 1;
                slice.latencies.push(returned - operation.call);
            }
            _ => slice.unknown += 1,
        }
    }
    for slice in &mut slices {
        slice.latencies.sort_unstable();
    }
    slices
}

fn middle(n: usize) -> f64 {
    (n as f64 + 0.5) * WIDTH / SLICES as f64
}

fn latencies(slices: &[Slice]) -> String {
    let y = |nanoseconds: Moment| {
        let decades = (nanoseconds as f64 / LEAST_NS).max(1.0).log10() / DECADES;
        LATENCY_HEIGHT * (1.0 - decades.min(1.0))
    };
    let (mut line, mut dots) = (String::new(), String::new());
    let mut is_broken = true;
    for (n, slice) in slices.iter().enumerate() {
        let (Some(worst), Some(median)) =
            (slice.latencies.last(), slice.latencies.get(slice.latencies.len() / 2))
        else {
            is_broken = true;
            continue;
        };
        let word = if is_broken { "M" } else { "L" };
        is_broken = false;
        let _ = write!(line, "{word}{:.1} {:.1} ", middle(n), y(*median));
        let _ = write!(dots, "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/>", middle(n), y(*worst));
    }
    match line.is_empty() {
        true => String::new(),
        false => format!(
            "<path class=\"median\" d=\"{}\"/><g class=\"worst\">{dots}</g>\n",
            line.trim_end()
        ),
    }
}

fn outcomes(slices: &[Slice]) -> String {
    let most = slices.iter().map(|it| it.ok + it.refused + it.unknown).max().unwrap_or(1).max(1);
    let width = WIDTH / SLICES as f64;
    let bottom = LATENCY_HEIGHT + GAP + OUTCOME_HEIGHT;
    let mut bars = String::new();
    for (n, slice) in slices.iter().enumerate() {
        let mut below = bottom;
        for (class, count) in
            [("ok", slice.ok), ("refused", slice.refused), ("unknown", slice.unknown)]
        {
            let height = f64::from(count) * OUTCOME_HEIGHT / f64::from(most);
            below -= height;
            if count > 0 {
                let _ = write!(
                    bars,
                    "<rect class=\"{class}\" x=\"{:.1}\" y=\"{below:.1}\" width=\"{:.1}\" height=\"{height:.1}\"/>",
                    n as f64 * width,
                    width * 0.9
                );
            }
        }
    }
    bars.push('\n');
    bars
}
