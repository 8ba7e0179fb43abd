//! `kv wait`: returns once keys exist.

use std::time::Duration;

use holdfast_api::{Blob, Code, Condition, Problem, Read, ReadOutcome, Scope, Until};
use holdfast_client::{Deadline, Error};

use super::{Context, known, place};
use crate::document::Released;
use crate::exit::Failure;
use crate::output::counted;

/// Longest time to find out what is missing after the wait timed out.
const EXPLAIN: Duration = Duration::from_secs(1);
/// Most keys that are then looked at one by one.
const EXPLAIN_KEYS_MAX: usize = 32;

/// Waits for all keys within the timeout.
pub(crate) async fn run(
    context: &Context,
    keys: Vec<Blob>,
    at_least: Option<i64>,
) -> Result<(), Failure> {
    let until = at_least.map_or(Until::Exists, Until::AtLeast);
    let conditions = keys.iter().map(|key| Condition { key: key.clone(), until }).collect();
    // An absent job is reported within a second; if the store does not answer,
    // the wait itself reports that.
    let looking = tokio::time::timeout(EXPLAIN, known::say_if_absent(context));
    if let Ok(Err(failure @ Failure::Refused(_))) = looking.await {
        return Err(failure);
    }
    match context.client.wait(context.scope(), conditions, context.deadline()).await {
        Ok(revision) => context.emit(&Released { revision }),
        Err(error) if timed_out(&error) => Err(explain(context, &keys, until).await?),
        Err(error) => Err(error.into()),
    }
}

fn timed_out(error: &Error) -> bool {
    !matches!(error, Error::Refused(_)) && error.code() == Code::Timeout
}

/// The error of a wait that timed out. The cluster is asked what is missing: a
/// wait without a quorum then ends with the error of that question, and is not
/// taken for a missing key.
async fn explain(context: &Context, keys: &[Blob], until: Until) -> Result<Failure, Failure> {
    let deadline = Deadline::after(EXPLAIN);
    let mut missing = Vec::new();
    for key in keys.iter().take(EXPLAIN_KEYS_MAX) {
        if !is_met(context, key, until, deadline).await? {
            missing.push(key);
        }
    }
    let timeout = context.settings.timeout.value.to_string();
    let message = timed_out_message(&context.scope(), keys, &missing, until, &timeout);
    Ok(Failure::refused(Problem::retryable(Code::Timeout, message)))
}

async fn is_met(
    context: &Context,
    key: &Blob,
    until: Until,
    deadline: Deadline,
) -> Result<bool, Failure> {
    let scope = context.scope();
    let read = match until {
        Until::Exists => Read::Check { scope, keys: vec![key.clone()] },
        Until::AtLeast(_) => Read::Get { scope, key: key.clone() },
    };
    Ok(match (context.read_until(read, false, deadline).await?.0, until) {
        (ReadOutcome::Checked { all_exist }, _) => all_exist,
        (ReadOutcome::Entry(Some(entry)), Until::AtLeast(least)) => {
            let text = entry.value.as_ref().and_then(Blob::as_text);
            text.and_then(|text| text.parse::<i64>().ok()).is_some_and(|number| number >= least)
        }
        _ => false,
    })
}

fn timed_out_message(
    scope: &Scope,
    keys: &[Blob],
    missing: &[&Blob],
    until: Until,
    timeout: &str,
) -> String {
    let place = place(scope);
    let lacking = match until {
        Until::Exists => "missing".to_owned(),
        Until::AtLeast(least) => format!("below {least}"),
    };
    let found = if missing.is_empty() {
        format!("{} (there now, or too many to tell)", counted(keys.len() as u64, "key"))
    } else {
        let names: Vec<_> = missing.iter().map(|key| key.escaped()).collect();
        format!(
            "{} of {}, {lacking}: {}",
            missing.len(),
            counted(keys.len() as u64, "key"),
            names.join(", ")
        )
    };
    format!("timed out after {timeout} waiting in {place} for {found}; wait longer with --timeout")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_timed_out_names_what_is_missing() {
        let keys = [Blob::from("a"), Blob::from("b\n"), Blob::from("c")];
        let scope = Scope { job: "llm".parse().unwrap(), run: Some("r1".parse().unwrap()) };
        let message = timed_out_message(&scope, &keys, &[&keys[1], &keys[2]], Until::Exists, "5s");
        assert_eq!(
            message,
            "timed out after 5s waiting in job llm, run r1 for 2 of 3 keys, missing: b\\x0a, c; wait longer with --timeout"
        );
        let message =
            timed_out_message(&Scope::default(), &keys, &[&keys[0]], Until::AtLeast(4), "5s");
        assert!(message.contains("1 of 3 keys, below 4: a"), "{message}");
    }

    #[test]
    fn a_refusal_is_not_taken_for_a_wait_that_timed_out() {
        let refused = Error::Refused(Box::new(Problem::refused(Code::Timeout, "no")));
        assert!(!timed_out(&refused));
    }
}
