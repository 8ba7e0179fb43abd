//! The tables, as Markdown.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use crate::arguments::Bench;
use crate::disk;
use crate::machine::{self, Share};
use crate::samples::{Samples, ms};

/// Appends that measure the disk.
const DISK_APPENDS: usize = 1_000;

/// Above this many cores in foreign hands a measurement is marked.
const OTHERS_MAX: f64 = 0.15;

/// The result of one measurement.
#[derive(Debug, Default)]
pub struct Section {
    /// Subject of the measurement.
    pub title: String,
    /// Names of the table's columns.
    pub columns: Vec<&'static str>,
    /// Rows of the table, each with a cell for each column.
    pub rows: Vec<Vec<String>>,
    /// The aims that it is compared with.
    pub aims: Vec<Aim>,
    /// Remarks that a reader of the table needs.
    pub remarks: Vec<String>,
    /// Processor use of other programs during the section.
    pub usage: Option<Share>,
    failed: bool,
}

/// Something that was aimed at.
#[derive(Debug)]
pub struct Aim {
    /// Name of the figure.
    pub what: String,
    /// How much of it is allowed or wanted.
    pub aim: String,
    /// What was measured, with its unit.
    pub measured: String,
    /// Whether that is good enough.
    pub met: bool,
}

impl Aim {
    /// A ratio that must not be above a bound.
    pub fn ratio_at_most(what: impl Into<String>, ratio: f64, bound: f64) -> Aim {
        Aim {
            what: what.into(),
            aim: format!("≤ {bound}×"),
            measured: format!("{ratio:.2}×"),
            met: ratio <= bound,
        }
    }

    /// A ratio that must not be below a bound.
    pub fn ratio_at_least(what: impl Into<String>, ratio: f64, bound: f64) -> Aim {
        Aim {
            what: what.into(),
            aim: format!("≥ {bound}×"),
            measured: format!("{ratio:.2}×"),
            met: ratio >= bound,
        }
    }

    /// A time that must not be above a bound.
    pub fn time_at_most(what: impl Into<String>, time: Duration, bound: Duration) -> Aim {
        Aim {
            what: what.into(),
            aim: format!("≤ {:.0} ms", ms(bound)),
            measured: format!("{:.0} ms", ms(time)),
            met: time <= bound,
        }
    }

    /// The same in microseconds.
    pub fn micros_at_most(what: impl Into<String>, time: Duration, bound: Duration) -> Aim {
        Aim {
            what: what.into(),
            aim: format!("≤ {} µs", bound.as_micros()),
            measured: format!("{} µs", time.as_micros()),
            met: time <= bound,
        }
    }
}

