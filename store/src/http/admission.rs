//! The layer that lets nobody in without the shared token.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use holdfast_api::{Code, Problem};
use http::header;

use super::App;
use super::accept::Place;
use super::problem::respond;

/// Refuses whoever has no token, before anything of the request is read.
pub async fn admit(State(app): State<App>, request: Request, next: Next) -> Response {
    if app.inner.access.admits(request.uri().path(), request.headers()) {
        let is_open = app.inner.access.is_open_path(request.uri().path());
        if let Some(place) = Place::of(&request).filter(|_| !is_open) {
            place.let_in();
        }
        return next.run(request).await;
    }
    respond(denied(request.headers().contains_key(header::AUTHORIZATION)))
}

fn denied(tried: bool) -> Problem {
    let message = if tried {
        "the token is none that this node accepts: compare the file given as --token-file or HOLDFAST_TOKEN_FILE with the node's"
    } else {
        "this node lets nobody in without the cluster's token: name its file with --token-file FILE or HOLDFAST_TOKEN_FILE (curl: --header \"Authorization: Bearer $(head -n 1 FILE)\")"
    };
    Problem::refused(Code::Unauthorized, message)
}
