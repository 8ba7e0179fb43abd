//! Whether this node is alive, and whether it is ready for clients.

use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use holdfast_api::Problem;

use super::App;
use crate::node::Node;
use crate::node::View;

/// Longest time for the read that shows readiness.
const READ_TIME_MAX: Duration = Duration::from_secs(1);

/// A follower that has applied to within this many entries of what it knows to
/// be committed keeps up.
const APPLIED_BEHIND_MAX: u64 = 1_000;

/// One thing that has to be right.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Check {
    name: &'static str,
    /// What is wrong; `Ok` if nothing is.
    verdict: Result<(), String>,
}

impl Check {
    fn new(name: &'static str, right: bool, wrong: impl Into<String>) -> Check {
        Check { name, verdict: if right { Ok(()) } else { Err(wrong.into()) } }
    }
}

/// Alive: this process answers.
///
/// Says nothing of the quorum: restarting a node because others are gone would
/// make it worse.
#[utoipa::path(
    get, path = "/livez", operation_id = "livez", tag = "operations", security(()),
    responses((status = 200, description = "The process serves", body = String, content_type = "text/plain"))
)]
pub(crate) async fn livez() -> Response {
    report("livez", &[Check::new("process", true, "")], &[])
}

/// Ready: a leader is known, a linearizable read works, this node votes, its
/// consensus works and it is not about to stop.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readyz", tag = "operations", security(()),
    params(("exclude" = Option<Vec<String>>, Query, description = "A check that does not count; may be given several times", example = json!(["voter"]))),
    responses(
        (status = 200, description = "Ready; each check on a line", body = String, content_type = "text/plain"),
        (status = 503, description = "Not ready; each check on a line", body = String, content_type = "text/plain"),
    )
)]
pub(crate) async fn readyz(State(app): State<App>, RawQuery(query): RawQuery) -> Response {
    let checks = match app.node() {
        Ok(node) => node_checks(node).await,
        Err(Problem { message, .. }) => vec![Check { name: "formed", verdict: Err(message) }],
    };
    let excluded = query.as_deref().map(exclusions).unwrap_or_default();
    report("readyz", &checks, &excluded)
}

async fn node_checks(node: &Node) -> Vec<Check> {
    let view = node.view();
    // A stopped leader stays known for a while; voters that do not answer are noticed
    // sooner.
    let lost = node.majority().and_then(|majority| majority.lost_in_words());
    let read = match (view.is_leader(), lost) {
        (true, _) => led_read(node).await,
        (false, Some(lost)) => Err(lost),
        (false, None) => followed_read(&view),
    };
    vec![
        Check::new("formed", true, ""),
        Check::new("leader", view.leader.is_some(), "this node knows no leader"),
        Check { name: "linearizable_read", verdict: read },
        Check::new(
            "voter",
            view.voters.contains(&view.id),
            format!("a learner: `holdfast node promote {}` gives it a vote", view.id),
        ),
        Check { name: "consensus", verdict: view.failed.map_or(Ok(()), Err) },
        Check::new("draining", !node.is_draining(), "about to stop"),
    ]
}

/// The leader asks its quorum.
async fn led_read(node: &Node) -> Result<(), String> {
    match tokio::time::timeout(READ_TIME_MAX, node.linearize()).await {
        Ok(result) => result.map_err(|problem| problem.message),
        Err(_) => Err(format!("no quorum answered within {} ms", READ_TIME_MAX.as_millis())),
    }
}

/// A follower passes reads to the leader; it must know the leader and keep up.
fn followed_read(view: &View) -> Result<(), String> {
    let behind = view.committed.saturating_sub(view.applied);
    if view.leader.is_none() {
        Err("there is no leader to ask".to_owned())
    } else if behind > APPLIED_BEHIND_MAX {
        Err(format!("{behind} committed entries are not applied yet"))
    } else {
        Ok(())
    }
}

/// The checks named by `exclude=…`; their names need no decoding.
fn exclusions(query: &str) -> Vec<&str> {
    query.split('&').filter_map(|pair| pair.strip_prefix("exclude=")).collect()
}

fn report(what: &str, checks: &[Check], excluded: &[&str]) -> Response {
    let (passed, text) = text(what, checks, excluded);
    let status = if passed { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (status, headers, text).into_response()
}

/// Whether all checks that count passed, and a line for each.
fn text(what: &str, checks: &[Check], excluded: &[&str]) -> (bool, String) {
    let mut text = String::new();
    let mut passed = true;
    for Check { name, verdict } in checks {
        match verdict {
            _ if excluded.contains(name) => text.push_str(&format!("[+]{name} excluded: ok\n")),
            Ok(()) => text.push_str(&format!("[+]{name} ok\n")),
            Err(why) => {
                passed = false;
                text.push_str(&format!("[-]{name} failed: {}\n", why.replace('\n', " ")));
            }
        }
    }
    let end = if passed { "passed" } else { "failed" };
    text.push_str(&format!("{what} check {end}\n"));
    (passed, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks() -> Vec<Check> {
        vec![
            Check::new("leader", true, ""),
            Check::new("linearizable_read", false, "no quorum\nanswered"),
            Check::new("voter", false, "a learner"),
        ]
    }

    #[test]
    fn each_check_has_a_line_and_one_failure_is_enough() {
        assert_eq!(
            text("readyz", &checks(), &[]),
            (
                false,
                "[+]leader ok\n\
                 [-]linearizable_read failed: no quorum answered\n\
                 [-]voter failed: a learner\n\
                 readyz check failed\n"
                    .to_owned()
            )
        );
    }

    #[test]
    fn an_excluded_check_does_not_count() {
        let (passed, _) = text("readyz", &checks(), &["voter"]);
        assert!(!passed, "another one still fails");
        let (passed, shown) = text("readyz", &checks(), &["voter", "linearizable_read"]);
        assert!(passed);
        assert!(shown.contains("[+]voter excluded: ok\n"), "{shown}");
    }

    #[test]
    fn several_checks_can_be_excluded() {
        assert_eq!(exclusions("exclude=voter&verbose&exclude=leader"), ["voter", "leader"]);
        assert!(exclusions("verbose").is_empty());
    }
}
