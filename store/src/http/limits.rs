//! The replicated limits as JSON.

use axum::extract::State;
use axum::http::StatusCode;
use holdfast_api::limits::Whole;
use holdfast_api::{ClusterCommand, Command, Limits, Outcome};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::App;
use super::answer::Json;
use super::cluster::{Answered, Freshness};
use super::kv::{Mark, Seen, commit};
use super::problem::extract::{Body, InSession, Params, SessionHeaders};
use super::problem::{ChangeProblems, Failure, ReadProblems};
use crate::principal::Principal;

/// The replicated limits, and when they held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct LimitsAnswer {
    /// Each limit with its value, those at their defaults included.
    #[serde(flatten, serialize_with = "Whole::serialize")]
    pub(crate) limits: Limits,
    /// When it was so.
    #[serde(flatten)]
    pub seen: Seen,
}

/// The replicated limits, each one with its value.
#[utoipa::path(
    get, path = "/v1/limits", operation_id = "limits", tag = "cluster", params(Freshness),
    responses((status = 200, description = "The limits", body = LimitsAnswer), ReadProblems)
)]
pub(crate) async fn limits(
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
    params(SessionHeaders),
    request_body(content = Limits, example = json!({"jobs_max": 500, "life": {"leases_max": 20000}})),
    responses((status = 200, description = "The limits now", body = LimitsAnswer), ChangeProblems)
)]
pub(crate) async fn set_limits(
    State(app): State<App>,
    caller: Principal,
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
    commit(&app, &caller, session, Command::Cluster(command), fitting).await
}

/// The limits with some of them changed.
pub(crate) fn overlay(present: &Limits, wanted: Map<String, Value>) -> Result<Limits, String> {
    let mut limits: Map<String, Value> = serde_json::to_value(Whole::from(present))
        .and_then(serde_json::from_value)
        .map_err(|error| error.to_string())?;
    change(&mut limits, wanted);
    serde_json::from_value(Value::Object(limits)).map_err(|error| error.to_string())
}

/// Changes the limits that are named; the caller has checked that there are some.
fn change(limits: &mut Map<String, Value>, wanted: Map<String, Value>) {
    for (name, limit) in wanted {
        match (limits.get_mut(&name), limit) {
            (Some(Value::Object(limits)), Value::Object(wanted)) => change(limits, wanted),
            (_, limit) => drop(limits.insert(name, limit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::CoordinationLimits;
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
        // All of them, also those that are written only once they were changed.
        assert_eq!(shown["life"]["quorums_per_run_max"], 4_096);
        let life: CoordinationLimits = from_value(shown["life"].clone()).unwrap();
        assert_eq!(life, CoordinationLimits::default());
        assert_eq!(from_value::<LimitsAnswer>(shown).unwrap(), answer);
        let Value::Object(wanted) = json!({"life": {"leases_max": 7}}) else { unreachable!() };
        let coordination = CoordinationLimits { leases_max: 7, ..CoordinationLimits::default() };
        let changed = overlay(&Limits::default(), wanted).unwrap();
        assert_eq!(changed, Limits { coordination: Box::new(coordination), ..Limits::default() });
    }
}
