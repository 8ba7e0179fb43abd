//! A stream that a follower passes on to the leader, for a client that cannot
//! reach the leader itself. Nothing is read or changed in between: the client's
//! order, its session and its retries are those of a stream of its own.

use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::Response;
use holdfast_api::stream::UPGRADE;
use holdfast_api::{Code, Problem, routes};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;

use super::ConnectionPlace;
use crate::dial::{self, Patience};
use crate::http::{App, problem};
use crate::node::Node;
use crate::principal::Principal;

/// Longest time for the leader to accept the stream.
const OPEN_TIME_MAX: Duration = Duration::from_secs(1);

/// Whether a client asks a node that does not lead to pass its stream on.
pub(crate) fn asks(node: &Node, headers: &HeaderMap) -> bool {
    headers.get(routes::THROUGH_HEADER).is_some_and(|value| value == "1")
        && !node.consensus().leads()
}

/// Opens a stream to the leader and copies both directions.
pub(crate) async fn open(
    app: &App,
    node: &Node,
    caller: Principal,
    upgrade: OnUpgrade,
    place: Option<ConnectionPlace>,
) -> Response {
    let leader = match node.view().leader {
        Some(leader) if leader.node != node.id() => leader,
        Some(_) | None => return problem::respond(Problem::not_leader(None)),
    };
    let Ok(second) = app.inner.through_room.clone().try_acquire_owned() else {
        let message = "this node has reached its limit of forwarded streams; retry";
        return problem::respond(Problem::overloaded(message));
    };
    let headers = node.access().headers_for(&caller);
    let opened = dial::upgrade(
        node.access().tls(),
        &leader.address,
        routes::STREAM,
        UPGRADE,
        headers,
        Patience::Long,
        OPEN_TIME_MAX,
    );
    let there = match opened.await {
        Ok((_, there)) => there,
        Err(error) => {
            let refusal = Problem::retryable(
                Code::Unavailable,
                format!("the leader, node {}, did not accept the stream: {error}", leader.node),
            );
            return problem::respond(refusal);
        }
    };
    let stop = app.inner.stop.clone();
    let app_here = app.clone();
    let passing = async move {
        let _second = second;
        tokio::select! {
            () = pass(upgrade, there) => {}
            _ = app_here.ended(&caller) => {}
            // Closed when this node stops.
            () = stop.cancelled() => {}
        }
    };
    match place {
        Some(place) => app.inner.tasks.spawn(place.lend(passing)),
        None => app.inner.tasks.spawn(passing),
    };
    super::switched()
}

/// The side that ends first ends the other.
async fn pass(upgrade: OnUpgrade, there: TokioIo<Upgraded>) {
    let Ok(here) = upgrade.await else { return };
    let (mut from_here, mut to_here) = tokio::io::split(TokioIo::new(here));
    let (mut from_there, mut to_there) = tokio::io::split(there);
    let ended = tokio::select! {
        ended = tokio::io::copy(&mut from_here, &mut to_there) => ended,
        ended = tokio::io::copy(&mut from_there, &mut to_here) => ended,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a stream that was passed on broke");
    }
}
