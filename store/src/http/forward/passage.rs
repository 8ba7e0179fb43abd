//! Passes a call from a follower to the leader.
//!
//! Each takes a connection of its own, from when it is opened until the answer was read: so
//! many are passed on at once, shared out among tenants. Those that last, such as waits, have
//! one half of the places, and the others do not wait for them.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, header};
use axum::response::{IntoResponse, Response};
use holdfast_api::routes::{
    ACK_HEADER, CLUSTER_HEADER, FORWARDED_HEADER, SEQUENCE_HEADER, SESSION_HEADER,
};
use holdfast_api::{Code, LeaderHint, Problem};
use http_body_util::{BodyExt, Full};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::arrival::SHORT_BYTES_MAX;
use super::{Class, FORWARD_TIME_EXTRA};
use crate::access::Access;
use crate::dial::{self, DialError};
use crate::http::problem::Failure;
use crate::node::tenant::Tenant;
use crate::node::tenant::room::{Part, Room};
use crate::principal::Principal;

/// Longest wait of a call for its place among those that are passed on.
const PLACE_TIME_MAX: Duration = Duration::from_secs(1);

/// What the leader needs of a request's head; the rest concerns this connection
/// alone.
const PASSED_ON: [HeaderName; 7] = [
    header::CONTENT_TYPE,
    header::ACCEPT,
    header::USER_AGENT,
    HeaderName::from_static(SESSION_HEADER),
    HeaderName::from_static(SEQUENCE_HEADER),
    HeaderName::from_static(ACK_HEADER),
    HeaderName::from_static(CLUSTER_HEADER),
];

/// What the client needs of an answer's head.
const PASSED_BACK: [HeaderName; 3] =
    [header::CONTENT_TYPE, header::RETRY_AFTER, header::CACHE_CONTROL];

/// Places of calls that are passed on.
pub(crate) struct Places {
    /// Of waits, watches and feeds, which last for minutes.
    lasting: Room,
    short: Room,
}

impl Places {
    /// So many, half of them for each kind of calls.
    pub(crate) fn new(places: usize) -> Places {
        let half = u32::try_from(places / 2).unwrap_or(u32::MAX);
        Places { lasting: Room::new(half), short: Room::new(half) }
    }

    fn of(&self, class: Class) -> &Room {
        match class {
            Class::Wait | Class::Watch => &self.lasting,
            Class::Local | Class::Read | Class::Change => &self.short,
        }
    }
}

/// A tenant's place for one more call.
pub(super) async fn place(
    places: &Places,
    class: Class,
    tenant: &Tenant,
    leader: &LeaderHint,
) -> Result<Part, Problem> {
    let places = places.of(class);
    tokio::time::timeout(PLACE_TIME_MAX, places.take(tenant, 1)).await.map_err(|_| {
        let message = format!(
            "this node has reached its limit of calls that it forwards; send it to the leader, node {}, or retry",
            leader.node
        );
        Problem { leader: Some(leader.clone()), ..Problem::overloaded(message) }
    })
}

/// Passes a call to the leader and its answer back.
pub(super) async fn pass(
    leader: &LeaderHint,
    class: Class,
    parts: &Parts,
    body: Bytes,
    access: &Access,
    place: Part,
) -> Result<Response, Failure> {
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut headers = chosen(&parts.headers, &PASSED_ON);
    // The right stays the caller's: this node's own would widen it.
    let caller = parts.extensions.get::<Principal>().ok_or_else(|| {
        Problem::refused(Code::Unauthorized, "this request was not authenticated")
    })?;
    headers.extend(access.headers_for(caller));
    headers.insert(FORWARDED_HEADER, HeaderValue::from_static("1"));
    let limit = class.time_max() + FORWARD_TIME_EXTRA;
    let passing = async {
        let answer = open(access, &leader.address, parts, path, headers, body, place).await?;
        match class {
            Class::Watch => Ok(answer),
            _ => settled(answer, &leader.address).await,
        }
    };
    let passed = tokio::time::timeout(limit, passing).await.unwrap_or_else(|_| {
        Err(DialError::Timeout { address: leader.address.clone(), after: limit })
    });
    passed.map_err(|error| unanswered(leader, class, &error).into())
}

/// A short answer, read to its end: if it breaks off, that is a problem. A long one is
/// passed back as it comes.
async fn settled(answer: Response, address: &str) -> Result<Response, DialError> {
    if answer.body().size_hint().exact().is_none_or(|bytes| bytes > SHORT_BYTES_MAX as u64) {
        return Ok(answer);
    }
    let (head, body) = answer.into_parts();
    let broken = |error: axum::Error| DialError::Broken {
        address: address.to_owned(),
        why: error.to_string(),
    };
    let body = body.collect().await.map_err(broken)?.to_bytes();
    Ok(Response::from_parts(head, Body::from(body)))
}

