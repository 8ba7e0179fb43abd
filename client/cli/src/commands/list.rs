//! `kv list`: all keys, page by page.
//!
//! Pages are printed as they come, so that a job with millions of keys needs no
//! more memory here than one page. Each page is read at a revision of its own;
//! the one that is shown is the first page's, so that a watch from the next
//! revision misses nothing.

use std::io::{self, Write};

use holdfast_api::{Blob, KeyEntry, Read, ReadOutcome, Revision};

use super::{Context, known, unexpected_answer};
use crate::colour;
use crate::document::write_page;
use crate::exit::Failure;
use crate::output::{self, Form, Output};

/// Most keys asked for at once.
const PAGE_KEYS_MAX: u64 = 1000;

pub(crate) async fn run(
    context: &Context,
    prefix: Blob,
    keys_only: bool,
    stale: bool,
) -> Result<(), Failure> {
    let mut printer = Printer { form: context.form(), keys_only, state: State::Start };
    let mut after = None;
    loop {
        let read = Read::List {
            scope: context.scope(),
            prefix: prefix.clone(),
            after,
            limit: PAGE_KEYS_MAX,
            keys_only,
        };
        match context.read(read, stale).await? {
            (ReadOutcome::Page { entries, next }, revision) => {
                if entries.is_empty() && printer.state == State::Start {
                    known::check(context, stale).await?;
                }
                output::print(&printer.page(&entries, revision, next.is_none())?)?;
                if next.is_none() {
                    return Ok(());
                }
                after = next;
            }
            (other, _) => return Err(unexpected_answer("list", &other)),
        }
    }
}

/// Turns pages into one document.
struct Printer {
    form: Form,
    keys_only: bool,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Nothing was printed yet.
    Start,
    /// Headers were printed, but no key.
    Empty,
    /// At least one key was printed.
    Going,
}

impl Printer {
    /// The bytes of this page within the document.
    fn page(
        &mut self,
        entries: &[KeyEntry],
        revision: Revision,
        last: bool,
    ) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        match self.form.output {
            Output::Table => {
                write_page(&mut out, entries, self.state == State::Start, self.keys_only)?;
                if !self.form.colours.output {
                    out = colour::plain(out);
                }
            }
            Output::Json => self.json(&mut out, entries, revision, last)?,
        }
        if self.state == State::Start {
            self.state = State::Empty;
        }
        if !entries.is_empty() {
            self.state = State::Going;
        }
        Ok(out)
    }

    fn json(
        &self,
        out: &mut Vec<u8>,
        entries: &[KeyEntry],
        revision: Revision,
        last: bool,
    ) -> io::Result<()> {
        if self.state == State::Start {
            write!(out, r#"{{"revision":{revision},"entries":["#)?;
        }
        for (index, entry) in entries.iter().enumerate() {
            if index > 0 || self.state == State::Going {
                out.push(b',');
            }
            serde_json::to_writer(&mut *out, entry)?;
        }
        if last {
            writeln!(out, "]}}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::colour::{Colours, When};

    fn entries(keys: &[&str]) -> Vec<KeyEntry> {
        let entry = |key: &&str| KeyEntry {
            key: Blob::from(*key),
            value: Some("v".into()),
            created: 1,
            modified: 2,
            version: 3,
        };
        keys.iter().map(entry).collect()
    }

    fn printed(output: Output, pages: &[&[&str]]) -> String {
        let colours = Colours::of(When::Never, &|_| None, true, true);
        let form = Form { output, colours };
        let mut printer = Printer { form, keys_only: false, state: State::Start };
        let mut bytes = Vec::new();
        for (index, keys) in pages.iter().enumerate() {
            let revision = 7 + index as u64;
            let last = index + 1 == pages.len();
            bytes.extend(printer.page(&entries(keys), revision, last).unwrap());
        }
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn all_pages_are_one_json_document_with_the_first_revision() {
        for pages in [
            &[&["a", "b", "c"][..]][..],
            &[&["a", "b"], &["c"]],
            &[&["a"], &[], &["b", "c"], &[]],
            &[&[], &["a", "b", "c"]],
        ] {
            let document: Value = serde_json::from_str(&printed(Output::Json, pages)).unwrap();
            assert_eq!(document["revision"], 7);
            let keys: Vec<_> =
                document["entries"].as_array().unwrap().iter().map(|entry| &entry["key"]).collect();
            assert_eq!(keys, ["a", "b", "c"]);
        }
    }

    #[test]
    fn an_empty_list_is_an_empty_document() {
        let document: Value = serde_json::from_str(&printed(Output::Json, &[&[]])).unwrap();
        assert_eq!(document, json!({"revision": 7, "entries": []}));
        assert_eq!(printed(Output::Table, &[&[]]), "KEY  VALUE  VERSION  REVISION\n");
    }

    #[test]
    fn a_table_has_one_header_for_all_pages() {
        let table = printed(Output::Table, &[&["a", "b"], &["c"]]);
        assert_eq!(table.matches("KEY").count(), 1);
        assert_eq!(table.lines().count(), 4);
    }
}
