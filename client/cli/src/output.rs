//! How answers are printed: documents as one line of JSON or as a table.
//!
//! Answers go to standard output and messages to standard error, so that a
//! script reads nothing but the answer.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::{Table, presets};
use holdfast_api::Blob;
use serde::{Deserialize, Serialize};

use crate::colour::{self, Colours};

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Output {
    /// For people: bare values and tables.
    Table,
    /// For programs: one line with one JSON document.
    Json,
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Output::Table => "table",
            Output::Json => "json",
        })
    }
}

/// An answer that can be printed in both forms. Its fields are the JSON contract.
pub(crate) trait Document: Serialize {
    /// Writes the form for people.
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()>;
}

/// The form and the colours of everything that is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) output: Output,
    pub(crate) colours: Colours,
}

/// The document as it is printed, with colours where those are wanted.
pub(crate) fn render_as(document: &impl Document, form: Form) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match form.output {
        Output::Table if form.colours.output => document.write_table(&mut bytes)?,
        output => bytes = render(document, output)?,
    }
    Ok(bytes)
}

/// The document without colours.
pub(crate) fn render(document: &impl Document, output: Output) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match output {
        Output::Table => {
            document.write_table(&mut bytes)?;
            bytes = colour::plain(bytes);
        }
        Output::Json => {
            serde_json::to_writer(&mut bytes, document)?;
            bytes.push(b'\n');
        }
    }
    Ok(bytes)
}

/// Writes to standard output at once.
pub(crate) fn print(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Writes a line for people to standard error. A failure cannot be reported, so
/// it is not checked.
pub(crate) fn talk(text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Text from elsewhere as a terminal may show it: control characters, with
/// which it could move the cursor or hide what comes before it, and those that
/// change the direction of writing, are escaped as in a [`Blob`].
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let acts = holdfast_api::blob::acts_on_a_terminal;
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if acts(c) {
            let mut utf8 = [0; 4];
            out.extend(c.encode_utf8(&mut utf8).bytes().map(|byte| format!("\\x{byte:02x}")));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Longest text from outside that an error repeats, in characters.
const REPEATED_MAX: usize = 80;

/// The beginning of a text that was typed, [`printable`]: enough to recognise
/// it by.
pub(crate) fn repeated(text: &str) -> String {
    let begun: String = text.chars().take(REPEATED_MAX).collect();
    let more = if begun.len() < text.len() { "…" } else { "" };
    format!("{}{more}", printable(&begun))
}

/// `1 rank`, `2 ranks`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    let plural = match noun.ends_with('s') {
        true => "es",
        false => "s",
    };
    format!("{count} {noun}{}", if count == 1 { "" } else { plural })
}

/// Columns whose words are states.
const STATE_COLUMNS: [&str; 3] = ["ROLE", "STATE", "VERDICT"];

/// Writes rows in columns, without borders and without trailing spaces; cells
/// are [`printable`]. Headings and states are coloured.
pub(crate) fn write_rows<const N: usize>(
    out: &mut Vec<u8>,
    header: Option<[&str; N]>,
    rows: impl IntoIterator<Item = [String; N]>,
) -> io::Result<()> {
    const GAP: u16 = 2;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if let Some(header) = header {
        table.add_row(header);
    }
    let shown = |row: [String; N]| row.map(|cell| printable(&cell).into_owned());
    let rows: Vec<[String; N]> = rows.into_iter().map(shown).collect();
    table.add_rows(rows.iter());
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
    }
    let mut lines = table.lines();
    if header.is_some()
        && let Some(line) = lines.next()
    {
        writeln!(out, "{}", colour::painted(colour::HEADING, line.trim_end()))?;
    }
    let is_state = |column: usize| {
        header.is_some_and(|header| STATE_COLUMNS.contains(&header[column].trim_start()))
    };
    // A cell is one line, for it holds no newline, so that each row is one.
    for (line, row) in lines.zip(&rows) {
        writeln!(out, "{}", with_states(line.trim_end(), row, is_state))?;
    }
    Ok(())
}

/// The line of a row with its states coloured.
fn with_states(line: &str, row: &[String], is_state: impl Fn(usize) -> bool) -> String {
    let (mut done, mut rest) = (String::with_capacity(line.len()), line);
    for (column, cell) in row.iter().enumerate().filter(|(_, cell)| !cell.is_empty()) {
        let Some((before, behind)) = rest.split_once(cell.as_str()) else { break };
        done.push_str(before);
        match colour::of_state(cell).filter(|_| is_state(column)) {
            Some(style) => done.push_str(&colour::painted(style, cell)),
            None => done.push_str(cell),
        }
        rest = behind;
    }
    done + rest
}