impl Section {
    /// A section whose table has no rows yet.
    pub fn new(title: &str, columns: &[&'static str]) -> Section {
        Section { title: title.to_owned(), columns: columns.to_vec(), ..Section::default() }
    }

    /// A measurement that could not be made.
    pub fn failed(title: &str, error: &anyhow::Error) -> Section {
        let remark = format!("**FAILED**: {error:#}");
        Section {
            title: title.to_owned(),
            remarks: vec![remark],
            failed: true,
            ..Section::default()
        }
    }

    /// Adds a line to the table.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Adds a remark below the table.
    pub fn remark(&mut self, text: impl Into<String>) {
        self.remarks.push(text.into());
    }

    /// The section as Markdown.
    pub fn markdown(&self) -> String {
        let mut out = format!("## {}\n\n", self.title);
        if !self.rows.is_empty() {
            out.push_str(&table(&self.columns, self.rows.iter().map(Vec::as_slice)));
        }
        for aim in &self.aims {
            let verdict = if aim.met { "met" } else { "**missed**" };
            let Aim { what, aim, measured, .. } = aim;
            let _ = writeln!(out, "- {what}: {measured}, aim {aim}: {verdict}.");
        }
        for remark in &self.remarks {
            let _ = writeln!(out, "- {remark}");
        }
        if let Some(Share { others, host, took }) = self.usage {
            let disturbed = if others > OTHERS_MAX { " **Disturbed: repeat it.**" } else { "" };
            let _ = writeln!(
                out,
                "- Took {:.0} s; other processes used {others:.2} cores during it, the host took {host:.2}.{disturbed}",
                took.as_secs_f64()
            );
        }
        out
    }
}

fn table<'a>(columns: &[&str], rows: impl Iterator<Item = &'a [String]>) -> String {
    let mut out = format!("| {} |\n|{}\n", columns.join(" | "), " --- |".repeat(columns.len()));
    for row in rows {
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
    out.push('\n');
    out
}

/// All that was measured, and on what.
#[derive(Debug)]
pub struct Report {
    facts: Vec<(&'static str, String)>,
    quick: bool,
    sections: Vec<Section>,
}

impl Report {
    /// Describes the machine before it is loaded.
    pub fn begin(bench: &Bench) -> anyhow::Result<Report> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let command = match arguments.as_slice() {
            [] => "`make bench`".to_owned(),
            given => format!("`make bench ARGS=\"{}\"`", given.join(" ")),
        };
        let now = humantime::format_rfc3339_seconds(SystemTime::now());
        let mut facts =
            vec![("command", command), ("date", now.to_string()), ("commit", machine::commit())];
        facts.extend(machine::description(&bench.data)?);
        let raw = Samples::from(disk::append_and_sync(bench.folder()?.path(), DISK_APPENDS)?);
        facts.push((
            "append + fdatasync",
            format!("{} bytes: {}", disk::APPEND_BYTES, p50_p99(&raw)),
        ));
        Ok(Report { facts, quick: bench.quick, sections: Vec::new() })
    }

    /// Adds the section of a measurement.
    pub fn push(&mut self, section: Section) {
        self.sections.push(section);
    }

    /// Whether all measurements could be made.
    pub fn is_complete(&self) -> bool {
        !self.sections.iter().any(|section| section.failed)
    }

    /// The whole report as Markdown.
    pub fn markdown(&self) -> String {
        let mut out = "# Benchmarks\n\n".to_owned();
        out.push_str(
            "Three store nodes, an agent with its keeper where the TCPStore door is measured, the load and the peers,\n\
             all on one machine over loopback. Bare figures hold for this machine alone; what carries over are the\n\
             ratios, measured interleaved in one run. Medians of the rounds; spreads in brackets.\n\n",
        );
        if cfg!(debug_assertions) {
            out.push_str("**A debug build: it shows that everything runs, and no figure means anything.**\n\n");
        }
        if self.quick {
            out.push_str(
                "**A quick run: fewer rounds than the five that a comparison needs.**\n\n",
            );
        }
        let facts = self.facts.iter().map(|(name, value)| [(*name).to_owned(), value.clone()]);
        let facts: Vec<[String; 2]> = facts.collect();
        out.push_str(&table(&["what", "value"], facts.iter().map(<[String; 2]>::as_slice)));
        out.push_str("## Aims\n\n");
        let aims = self.sections.iter().flat_map(|section| &section.aims).map(|aim| {
            let verdict = if aim.met { "met" } else { "**missed**" };
            [aim.what.clone(), aim.aim.clone(), aim.measured.clone(), verdict.to_owned()]
        });
        let aims: Vec<[String; 4]> = aims.collect();
        let columns = ["what", "aim", "measured", "verdict"];
        out.push_str(&table(&columns, aims.iter().map(<[String; 4]>::as_slice)));
        for section in &self.sections {
            out.push_str(&section.markdown());
            out.push('\n');
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
        out
    }
}

/// `p50 / p99` in milliseconds.
pub fn p50_p99(samples: &Samples) -> String {
    format!("p50 {:.3} ms, p99 {:.3} ms", ms(samples.p50()), ms(samples.p99()))
}

/// A number with as many digits as it deserves.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v.is_nan() => "–".to_owned(),
        v if v >= 1_000.0 => thousands(value.round() as i64),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn thousands(value: i64) -> String {
    let digits = value.abs().to_string();
    let mut out = if value < 0 { "-".to_owned() } else { String::new() };
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The median with the extremes in brackets.
pub fn spread(values: &[f64]) -> String {
    let median = crate::samples::median(values.iter().copied());
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match values.len() {
        0 => "–".to_owned(),
        1 => number(median),
        _ => format!("{} ({}–{})", number(median), number(least), number(most)),
    }
}

/// Writes bytes as a whole number of MiB.
pub fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        let shown: Vec<String> =
            [0.0123, 1.234, 12.34, 123.4, 1234.5, 1_234_567.0].into_iter().map(number).collect();
        assert_eq!(shown, ["0.012", "1.23", "12.3", "123", "1,235", "1,234,567"]);
        assert_eq!(spread(&[1.0, 3.0, 2.0]), "2.00 (1.00–3.00)");
    }

    #[test]
    fn a_missed_aim_stands_out() {
        let mut section = Section::new("t", &["a"]);
        section.row(["1".to_owned()]);
        section.aims.push(Aim::ratio_at_most("cost", 4.1, 4.0));
        section.aims.push(Aim::ratio_at_most("other cost", 4.0, 4.0));
        let text = section.markdown();
        assert!(text.contains("| 1 |"), "{text}");
        assert!(text.contains("cost: 4.10×, aim ≤ 4×: **missed**."), "{text}");
        assert!(text.contains("other cost: 4.00×, aim ≤ 4×: met."), "{text}");
    }
}