fn chosen(headers: &HeaderMap, names: &[HeaderName]) -> HeaderMap {
    let chosen = headers.iter().filter(|(name, _)| names.contains(name));
    chosen.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The leader did not answer; the stage that the call reached decides what that
/// means.
fn unanswered(leader: &LeaderHint, class: Class, error: &DialError) -> Problem {
    let message = format!("the call was passed to the leader, node {}: {error}", leader.node);
    let problem = match error {
        DialError::LookUp { .. } | DialError::Connect { .. } | DialError::Refused { .. } => {
            Problem::retryable(Code::Unavailable, message)
        }
        DialError::Broken { .. } => class.broken(Code::Unavailable, message),
        DialError::Timeout { .. } => class.broken(Code::Timeout, message),
    };
    Problem { leader: Some(leader.clone()), ..problem }
}

/// Opens a call whose answer lasts as long as it is read.
async fn open(
    access: &Access,
    address: &str,
    parts: &Parts,
    path: &str,
    headers: HeaderMap,
    body: Bytes,
    place: Part,
) -> Result<Response, DialError> {
    let broken = |why: String| DialError::Broken { address: address.to_owned(), why };
    let stream = dial::connect(access.tls(), address).await?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(error.to_string()))?;
    let mut request = Request::builder()
        .method(parts.method.clone())
        .uri(path)
        .header(header::HOST, address)
        .body(Full::new(body))
        .map_err(|error| broken(error.to_string()))?;
    request.headers_mut().extend(headers);
    let mut connection: Driver = Box::pin(async move {
        // The answer's body, or its absence, shows how it ended.
        drop(connection.await);
    });
    let mut answer = std::pin::pin!(sender.send_request(request));
    let mut is_over = false;
    let answer = tokio::select! {
        biased;
        answer = &mut answer => answer,
        () = &mut connection => {
            is_over = true;
            answer.await
        }
    };
    let (head, body) = answer.map_err(|error| broken(error.to_string()))?.into_parts();
    let body = Carried { connection: (!is_over).then_some(connection), body, _place: place };
    Ok((head.status, chosen(&head.headers, &PASSED_BACK), Body::new(body)).into_response())
}

type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An answer that moves its own connection: its reader drives both, and dropping
/// it closes the connection, which ends the call on the leader.
struct Carried {
    connection: Option<Driver>,
    body: Incoming,
    _place: Part,
}

impl HttpBody for Carried {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(connection) = &mut self.connection
            && connection.as_mut().poll(context).is_ready()
        {
            self.connection = None;
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use holdfast_api::Effectiveness;

    use super::*;

    fn leader() -> LeaderHint {
        LeaderHint { node: 2, address: "127.0.0.1:21002".to_owned() }
    }

    #[test]
    fn how_far_a_call_got_decides_whether_it_may_have_had_an_effect() {
        let address = leader().address;
        let refused = || DialError::Connect {
            address: address.clone(),
            why: io::ErrorKind::ConnectionRefused.into(),
        };
        let unknown =
            || DialError::LookUp { address: address.clone(), why: io::ErrorKind::TimedOut.into() };
        let broken = || DialError::Broken { address: address.clone(), why: "reset".to_owned() };
        let slow =
            || DialError::Timeout { address: address.clone(), after: Duration::from_secs(16) };
        let cases = [
            (Class::Change, refused(), Code::Unavailable, Effectiveness::None),
            (Class::Change, unknown(), Code::Unavailable, Effectiveness::None),
            (Class::Change, broken(), Code::Unavailable, Effectiveness::Unknown),
            (Class::Change, slow(), Code::Timeout, Effectiveness::Unknown),
            (Class::Read, broken(), Code::Unavailable, Effectiveness::None),
            (Class::Wait, slow(), Code::Timeout, Effectiveness::None),
        ];
        for (class, error, code, outcome) in cases {
            let problem = unanswered(&leader(), class, &error);
            assert_eq!((problem.code, problem.outcome), (code, outcome), "{class:?} {error}");
            assert!(problem.retryable, "{class:?} {error}");
            assert_eq!(problem.leader, Some(leader()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_are_passed_on_share_their_places_and_one_too_many_is_told_whom_to_ask() {
        let (places, leader) = (Places::new(8), leader());
        let [a, b] = ["a", "b"].map(|name| Tenant::Job(name.parse().unwrap()));
        let place = |class, tenant| place(&places, class, tenant, &leader);
        let held = [place(Class::Wait, &a).await.unwrap(), place(Class::Watch, &a).await.unwrap()];
        let refused = place(Class::Wait, &a).await.unwrap_err();
        assert_eq!((refused.code, refused.outcome), (Code::Overloaded, Effectiveness::None));
        assert_eq!((refused.retryable, refused.leader), (true, Some(leader.clone())));
        assert!(place(Class::Wait, &b).await.is_ok());
        for class in [Class::Change, Class::Read] {
            assert!(place(class, &a).await.is_ok(), "it waits for none that last");
        }
        drop(held);
        assert!(place(Class::Wait, &a).await.is_ok());
    }

    #[test]
    fn headers_of_the_connection_stay_behind() {
        let mut headers = HeaderMap::new();
        for name in [header::CONNECTION, header::CONTENT_LENGTH, header::HOST, header::EXPECT] {
            headers.insert(name, HeaderValue::from_static("1"));
        }
        headers.insert(SESSION_HEADER, HeaderValue::from_static("7"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let chosen = chosen(&headers, &PASSED_ON);
        assert_eq!(chosen.len(), 2);
        assert_eq!(chosen[SESSION_HEADER], "7");
    }
}
