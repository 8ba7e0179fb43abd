//! The layer that refuses requests without the shared token, or by a foreign
//! name.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use holdfast_api::{Code, Problem};
use holdfast_net::tls::Caller;
use http::header;

use super::App;
use super::accept::Place;
use super::host;
use super::problem::respond;
use crate::access::Access;
use crate::tls::Verdict;

/// Answers a request, and counts that.
pub async fn admit(State(app): State<App>, request: Request, next: Next) -> Response {
    let activity = app.activity();
    let response = admit_or_refuse(app, request, next).await;
    activity.answered();
    response
}

/// Refuses a request without a token before any of it is read.
async fn admit_or_refuse(app: App, request: Request, next: Next) -> Response {
    let (access, path) = (&app.inner.access, request.uri().path());
    let caller = request.extensions().get::<Caller>().copied();
    let verdict = access.tls().verdict(path, caller);
    let let_in = verdict == Verdict::LetIn;
    if verdict == Verdict::NotPeer {
        return respond(Problem::refused(Code::Unauthorized, NOT_PEER));
    }
    if !let_in && !access.admits(path, request.headers()) {
        return respond(denied(request.headers().contains_key(header::AUTHORIZATION)));
    }
    if !let_in && !access.is_guarded() && access.tls().keeps_out(path, caller) {
        return respond(Problem::refused(Code::Unauthorized, NO_CERTIFICATE));
    }
    if !let_in
        && caller != Some(Caller::Peer)
        && !access.is_guarded()
        && !Access::is_open_path(path)
        && let Err(problem) = host::check(&app, &request)
    {
        return respond(problem);
    }
    if let Some(place) = Place::of(&request)
        && !(access.is_restricted() && Access::is_open_path(path))
    {
        place.let_in();
    }
    next.run(request).await
}

const NOT_PEER: &str = "this is between nodes: it takes a connection with a certificate of their authority (--peer-tls-ca)";

const NO_CERTIFICATE: &str = "this node lets nobody in without a certificate: give one of the clients' authority, --tls-cert FILE and --tls-key FILE, or HOLDFAST_TLS_CERT and HOLDFAST_TLS_KEY (curl: --cert FILE --key FILE)";

fn denied(tried: bool) -> Problem {
    let message = if tried {
        "the token is none that this node accepts: compare the file given as --token-file or HOLDFAST_TOKEN_FILE with the node's"
    } else {
        "this node lets nobody in without the cluster's token: name its file with --token-file FILE or HOLDFAST_TOKEN_FILE (curl: --header \"Authorization: Bearer $(head -n 1 FILE)\")"
    };
    Problem::refused(Code::Unauthorized, message)
}