/// A cell for something that may be missing.
pub(crate) fn cell(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Most characters of a value in a table.
pub(crate) const VALUE_CHARS_MAX: usize = 60;

/// The value on one line, cut if it is long.
pub(crate) fn shortened(value: &Blob) -> String {
    // A character takes at most four bytes, so that this many hold all the
    // characters shown, whole.
    let head = &value.as_bytes()[..value.len().min(4 * VALUE_CHARS_MAX)];
    let escaped = Blob::from(head).escaped();
    let whole = head.len() == value.len() && escaped.chars().count() <= VALUE_CHARS_MAX;
    if whole {
        return escaped;
    }
    let shown: String = escaped.chars().take(VALUE_CHARS_MAX).collect();
    format!("{shown}… ({} bytes)", value.len())
}

/// The value as a person or a shell script wants it: text as it is, anything
/// else escaped, and a newline.
pub(crate) fn write_bare(out: &mut Vec<u8>, value: &Blob) -> io::Result<()> {
    match value.as_text() {
        Some(text) => writeln!(out, "{text}"),
        None => writeln!(out, "{}", value.escaped()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(header: Option<[&str; 2]>, rows: &[[&str; 2]]) -> String {
        let mut out = Vec::new();
        write_rows(&mut out, header, rows.iter().map(|row| row.map(str::to_owned))).unwrap();
        String::from_utf8(colour::plain(out)).unwrap()
    }

    #[test]
    fn headings_and_states_are_coloured_and_nothing_else() {
        let mut out = Vec::new();
        let rows = [["alive", "alive"], ["a", "lease expired"], ["ended", "odd"]];
        let rows = rows.map(|row| row.map(str::to_owned));
        write_rows(&mut out, Some(["KEY", "STATE"]), rows).unwrap();
        let (heading, good, bad) = (colour::HEADING, colour::GOOD, colour::BAD);
        let wanted = format!(
            "{heading}KEY    STATE{heading:#}\nalive  {good}alive{good:#}\na      {bad}lease expired{bad:#}\nended  odd\n"
        );
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!(counted(1, "rank"), "1 rank");
        assert_eq!(counted(0, "rank"), "0 ranks");
        assert_eq!(counted(2, "process"), "2 processes");
    }

    #[test]
    fn columns_line_up_without_borders_or_trailing_spaces() {
        assert_eq!(
            rows(Some(["KEY", "VALUE"]), &[["a", "1"], ["longer", ""]]),
            "KEY     VALUE\na       1\nlonger\n"
        );
    }

    #[test]
    fn cells_cannot_speak_to_the_terminal() {
        let cells = [["\u{1b}[2Jhost", "two\nlines\r"], ["\u{9b}31mä", r"C:\x"]];
        let shown = rows(None, &cells);
        assert_eq!(shown, "\\x1b[2Jhost   two\\x0alines\\x0d\n\\xc2\\x9b31mä  C:\\x\n");
    }

    #[test]
    fn a_table_without_rows_is_its_header_alone() {
        assert_eq!(rows(Some(["KEY", "VALUE"]), &[]), "KEY  VALUE\n");
        assert_eq!(rows(None, &[]), "");
    }

    #[test]
    fn long_values_are_cut_and_say_how_long_they_are() {
        assert_eq!(shortened(&Blob::from("short\n")), r"short\x0a");
        let exact = "x".repeat(VALUE_CHARS_MAX);
        assert_eq!(shortened(&Blob::from(exact.as_str())), exact);
        let long = shortened(&Blob::from("ä".repeat(1000)));
        assert_eq!(long, format!("{}… (2000 bytes)", "ä".repeat(VALUE_CHARS_MAX)));
        let wide = shortened(&Blob::from("a𝄞".repeat(1000)));
        assert!(wide.starts_with("a𝄞a𝄞") && !wide.contains(r"\x"), "{wide}");
    }

    #[test]
    fn text_of_others_does_not_reach_the_terminal_as_it_is() {
        assert_eq!(printable("node-ä\\7"), "node-ä\\7");
        assert_eq!(printable("a\u{1b}[2J\nb\u{202e}"), r"a\x1b[2J\x0ab\xe2\x80\xae");
    }

    #[test]
    fn a_bare_value_is_raw_if_it_is_text_and_escaped_if_not() {
        let bare = |value: &[u8]| {
            let mut out = Vec::new();
            write_bare(&mut out, &Blob::from(value)).unwrap();
            out
        };
        assert_eq!(bare(br"C:\new"), b"C:\\new\n");
        assert_eq!(bare(b"two\nlines"), b"two\nlines\n");
        assert_eq!(bare(b"\xff\\"), b"\\xff\\\\\n");
        assert_eq!(bare(b"\x1b[31m"), b"\\x1b[31m\n");
        assert_eq!(bare(b""), b"\n");
    }
}
