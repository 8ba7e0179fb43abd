//! Signed tokens as JSON: which keys a node takes, and which tokens were revoked.

use axum::extract::State;
use holdfast_api::{ClusterCommand, Command, Name, NodeId, Outcome};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::answer::Json;
use super::cluster::Answered;
use super::kv::change::WrittenAnswer;
use super::kv::{Mark, commit};
use super::problem::extract::{Body, InSession, SessionHeaders};
use super::problem::{ChangeProblems, ReadProblems};
use crate::principal::Principal;

/// A signed token that does not count any more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct RevokedToken {
    /// Id of the token.
    pub token: Name,
    /// Log time until which this is kept, in milliseconds.
    until_ms: u64,
}

/// What a node knows about signed tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct TokensAnswer {
    /// The node that answers.
    pub node: NodeId,
    /// The keys whose tokens it takes.
    pub keys: Vec<Name>,
    /// Revoked tokens, as far as it has applied the log.
    pub(crate) revoked: Vec<RevokedToken>,
}

/// The keys that the answering node takes, and the tokens that were revoked.
#[utoipa::path(
    get, path = "/v1/tokens", operation_id = "tokens", tag = "cluster",
    responses((status = 200, description = "Keys and revoked tokens", body = TokensAnswer), ReadProblems)
)]
pub(crate) async fn tokens(State(app): State<App>) -> Answered<TokensAnswer> {
    let node = app.node()?;
    let machine = node.machine();
    let revoked = machine.revoked_tokens();
    let revoked = revoked.map(|(token, until_ms)| RevokedToken { token: token.clone(), until_ms });
    let (revoked, keys) = (revoked.collect(), app.inner.access.key_ids());
    Ok(Json(TokensAnswer { node: node.id(), keys, revoked }))
}

/// A token to revoke.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct RevokeTokenRequest {
    /// Id of the token to revoke.
    pub token: Name,
    /// Log time for which this is kept, in milliseconds: until the token has expired.
    pub(crate) keep_ms: u64,
}

/// Revokes a signed token: it does not count any more.
#[utoipa::path(
    post, path = "/v1/token/revoke", operation_id = "token_revoke", tag = "cluster",
    params(SessionHeaders),
    request_body(content = RevokeTokenRequest, example = json!({"token": "t0123456789abcdef", "keep_ms": 2592000000u64})),
    responses((status = 200, description = "It is revoked", body = WrittenAnswer), ChangeProblems)
)]
pub(crate) async fn revoke(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(RevokeTokenRequest { token, keep_ms }): Body<RevokeTokenRequest>,
) -> Answered<WrittenAnswer> {
    let command = Command::Cluster(ClusterCommand::RevokeToken { token, keep_ms });
    let fitting = |outcome: &Outcome, mark: Mark| {
        matches!(outcome, Outcome::Cluster(_)).then_some(WrittenAnswer { mark })
    };
    commit(&app, &caller, session, command, fitting).await
}
