//! The router of all JSON routes, and the API description made from it.
//!
//! `store/docs/openapi.json` is a copy of what a node serves; a test keeps the
//! two the same (`UPDATE_OPENAPI=1` writes the file anew).

mod complete;

use std::sync::LazyLock;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::problem::extract::BODY_BYTES_MAX;
use super::problem::{Failure, ProblemDocument};

use super::{
    App, admission, agents, backup, cluster, coordination, forward, health, kv, limits, metrics,
    strict, tokens,
};

/// The description's title and introduction.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Holdfast store",
        description = "A replicated key-value store: the control plane of distributed training jobs.

Any node answers any call: a follower passes it to the leader. With the header `holdfast-no-forward: 1`, or `?forward=false`, it refuses instead and names the leader (421).

Keys and values are bytes. In JSON they are strings: text stands for itself, a backslash is doubled, every other byte is `\\xNN`.

Requests are read strictly, at every depth: a field or a parameter that is not known, one that is there twice, one that is missing and one of another type are refused (400) with their place, and nothing is done.

A change can be sent again safely if it names a session and a sequence in the headers `holdfast-session` and `holdfast-sequence`: it has one effect, and each try gets the same answer.

Questions are answered as of now, or later, unless `stale` asks for the answering node's own state.

A node started with a token file answers only requests with the header `authorization: Bearer TOKEN`; `/livez`, `/readyz` and `/metrics` need none. A signed token allows what its role allows; the rest is refused (403).

Errors are problem+json (RFC 9457) with a stable `code`, whether it is `retryable`, and whether the call had an effect (`outcome`: none, applied or unknown).",
        license(name = "Apache-2.0"),
    ),
    components(schemas(ProblemDocument)),
    security(("token" = [])),
    modifiers(&SharedToken),
    tags(
        (name = "keys", description = "Keys and values, waits and watches"),
        (name = "queues", description = "Queues; they and keys are separate spaces"),
        (name = "sessions", description = "Sessions make changes retryable"),
        (name = "runs", description = "Jobs and their runs"),
        (name = "processes", description = "Leases, processes, rounds and iterations"),
        (name = "cluster", description = "Nodes, leadership, limits"),
        (name = "operations", description = "Health, metrics and this description"),
    )
)]
struct Description;

/// Describes how the shared token travels.
struct SharedToken;

impl Modify for SharedToken {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

/// The text that `/openapi.json` serves.
pub(crate) static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let document = complete::complete(&described_routes().into_openapi());
    let mut text = document.to_pretty_json().expect("the description is made of strings and maps");
    text.push('\n');
    text
});

/// The description of this API.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "openapi", tag = "operations",
    responses((status = 200, description = "This document", content_type = "application/json"))
)]
async fn openapi() -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], DOCUMENT.as_str()).into_response()
}

fn described_routes() -> OpenApiRouter<App> {
    use cluster as c;
    use kv::{change, park, read};
    change::add_routes(OpenApiRouter::with_openapi(Description::openapi()))
        .routes(routes!(read::get, read::get_by_query))
        .routes(routes!(read::multi_get))
        .routes(routes!(read::check))
        .routes(routes!(read::list, read::list_by_query))
        .routes(routes!(read::count))
        .routes(routes!(read::queue_length))
        .routes(routes!(park::wait))
        .routes(routes!(park::watch, park::watch_by_query))
        .routes(routes!(c::open_session))
        .routes(routes!(c::keep_session))
        .routes(routes!(c::close_session))
        .routes(routes!(c::open_run))
        .routes(routes!(c::end_run))
        .routes(routes!(c::delete_run))
        .routes(routes!(c::delete_job))
        .routes(routes!(c::runs))
        .routes(routes!(c::jobs))
        .routes(routes!(coordination::lease))
        .routes(routes!(coordination::process))
        .routes(routes!(coordination::round))
        .routes(routes!(coordination::feed))
        .routes(routes!(coordination::processes))
        .routes(routes!(coordination::rounds))
        .routes(routes!(coordination::held))
        .routes(routes!(coordination::closed))
        .routes(routes!(coordination::plan))
        .routes(routes!(coordination::iteration))
        .routes(routes!(coordination::events))
        .routes(routes!(c::status))
        .routes(routes!(c::majority))
        .routes(routes!(c::nodes))
        .routes(routes!(agents::agents))
        .routes(routes!(c::add_node))
        .routes(routes!(c::promote_node))
        .routes(routes!(c::remove_node))
        .routes(routes!(c::leader))
        .routes(routes!(c::transfer_leader))
        .routes(routes!(limits::limits, limits::set_limits))
        .routes(routes!(tokens::tokens))
        .routes(routes!(tokens::revoke))
        .routes(routes!(backup::backup))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
        .routes(routes!(metrics::metrics))
        .routes(routes!(openapi))
}

/// All JSON routes, health, metrics and the description, with the layers around
/// them. Unknown paths and methods are answered with a problem, too.
pub(crate) fn router(app: App) -> Router {
    strict::prepare();
    let (router, _) = described_routes().split_for_parts();
    router
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(forward::Steering::new(app.clone()), forward::steer))
        .layer(from_fn_with_state(app.clone(), admission::admit))
        .layer(from_fn_with_state(app.clone(), metrics::observe))
        .with_state(app)
}

async fn no_such_path(uri: Uri) -> Failure {
    let nearest = strict::nearest_path(uri.path());
    let message = format!("there is no path {}{nearest}", uri.path());
    Failure::invalid(StatusCode::NOT_FOUND, message)
}

async fn no_such_method(method: Method, uri: Uri) -> Failure {
    let known = strict::methods(uri.path()).join(" and ");
    let message = format!("{} takes {known}, not {method}; see /openapi.json", uri.path());
    Failure::invalid(StatusCode::METHOD_NOT_ALLOWED, message)
}

#[cfg(test)]
pub(crate) mod tests;
