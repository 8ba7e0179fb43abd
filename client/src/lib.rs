//! The client library of Holdfast: exactly-once commands, reads, waits and
//! watches. It finds the leader and follows it.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use holdfast_client::{Client, Deadline, Options, parse_endpoints};
//! use holdfast_api::Scope;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! // One node is enough: the others are learned from it.
//! let client = Client::new(Options::new(parse_endpoints("127.0.0.1:21001")?));
//! let keys = client.keys(Scope::default());
//! let deadline = Deadline::after(Duration::from_secs(10));
//!
//! keys.put("epoch", "3", deadline).await?;
//! // Applied once, though its answer may have to come through a second leader.
//! let step = keys.add("step", 1, deadline).await?;
//! // Released when another client sets the key, also after a failover.
//! keys.wait(vec!["ready".into()], Deadline::never()).await?;
//! # let _ = step;
//! client.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! Entry points: [`Client`] (a cheap handle; all clones share one connection
//! and one session), [`Keys`] (typed verbs over one scope), [`Watch`],
//! [`Options`], and [`Error`], whose [`outcome`](Error::outcome) says whether
//! a failed call had an effect.
//!
//! # What is promised
//!
//! * **Commands** ([`Client::propose`] and the writing verbs of [`Keys`]) have
//!   a place in the client's session. After a lost connection or a change of
//!   leader all that are open are sent again, in order but for large ones, which
//!   follow, each in its place; the cluster's session table answers those that it
//!   has seen. A call that ends without its answer is not sent again (unless it had
//!   gone out together with others that are), and says that its outcome is unknown.
//!   If the session expires, commands on leases, processes and rounds that identify themselves
//!   (by a nonce, an incarnation or a call number) are sent again in the next
//!   session; the cluster applies each once. Commands that were not sent yet are
//!   sent in the next session, too, unless they are bound to a session that ended
//!   with processes of this host. All others fail with `session_expired`; their
//!   outcome is unknown.
//!   Commands that are open at the same time have no order among each other: a
//!   small one may pass one that takes long. Await the first where it matters.
//!   Small commands on keys that come while two are under way go out together, as
//!   one [`Command::Pipeline`](holdfast_api::Command::Pipeline): the cost of a
//!   command between client and disk is then paid once. Each still has a revision
//!   and an outcome of its own.
//! * **Reads** are linearizable unless asked otherwise. After a lost connection they are
//!   sent again. Identical reads share one request, sent after the last caller asked. At
//!   most one request per read is in flight, and one is queued. All users of a client share
//!   reads, including an agent's TCPStore connections. [`Client::read_together`] waits for
//!   other callers first. Small reads that arrive while others are in flight are sent
//!   together once those are answered, or after 5 ms.
//! * **Waits** are re-attached to the next leader with the revision at which
//!   they were first registered, so that nothing between is missed.
//! * **Watches** deliver every change once and in order, or end with
//!   [`Compacted`](holdfast_api::Code::Compacted). **Feeds** deliver what is
//!   decided for a lease, once and in order, until it has ended.
//! * Every call ends at its deadline at the latest, and reports the outcome as far as it is known.
//!
//! # Map of the modules
//!
//! | module | holds |
//! | --- | --- |
//! | `client`, `keys`, `watch`, `feed` | what a program calls |
//! | `mailbox` | what waits for the consumer of a watch or a feed |
//! | `options`, `deadline`, `error`, `statistics` | what goes in and comes out |
//! | `actor` | the one task: connects the pure parts with sockets and time |
//! | `questions` | pure: what the client itself asks its node |
//! | `calls`, `call`, `replies` | pure: the table of open calls, and what replies mean for them |
//! | `calls::queues`, `calls::enqueue` | pure: where a call waits to be sent |
//! | `calls::frames` | pure: what goes into the next frame |
//! | `calls::pipeline` | pure: small commands are sent together |
//! | `calls::reads` | pure: small reads are sent together |
//! | `flights` | pure: identical reads share one answer |
//! | `resume` | a session that another process goes on with |
//! | `session`, `session_keeper` | pure: sequences and acknowledgements; opening, keeping, closing |
//! | `leader_tracker`, `endpoints`, `backoff` | pure: which node to talk to, and when |
//! | `lookout` | pure: a second connection, to a node that reports who leads |
//! | `token_file` | the rim: the shared token, read for each connection |
//! | `liveness` | pure: a silent connection or a dead one |
//! | `fetch` | one question by plain HTTP, beside the stream |
//! | `outage` | the store does not answer: since when, why, and when it does again |
//! | `connection` | the rim: TCP, the HTTP upgrade, a reader and a writer task |
//!
//! # Architecture invariants
//!
//! * All decisions are made in synchronous functions of values, with time and
//!   randomness handed in; only `actor` and `connection` know sockets, tasks
//!   and clocks.
//! * A sequence is used for one command. The acknowledgement never passes a
//!   command whose answer is still wanted.
//! * A command counts as sent from the moment it is handed to the writer. A
//!   command that was never handed over had no effect; the outcome of any other
//!   that ends without an answer is unknown.
//! * Everything has a bound with a name: open calls and their bytes
//!   ([`OPEN_CALLS_MAX`], [`OPEN_BYTES_MAX`], [`LARGE_COMMAND_BYTES_MIN`]),
//!   waits ([`OPEN_WAITS_MAX`]), watches ([`OPEN_WATCHES_MAX`]), what waits in
//!   each watch, feed and subscription
//!   ([`PARCELS_MAX`], [`PARCEL_BYTES_MAX`]), the commands on the wire
//!   (the session's window), requests ([`REQUEST_BYTES_MAX`]) and frames.
//! * Deliberately absent: a cache, a background refresh of the node list, a
//!   connection pool, and any retry under a new session of a command that the
//!   session alone tells apart: that is an error, never a second application.
//!
//! # Boundaries
//!
//! Depends on two crates of Holdfast: the vocabulary (`holdfast-api`) and the byte
//! streams (`holdfast-net`). It knows neither the state machine nor the store, and
//! nothing of a command line.
//!
//! # Modules that know each other
//!
//! * `actor`, `call`, `calls`, `client`, `events`, `feed`, `flights`, `keys`, `replies`,
//!   `resume`, `watch`: a `Client` makes `Keys`, watches, feeds and events, and each of
//!   them holds the client. The client hands its calls to the actor. Its table of calls
//!   (`call`, `calls`, `flights`, `replies`) names what readers get, and the calls that
//!   `resume` takes over from another process.

