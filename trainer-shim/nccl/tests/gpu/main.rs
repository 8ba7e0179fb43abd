//! NCCL on a GPU: several ranks on one, each a process of its own.
//!
//! Run with `HOLDFAST_GPU_TESTS=1`; without it this says that it was not run.
//! NCCL refuses two ranks on one GPU unless they seem to be on different hosts,
//! which `NCCL_HOSTID` makes it believe. They then talk over sockets of the
//! loopback interface: what is tested is the lifecycle, not NVLink and not
//! InfiniBand.

mod rank;
mod ranks;
mod scenarios;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

/// The argument with which this program is a rank.
const RANK: &str = "rank";

/// Has to be 1 for anything to be run.
const VARIABLE: &str = "HOLDFAST_GPU_TESTS";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|argument| argument == RANK) {
        rank::serve();
        return ExitCode::SUCCESS;
    }
    let is_wanted = std::env::var(VARIABLE).as_deref() == Ok("1");
    let chosen = chosen(&arguments);
    if arguments.iter().any(|argument| argument == "--list") {
        match is_wanted {
            true => chosen.iter().for_each(|(name, _)| println!("{name}: test")),
            // Named so that nobody takes it for one that has passed.
            false if chosen.is_empty() => {}
            false => println!("not_run_without_{VARIABLE}: test"),
        }
        return ExitCode::SUCCESS;
    }
    if !is_wanted {
        let count = scenarios::ALL.len();
        println!("SKIPPED: {count} tests on a GPU: set {VARIABLE}=1 on a machine that has one");
        return ExitCode::SUCCESS;
    }
    let Some(library) = support::library() else { return ExitCode::FAILURE };
    let mut failed = 0;
    for (name, scenario) in &chosen {
        println!("test {name} ...");
        let result = std::panic::catch_unwind(|| scenario(&library));
        println!("test {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
        failed += usize::from(result.is_err());
    }
    println!("{} passed; {failed} failed", chosen.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The tests that the arguments ask for, as those of the usual harness do.
fn chosen(arguments: &[String]) -> Vec<&'static (&'static str, scenarios::Scenario)> {
    let has = |option: &str| arguments.iter().any(|argument| argument == option);
    if has("--ignored") {
        return Vec::new();
    }
    let mut filters = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--format" | "--test-threads" | "--color" => drop(rest.next()),
            option if option.starts_with('-') => {}
            filter => filters.push(filter),
        }
    }
    let matches = |name: &str| {
        let one =
            |filter: &&str| if has("--exact") { name == *filter } else { name.contains(filter) };
        filters.is_empty() || filters.iter().any(one)
    };
    scenarios::ALL.iter().filter(|(name, _)| matches(name)).collect()
}
