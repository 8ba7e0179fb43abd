//! What a handler takes from a request; what cannot be read is a problem.

use std::str::FromStr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use holdfast_api::routes::{ACK_HEADER, SEQUENCE_HEADER, SESSION_HEADER};
use holdfast_api::{Code, Problem, SecretId, SecretIdError, SessionRef};
use serde::de::DeserializeOwned;

use super::Failure;
use crate::node::at_length;
use crate::node::tenant::room::Part;
use crate::principal::Principal;

/// Longest body of a request, in bytes. A command of 16 MiB fits if it is
/// text; bytes that have to be escaped take up to four times their room here
/// and travel better over the stream.
pub(crate) const BODY_BYTES_MAX: usize = 24 * 1024 * 1024;

/// What a request holds until its body was decoded.
#[derive(Clone)]
pub(crate) struct Decoding(Arc<Held>);

struct Held {
    /// For a long body.
    turn: Option<Part>,
    _room: Option<Part>,
}

impl Decoding {
    /// It holds this turn, if the body is long, and this room.
    pub(crate) fn new(turn: Option<Part>, room: Option<Part>) -> Decoding {
        Decoding(Arc::new(Held { turn, _room: room }))
    }

    fn is_long(&self) -> bool {
        self.0.turn.is_some()
    }
}

/// A JSON body. [`crate::http::strict`] has checked it against the description
/// before.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(mut request: Request, state: &S) -> Result<Self, Failure> {
        let decoding = request.extensions_mut().remove::<Decoding>();
        let bytes = Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => too_large(),
            status => Failure::invalid(status, rejection.body_text()),
        })?;
        let decode = || serde_json::from_slice(&bytes);
        let is_long = decoding.as_ref().is_some_and(Decoding::is_long);
        let decoded = if is_long { at_length(decode) } else { decode() };
        decoded.map(Body).map_err(|error: serde_json::Error| {
            Failure::invalid(StatusCode::BAD_REQUEST, format!("the body: {error}"))
        })
    }
}

/// The body is too long.
pub(crate) fn too_large() -> Failure {
    Failure::invalid(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!("the body is longer than {BODY_BYTES_MAX} bytes; send fewer keys at a time"),
    )
}

pub(crate) struct Params<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        Query::try_from_uri(&parts.uri).map(|Query(params)| Params(params)).map_err(bad_query)
    }
}

/// The query parameters cannot be read.
pub(crate) fn bad_query(rejection: QueryRejection) -> Failure {
    Failure::invalid(StatusCode::BAD_REQUEST, rejection.body_text())
}

/// The place of a change in its client's session, from the headers: what makes
/// it retryable.
pub(crate) struct InSession(pub(crate) Option<SessionRef>);

impl<S: Send + Sync> FromRequestParts<S> for InSession {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        session_ref(&parts.headers)
            .map(InSession)
            .map_err(|why| Failure::invalid(StatusCode::BAD_REQUEST, why))
    }
}

/// The session headers, for the description of the API.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only its derive reads it")]
pub(crate) struct SessionHeaders {
    /// The session (`/v1/session/open`): with it and a sequence, a change that
    /// is sent again has one effect and gets the same answer.
    #[param(rename = "holdfast-session", required = false, example = 7)]
    session: SecretId,
    /// The change's own number in the session, from 1; keep it when you retry.
    #[param(rename = "holdfast-sequence", required = false, example = 1)]
    sequence: u64,
    /// The lowest sequence whose answer is still wanted; left out, this
    /// change's own, which suits a client that does one thing at a time.
    #[param(rename = "holdfast-ack", required = false, example = 1)]
    ack: u64,
}

/// Reads the session headers: all absent, or a session and a sequence.
fn session_ref(headers: &HeaderMap) -> Result<Option<SessionRef>, String> {
    let session = parsed(headers, SESSION_HEADER, "an id as it was answered")?
        .map(|Quotable(session)| session);
    let sequence = number(headers, SEQUENCE_HEADER)?;
    let ack = number(headers, ACK_HEADER)?;
    let (id, sequence) = match (session, sequence, ack) {
        (None, None, None) => return Ok(None),
        (Some(session), Some(sequence), _) => (session, sequence),
        _ => return Err(format!("`{SESSION_HEADER}` and `{SEQUENCE_HEADER}` go together")),
    };
    let ack = ack.unwrap_or(sequence);
    if sequence == 0 || ack > sequence {
        return Err(format!(
            "`{SEQUENCE_HEADER}` starts at 1 and `{ACK_HEADER}` is at most the sequence, not {ack} with {sequence}"
        ));
    }
    Ok(Some(SessionRef { id, sequence, ack }))
}

fn number(headers: &HeaderMap, name: &str) -> Result<Option<u64>, String> {
    parsed(headers, name, "one whole number")
}

/// An id, which may be quoted as in JSON.
pub(crate) struct Quotable(pub(crate) SecretId);

impl FromStr for Quotable {
    type Err = SecretIdError;

    fn from_str(text: &str) -> Result<Self, SecretIdError> {
        let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        bare.unwrap_or(text).parse().map(Quotable)
    }
}

fn parsed<T: FromStr>(headers: &HeaderMap, name: &str, what: &str) -> Result<Option<T>, String> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let parsed = value.to_str().ok().and_then(|text| text.parse().ok());
    match parsed.filter(|_| values.next().is_none()) {
        Some(parsed) => Ok(Some(parsed)),
        None => Err(format!("the header `{name}` must be {what}")),
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Principal {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        // Set by `http::admission` for every request that it lets in.
        let unknown =
            || Problem::refused(Code::Unauthorized, "this request was not authenticated").into();
        parts.extensions.get::<Principal>().cloned().ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    type Header = (&'static str, &'static str);

    fn headers(pairs: &[Header]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn session_headers_are_all_there_or_none() {
        let cases: [(&[Header], Option<SessionRef>); 3] = [
            (&[], None),
            (
                &[(SESSION_HEADER, "7"), (SEQUENCE_HEADER, "3"), (ACK_HEADER, "2")],
                Some(SessionRef { id: 7.into(), sequence: 3, ack: 2 }),
            ),
            (
                &[(SESSION_HEADER, "7"), (SEQUENCE_HEADER, "3")],
                Some(SessionRef { id: 7.into(), sequence: 3, ack: 3 }),
            ),
        ];
        for (given, expected) in cases {
            assert_eq!(session_ref(&headers(given)).unwrap(), expected, "{given:?}");
        }
    }

    #[test]
    fn malformed_session_headers_are_refused() {
        let cases: [&[Header]; 8] = [
            &[(SESSION_HEADER, "7")],
            &[(SEQUENCE_HEADER, "1")],
            &[(ACK_HEADER, "1")],
            &[(SESSION_HEADER, "x"), (SEQUENCE_HEADER, "1")],
            &[(SESSION_HEADER, "7"), (SEQUENCE_HEADER, "-1")],
            &[(SESSION_HEADER, "7"), (SEQUENCE_HEADER, "0")],
            &[(SESSION_HEADER, "7"), (SEQUENCE_HEADER, "1"), (ACK_HEADER, "2")],
            &[(SESSION_HEADER, "7"), (SESSION_HEADER, "8"), (SEQUENCE_HEADER, "1")],
        ];
        for given in cases {
            assert!(session_ref(&headers(given)).is_err(), "{given:?}");
        }
    }
}
