//! Golden scripts: the rules of the machine, each shown by example.
//!
//! A script in `tests/scripts` holds commands, each on a line that starts with `> `, and
//! after each its expected result. `UPDATE_GOLDEN=1` writes the actual result in its
//! place; read the difference before keeping it. [`parse`] says how commands are written,
//! [`show`] how outcomes are.

#![allow(clippy::unwrap_used, reason = "a test may")]
#![allow(clippy::disallowed_methods, reason = "whether to update is asked of the environment")]

use std::fs;
use std::path::Path;

use holdfast_machine::Machine;

mod parse;
mod show;

#[test]
fn every_script_comes_to_what_it_says() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut scripts: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.sort();
    assert!(scripts.len() > 5, "the scripts are gone");
    let mut wrong = Vec::new();
    for path in scripts {
        let expected = fs::read_to_string(&path).unwrap();
        let found = run(&expected);
        if found != expected && update {
            fs::write(&path, found).unwrap();
        } else if found != expected {
            wrong.push(format!("{}:\n{}", path.display(), difference(&expected, &found)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The script with the outcomes that its commands have now.
fn run(script: &str) -> String {
    let mut machine = Machine::new();
    let mut out = String::new();
    let mut in_outcome = false;
    for line in script.lines() {
        if let Some(text) = line.strip_prefix("> ") {
            out.push_str(line);
            out.push('\n');
            out.push_str(&step(&mut machine, text));
            in_outcome = true;
        } else if line.is_empty() || line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
            in_outcome = false;
        } else {
            assert!(in_outcome, "neither a command, a comment nor an outcome: {line}");
        }
    }
    out
}

fn step(machine: &mut Machine, text: &str) -> String {
    let shown = match parse::line(text, machine.time()) {
        parse::Line::Entry(entry) => show::applied(&machine.apply(&entry)),
        parse::Line::Crowd(entry) => show::last(&machine.apply(&entry)),
        parse::Line::Read(read) => return show::read(&machine.read(&read)),
        parse::Line::Ask(ask) => return show::ask(machine, &ask),
    };
    survives_a_restart(machine);
    shown
}

/// After every step of a script the image of the state gives the same state.
fn survives_a_restart(machine: &mut Machine) {
    let mut image = Vec::new();
    machine.encode(&mut image).unwrap();
    let restored = Machine::decode(&mut &image[..]).unwrap();
    assert_eq!(restored.digest(), machine.digest());
    assert_eq!(restored.counts(), machine.counts());
    *machine = restored;
}

fn difference(expected: &str, found: &str) -> String {
    let first = expected.lines().zip(found.lines()).position(|(a, b)| a != b);
    let line = first.unwrap_or_else(|| expected.lines().count().min(found.lines().count()));
    let excerpt = |text: &str| {
        let lines: Vec<_> = text.lines().skip(line.saturating_sub(2)).take(8).collect();
        lines.join("\n    ")
    };
    format!(
        "  from line {} expected\n    {}\n  found\n    {}",
        line + 1,
        excerpt(expected),
        excerpt(found)
    )
}
