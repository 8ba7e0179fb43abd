//! The library's log, for Python's `logging`: its events of `tracing` at WARN and
//! above, under the logger `holdfast`.
//!
//! A thread that logs never waits for the GIL: it would keep a lease from being
//! renewed. Its lines are queued here until a call that waits, or the next one,
//! hands them over.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};

use parking_lot::Mutex;
use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Words that lie here at most; the oldest go.
const LINES_MAX: usize = 256;
/// Events of these crates alone: others have nothing to say to a trainer.
const TARGETS: &str = "holdfast";
const LOGGER: &str = "holdfast";

/// An event, with the level that it has in Python.
static LINES: Mutex<VecDeque<(u8, String)>> = Mutex::new(VecDeque::new());

/// Hears the events of the library from here on.
pub fn listen() {
    // No other subscriber is set: this module has its own copy of the library.
    let _ = tracing::subscriber::set_global_default(Ears);
}

/// Hands over what lies here.
pub fn hand_over(py: Python<'_>) -> PyResult<()> {
    let next = || LINES.lock().pop_front();
    // One by one: if something raises, the others lie here for the next call.
    while let Some((level, line)) = next() {
        let logger = PyModule::import(py, "logging")?.getattr("getLogger")?.call1((LOGGER,))?;
        // An argument, not a format: it may hold a per cent sign.
        logger.call_method1("log", (level, "%s", line))?;
    }
    Ok(())
}

struct Ears;

impl Subscriber for Ears {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && *metadata.level() <= Level::WARN
            && metadata.target().starts_with(TARGETS)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = if *event.metadata().level() == Level::ERROR { 40 } else { 30 };
        let mut lines = LINES.lock();
        if lines.len() >= LINES_MAX {
            lines.pop_front();
        }
        lines.push_back((level, line.message + &line.fields));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event in words: its message, and then its fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string never fails.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, "; {name}: {value:?}"),
        };
    }
}
