//! When there is colour, and what is coloured.
//!
//! Tables are written with their colours; [`plain`] removes them where they
//! cannot be shown. Text from elsewhere holds no control characters by then, so
//! that only our own colours are removed.

use std::ffi::OsString;

use clap::ColorChoice;
use clap::ValueEnum;
use clap::builder::Styles;
use clap::builder::styling::{AnsiColor, Style};

pub(crate) const HEADING: Style = Style::new().bold();
/// Style of what works.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Style of what does not work fully.
pub(crate) const DOUBTFUL: Style = AnsiColor::Yellow.on_default();
/// Style of what does not work, and of errors.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// Style of the names of commands and options in help.
const LITERAL: Style = AnsiColor::Cyan.on_default();

/// How help and usage errors look.
pub(crate) const HELP: Styles = Styles::styled()
    .header(HEADING)
    .usage(HEADING)
    .literal(LITERAL)
    .valid(GOOD)
    .invalid(DOUBTFUL)
    .error(BAD);

/// The values of `--color`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum When {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb.
    #[default]
    Auto,
    /// Wherever the output goes.
    Always,
    /// No output is coloured.
    Never,
}

/// Whether each output is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Colours {
    /// Whether standard output is coloured.
    pub(crate) output: bool,
    /// Whether standard error is coloured.
    pub(crate) error: bool,
    /// The same in clap's words.
    pub(crate) help: ColorChoice,
}

impl Colours {
    /// What was asked for, by the flag, by the environment, and by where the
    /// outputs go.
    pub(crate) fn of(
        when: When,
        environment: &dyn Fn(&str) -> Option<OsString>,
        output_is_terminal: bool,
        error_is_terminal: bool,
    ) -> Colours {
        let unwanted = environment("NO_COLOR").is_some_and(|value| !value.is_empty())
            || environment("TERM").is_some_and(|value| value == "dumb");
        match when {
            When::Always => Colours { output: true, error: true, help: ColorChoice::Always },
            When::Auto if !unwanted => Colours {
                output: output_is_terminal,
                error: error_is_terminal,
                help: ColorChoice::Auto,
            },
            When::Auto | When::Never => {
                Colours { output: false, error: false, help: ColorChoice::Never }
            }
        }
    }

    /// What a warning on standard error begins with.
    pub(crate) fn warning(self) -> String {
        match self.error {
            true => painted(DOUBTFUL, "warning:"),
            false => "warning:".to_owned(),
        }
    }
}

/// The text between the codes of a style.
pub(crate) fn painted(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// A table of ours without its colours.
pub(crate) fn plain(table: Vec<u8>) -> Vec<u8> {
    const ESCAPE: u8 = 0x1b;
    if !table.contains(&ESCAPE) {
        return table;
    }
    let mut out = Vec::with_capacity(table.len());
    let mut inside = false;
    for byte in table {
        match (inside, byte) {
            (false, ESCAPE) => inside = true,
            (false, byte) => out.push(byte),
            (true, b'm') => inside = false,
            (true, _) => {}
        }
    }
    out
}

/// The colour of a state's name in a table.
pub(crate) fn of_state(state: &str) -> Option<Style> {
    Some(match state {
        "alive" | "leader" | "open" | "ok" | "good" => GOOD,
        "warning" | "candidate" | "ending" | "draining" => DOUBTFUL,
        "unreachable" | "missing" | "failed" | "silent" | "gone" | "lease expired" => BAD,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colours(when: When, variables: &[(&str, &str)], terminal: bool) -> (bool, bool) {
        let environment = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let colours = Colours::of(when, &environment, terminal, terminal);
        assert_eq!(colours.output, colours.error);
        (colours.output, colours.help == ColorChoice::Never)
    }

    #[test]
    fn colour_is_where_a_terminal_is_unless_somebody_says_otherwise() {
        assert_eq!(colours(When::Auto, &[], true), (true, false));
        assert_eq!(colours(When::Auto, &[], false), (false, false));
        assert_eq!(colours(When::Auto, &[("NO_COLOR", "")], true), (true, false));
        for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            assert_eq!(colours(When::Auto, &[variable], true), (false, true));
            assert_eq!(colours(When::Always, &[variable], false), (true, false));
        }
        assert_eq!(colours(When::Never, &[], true), (false, true));
    }

    #[test]
    fn each_output_is_coloured_by_where_it_goes() {
        let colours = Colours::of(When::Auto, &|_| None, false, true);
        assert!(!colours.output && colours.error);
    }

    #[test]
    fn what_is_taken_out_is_what_was_put_in() {
        let text = "NODE  ROLE\n1     leader ä\n";
        let coloured = text
            .replace("NODE  ROLE", &painted(HEADING, "NODE  ROLE"))
            .replace("leader", &painted(GOOD, "leader"));
        assert!(coloured.len() > text.len());
        assert_eq!(plain(coloured.into_bytes()), text.as_bytes());
        assert_eq!(plain(text.into()), text.as_bytes());
    }
}
