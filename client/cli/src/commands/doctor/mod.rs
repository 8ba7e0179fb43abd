//! `doctor`: whether this host and the cluster work together, and what to do
//! where they do not.
//!
//! | module | looks at |
//! | --- | --- |
//! | [`cluster`] | each node: reachable, ready, its clock and its disk; all together |
//! | [`exposition`] | the text of `/metrics` |
//! | [`host`] | this host: ports, PyTorch |

mod cluster;
pub(crate) mod exposition;
mod host;

use std::io;
use std::path::PathBuf;

use holdfast_api::{Code, Problem};
use serde::Serialize;

use super::Context;
use crate::exit::Failure;
use crate::output::{Document, write_rows};

/// Makes every check and prints the results; fails if one failed.
pub(crate) async fn run(context: &Context, python: Option<PathBuf>) -> Result<(), Failure> {
    let store = &context.settings.store.value.0;
    let credentials = context.client.credentials();
    let (mut checks, torch) =
        tokio::join!(cluster::look(store, credentials), host::look_for_torch(python.as_deref()));
    checks.extend(host::look_at_ports(store));
    checks.push(torch);
    let examination = Examination::of(checks);
    context.emit(&examination)?;
    match examination.failed() {
        0 => Ok(()),
        failed => {
            let message = format!("{failed} checks failed; see FOUND for the fix of each");
            Err(Failure::refused(Problem::refused(Code::Unavailable, message)))
        }
    }
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum CheckStatus {
    /// As it should be.
    Ok,
    /// It works, but will cause trouble.
    Warning,
    /// It does not work.
    Failed,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Check {
    check: &'static str,
    /// What was looked at.
    subject: String,
    verdict: CheckStatus,
    found: String,
    /// What to do; null if nothing has to be done.
    next: Option<String>,
}

impl Check {
    fn ok(check: &'static str, subject: impl Into<String>, found: impl Into<String>) -> Check {
        let (subject, found) = (subject.into(), found.into());
        Check { check, subject, verdict: CheckStatus::Ok, found, next: None }
    }

    fn warns(self, next: impl Into<String>) -> Check {
        Check { verdict: CheckStatus::Warning, next: Some(next.into()), ..self }
    }

    fn fails(self, next: impl Into<String>) -> Check {
        Check { verdict: CheckStatus::Failed, next: Some(next.into()), ..self }
    }
}

/// The answer of `doctor`.
#[derive(Debug, PartialEq, Serialize)]
struct Examination {
    /// No check failed; there may be warnings.
    healthy: bool,
    checks: Vec<Check>,
}

impl Examination {
    fn of(checks: Vec<Check>) -> Examination {
        let healthy = checks.iter().all(|check| check.verdict != CheckStatus::Failed);
        Examination { healthy, checks }
    }

    fn failed(&self) -> usize {
        self.checks.iter().filter(|check| check.verdict == CheckStatus::Failed).count()
    }
}

impl Document for Examination {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let rows = self.checks.iter().map(|check| {
            let verdict = match check.verdict {
                CheckStatus::Ok => "ok",
                CheckStatus::Warning => "WARNING",
                CheckStatus::Failed => "FAILED",
            };
            let found = match &check.next {
                Some(next) => format!("{}: {next}", check.found),
                None => check.found.clone(),
            };
            [verdict.to_owned(), check.check.to_owned(), check.subject.clone(), found]
        });
        write_rows(out, Some(["VERDICT", "CHECK", "OF", "FOUND"]), rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{Output, render};

    #[test]
    fn what_failed_says_what_to_do_and_makes_it_unhealthy() {
        let fine = Check::ok("clock", "node 1", "rate 1.000");
        let slow = Check::ok("fsync", "node 2", "p99 200 ms").warns("look at its disk");
        let mut examination = Examination::of(vec![fine, slow.clone()]);
        assert!(examination.healthy);
        let broken = Check::ok("reach", "node 3", "no answer").fails("start it");
        examination = Examination::of([examination.checks, vec![broken]].concat());
        assert_eq!((examination.healthy, examination.failed()), (false, 1));
        let table = String::from_utf8(render(&examination, Output::Table).unwrap()).unwrap();
        let wanted = "\
VERDICT  CHECK  OF      FOUND
ok       clock  node 1  rate 1.000
WARNING  fsync  node 2  p99 200 ms: look at its disk
FAILED   reach  node 3  no answer: start it
";
        assert_eq!(table, wanted);
        let json: serde_json::Value =
            serde_json::from_slice(&render(&examination, Output::Json).unwrap()).unwrap();
        assert_eq!(json["checks"][2]["verdict"], "failed");
        assert_eq!(json["checks"][0]["next"], serde_json::Value::Null);
    }
}
