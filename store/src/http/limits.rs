//! The replicated limits as JSON.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use holdfast_api::limits::Whole;
use holdfast_api::{ClusterCommand, Command, Limits, Outcome};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::App;
use super::cluster::{Answered, Freshness};
use super::kv::{Mark, Seen, commit};
use super::problem::extract::{Body, InSession, Params, SessionHeaders};
use super::problem::{ChangeProblems, Failure, ReadProblems};

/// The replicated limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitsAnswer {
    /// Each limit.
    #[serde(flatten, serialize_with = "Whole::serialize")]
    pub limits: Limits,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// The replicated limits.
#[utoipa::path(
    get, path = "/v1/limits", operation_id = "limits", tag = "cluster", params(Freshness),
    responses((status = 200, description = "The limits", body = LimitsAnswer), ReadProblems)
)]
pub async fn limits(
    State(app): State<App>,
    Params(Freshness { stale }): Params<Freshness>,
) -> Answered<LimitsAnswer> {
    let node = app.node()?;
    if !stale {
        node.linearize().await?;
    }
    let machine = node.machine();
    let seen = Seen { revision: machine.revision(), stale };
    Ok(Json(LimitsAnswer { limits: machine.limits().clone(), seen }))
}

/// Changes the limits that are named and leaves the others.
#[utoipa::path(
    post, path = "/v1/limits", operation_id = "limits_set", tag = "cluster",
    params(SessionHeaders), request_body = Limits,
    responses((status = 200, description = "The limits now", body = LimitsAnswer), ChangeProblems)
)]
pub async fn set_limits(
    State(app): State<App>,
    InSession(session): InSession,
    Body(wanted): Body<Map<String, Value>>,
) -> Answered<LimitsAnswer> {
    let node = app.node()?;
    node.linearize().await?;
    let present = node.machine().limits().clone();
    let limits =
        overlay(&present, wanted).map_err(|why| Failure::invalid(StatusCode::BAD_REQUEST, why))?;
    let command = ClusterCommand::SetLimits { limits: limits.clone() };
    let fitting = |outcome: &Outcome, mark: Mark| {
        let seen = Seen { revision: mark.revision, stale: false };
        matches!(outcome, Outcome::Cluster(_)).then_some(LimitsAnswer { limits, seen })
    };
    commit(&app, session, Command::Cluster(command), fitting).await
}

/// The limits with some of them changed.
fn overlay(present: &Limits, wanted: Map<String, Value>) -> Result<Limits, String> {
    let mut limits: Map<String, Value> = serde_json::to_value(Whole::from(present))
        .and_then(serde_json::from_value)
        .map_err(|error| error.to_string())?;
    change(&mut limits, wanted)?;
    serde_json::from_value(Value::Object(limits)).map_err(|error| error.to_string())
}

/// Changes the limits that are named. A misspelt one must not pass for a change
/// that was made.
fn change(limits: &mut Map<String, Value>, wanted: Map<String, Value>) -> Result<(), String> {
    for (name, limit) in wanted {
        match (limits.get_mut(&name), limit) {
            (Some(Value::Object(limits)), Value::Object(wanted)) => change(limits, wanted)?,
            (Some(present @ Value::Number(_)), limit) if limit.is_u64() => *present = limit,
            (Some(Value::Object(_)), limit) => {
                return Err(format!("{name} holds limits by their names, and is not {limit}"));
            }
            (Some(_), limit) => {
                return Err(format!("the limit {name} must be a whole number, not {limit}"));
            }
            (None, _) => {
                let known: Vec<&str> = limits.keys().map(String::as_str).collect();
                return Err(format!("there is no limit {name:?}; there are {}", known.join(", ")));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use holdfast_api::LifeLimits;
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn limits_are_changed_one_by_one() {
        let present = Limits { jobs_max: 5, ..Limits::default() };
        let Value::Object(wanted) = json!({"job_keys_max": 7}) else { unreachable!() };
        assert_eq!(
            overlay(&present, wanted).unwrap(),
            Limits { jobs_max: 5, job_keys_max: 7, ..Limits::default() }
        );
    }

    #[test]
    fn limits_of_processes_are_shown_and_changed_like_all_others() {
        let seen = Seen { revision: 1, stale: false };
        let answer = LimitsAnswer { limits: Limits::default(), seen };
        let shown = serde_json::to_value(&answer).unwrap();
        assert_eq!(shown["life"], serde_json::to_value(LifeLimits::default()).unwrap());
        assert_eq!(from_value::<LimitsAnswer>(shown).unwrap(), answer);
        let Value::Object(wanted) = json!({"life": {"leases_max": 7}}) else { unreachable!() };
        let life = LifeLimits { leases_max: 7, ..LifeLimits::default() };
        let changed = overlay(&Limits::default(), wanted).unwrap();
        assert_eq!(changed, Limits { life: Box::new(life), ..Limits::default() });
    }

    #[test]
    fn an_unknown_limit_and_one_that_is_no_number_are_refused() {
        for (wanted, expected) in [
            (json!({"life": 7}), "by their names"),
            (json!({"life": {"lease_max": 7}}), "leases_max"),
            (json!({"life": {"leases_max": -7}}), "whole number"),
            (json!({"job_keys_max": {"leases_max": 7}}), "whole number"),
            (json!({"job_key_max": 7}), "job_keys_max"),
            (json!({"job_keys_max": -7}), "whole number"),
            (json!({"job_keys_max": "7"}), "whole number"),
        ] {
            let Value::Object(wanted) = wanted else { unreachable!() };
            let refused = overlay(&Limits::default(), wanted).unwrap_err();
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
