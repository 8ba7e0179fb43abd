//! The client library of Holdfast.

mod actor;
mod backoff;
mod call;
mod calls;
mod client;
mod connection;
mod deadline;
mod endpoints;
mod error;
mod frame;
mod keys;
mod liveness;
mod navigator;
mod options;
mod replies;
mod session;
mod statistics;
mod tenancy;
mod watch;

pub use client::{
    Client, Consistency, OPEN_BYTES_MAX, OPEN_CALLS_MAX, OPEN_WAITS_MAX, OPEN_WATCHES_MAX,
    REQUEST_BYTES_MAX,
};
pub use deadline::Deadline;
pub use error::Error;
pub use keys::{Compared, Keys, Page, Popped, Transacted};
pub use options::{ENDPOINTS_MAX, EndpointError, Options, parse_endpoints};
pub use statistics::Statistics;
pub use watch::{WATCH_BATCHES_MAX, WATCH_BYTES_MAX, Watch};
