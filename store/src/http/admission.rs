//! The layer that says who a request is from, and refuses those of nobody who is let
//! in, or by a foreign name.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use holdfast_api::grant::Role;
use holdfast_api::{Code, Problem};
use holdfast_net::tls::Caller;
use http::{Method, header};

use super::App;
use super::accept::Place;
use super::host;
use super::problem::respond;
use crate::access::Access;
use crate::node::acting;
use crate::permit::{self, Extent, Operation, Route, Whose};
use crate::principal::{Principal, Proof, RemoteAddress};
use crate::tls::{Admittance, PEER_PATHS};

/// How often it is looked whether the token of an open request or stream still counts.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Answers a request, and counts the first answer of each connection.
pub(crate) async fn admit(State(app): State<App>, request: Request, next: Next) -> Response {
    let (activity, place) = (app.activity(), Place::of(&request));
    let response = admit_or_refuse(app, request, next).await;
    if let Some(age) = place.and_then(|place| place.age_at_first_answer()) {
        activity.answered_first(age);
    }
    response
}

/// Refuses a request of nobody who is let in, or who may not use its path, before any of
/// it is read.
async fn admit_or_refuse(app: App, mut request: Request, next: Next) -> Response {
    let principal = match principal_of(&app, &request) {
        Ok(principal) => principal,
        Err(problem) => return respond(problem),
    };
    let (access, path) = (&app.inner.access, request.uri().path());
    if let Some(place) = Place::of(&request)
        && !(access.is_restricted() && Access::is_open_path(path))
    {
        place.let_in();
    }
    if !Access::is_open_path(path)
        && let Err(problem) = may_use(&principal, request.method(), path)
    {
        return respond(problem);
    }
    request.extensions_mut().insert(principal.clone());
    tokio::select! {
        biased;
        response = next.run(request) => response,
        problem = app.ended(&principal) => respond(problem),
    }
}

/// Who a request is from. A signed token decides whenever one is sent: a node passes
/// calls on with its own certificate, and with the token of the caller.
fn principal_of(app: &App, request: &Request) -> Result<Principal, Problem> {
    let (access, path) = (&app.inner.access, request.uri().path());
    let headers = request.headers();
    let caller = request.extensions().get::<Caller>().copied();
    let from = request.extensions().get::<RemoteAddress>().map(|address| address.0);
    let admittance = access.tls().admittance(path, caller);
    if admittance == Admittance::NotPeer {
        return Err(Problem::refused(Code::Unauthorized, NOT_PEER));
    }
    let (is_open, is_peers) = (Access::is_open_path(path), path.starts_with(PEER_PATHS));
    let let_in = admittance == Admittance::LetIn;
    if !is_open
        && !is_peers
        && let Some(token) = Access::signed_token(headers)
        && (access.takes_signed_tokens() || access.is_restricted() || let_in)
    {
        let principal = access.verify(token)?.at(from);
        app.is_current(&principal)?;
        return Ok(principal);
    }
    if !let_in && !access.admits(path, headers) {
        return Err(denied(headers.contains_key(header::AUTHORIZATION)));
    }
    if !let_in && !access.is_guarded() && access.tls().keeps_out(path, caller) {
        return Err(Problem::refused(Code::Unauthorized, NO_CERTIFICATE));
    }
    if !let_in && caller != Some(Caller::Peer) && !access.is_guarded() && !is_open {
        host::check(app, request)?;
    }
    let principal = match caller {
        _ if is_open => Principal::stranger(),
        _ if is_peers => Principal::peer(),
        Some(Caller::Peer) => Principal::admin(Proof::Node),
        Some(Caller::Certified) => Principal::admin(Proof::Certificate),
        Some(Caller::Unknown) | None if access.is_guarded() => Principal::admin(Proof::SharedToken),
        Some(Caller::Unknown) | None => Principal::admin(Proof::Nothing),
    };
    Ok(principal.at(from))
}

/// Whether a role may use a path at all.
fn may_use(principal: &Principal, method: &Method, path: &str) -> Result<(), Problem> {
    let operation = match permit::of_route(method, path) {
        Some(Route::Body) => return Ok(()),
        Some(Route::Operation(operation)) => operation,
        None if principal.role() == Role::Admin => return Ok(()),
        None => {
            let message = format!("{principal}: this does not allow to use {path}");
            return Err(Problem::refused(Code::Forbidden, message));
        }
    };
    if operation.right().of(principal.role()) == Extent::None {
        return Err(acting::forbidden(principal, operation, &Whose::All));
    }
    if operation == Operation::Backup {
        acting::audit(principal, operation, &path);
    }
    Ok(())
}

impl App {
    /// Whether the signed token of a caller still counts, as far as this node knows.
    fn is_current(&self, principal: &Principal) -> Result<(), Problem> {
        let Some(token) = principal.token() else { return Ok(()) };
        self.inner.access.is_current(token)?;
        match self.node() {
            Ok(node) if node.machine().is_revoked(&token.id) => {
                let message = format!(
                    "the token {} ({}) was revoked: ask its issuer for another",
                    token.id, token.name
                );
                Err(Problem::refused(Code::Unauthorized, message))
            }
            _ => Ok(()),
        }
    }

    /// Returns once a caller's signed token does not count any more, with the reason.
    pub(super) async fn ended(&self, principal: &Principal) -> Problem {
        if principal.token().is_none() {
            return std::future::pending().await;
        }
        loop {
            if let Err(problem) = self.is_current(principal) {
                tracing::info!(target: "audit", by = %principal, why = %problem, "a token ended");
                return problem;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

const NOT_PEER: &str = "this is between nodes: it takes a connection with a certificate of their authority (--peer-tls-ca)";

const NO_CERTIFICATE: &str = "this node requires a certificate: give one of the clients' authority, --tls-cert FILE and --tls-key FILE, or HOLDFAST_TLS_CERT and HOLDFAST_TLS_KEY (curl: --cert FILE --key FILE)";

fn denied(tried: bool) -> Problem {
    let message = if tried {
        "this node does not accept the token: compare the file given as --token-file or HOLDFAST_TOKEN_FILE with the node's"
    } else {
        "this node requires the cluster's token: name its file with --token-file FILE or HOLDFAST_TOKEN_FILE (curl: --header \"Authorization: Bearer $(head -n 1 FILE)\")"
    };
    Problem::refused(Code::Unauthorized, message)
}