mod actor;
mod backoff;
mod call;
mod calls;
mod client;
mod connection;
mod credentials;
mod deadline;
mod endpoints;
mod error;
mod events;
mod feed;
mod fetch;
mod flights;
mod keys;
mod leader_tracker;
mod liveness;
mod lookout;
mod mailbox;
mod options;
mod outage;
mod questions;
mod replies;
mod resume;
mod session;
mod session_keeper;
mod statistics;
mod token_file;
mod watch;

pub use client::{
    Client, Consistency, LARGE_COMMAND_BYTES_MIN, OPEN_BYTES_MAX, OPEN_CALLS_MAX, OPEN_WAITS_MAX,
    OPEN_WATCHES_MAX, REQUEST_BYTES_MAX,
};
pub use credentials::{Credentials, Tls, TlsFiles, TlsFilesError};
pub use deadline::Deadline;
pub use error::Error;
pub use events::{Events, EventsPage};
pub use feed::FeedReader;
pub use fetch::{FETCH_BYTES_MAX, FetchError, Fetched, download, fetch};
pub use holdfast_net::regular_file::{open_regular, read_regular, read_regular_text};
pub use keys::{Compared, Keys, Page, Popped, Transacted};
pub use mailbox::{PARCEL_BYTES_MAX, PARCELS_MAX};
pub use options::{ENDPOINTS_MAX, EndpointError, Options, parse_endpoints};
pub use outage::{Outage, OutageCause, Outages};
pub use resume::{InFlight, Ledger, Mark, Resumed, Settled, Unclaimed};
pub use statistics::Statistics;
pub use token_file::{TokenFileError, check_token_file};
pub use watch::Watch;
