//! Paths and headers of a node's one port.

/// Agents and clients: the multiplexed stream (HTTP/1.1 `Upgrade`).
pub const STREAM: &str = "/v1/stream";
/// The [`Status`](crate::Status) document: nodes, leader, limits and majority, from any node.
pub const STATUS: &str = "/v1/status";
/// Which voters answer, as the node knows it without asking.
pub const MAJORITY: &str = "/v1/majority";
/// The agents that are connected to the cluster, and their waits.
pub const AGENTS: &str = "/v1/agents";
/// Alive: the process serves; never tied to the quorum.
pub const LIVEZ: &str = "/livez";
/// Ready: a leader is known, a linearizable read works, the log is applied.
pub const READYZ: &str = "/readyz";
/// Metrics as OpenMetrics text.
pub const METRICS: &str = "/metrics";
/// Those that need no token: probes and metrics scrapers have none, and metrics hold sizes
/// and counts, no stored data.
pub const OPEN: [&str; 3] = [LIVEZ, READYZ, METRICS];
/// The OpenAPI document of this node.
pub const OPENAPI: &str = "/openapi.json";

/// Request header: the session of a command sent by plain HTTP.
pub const SESSION_HEADER: &str = "holdfast-session";
/// Request header: its sequence.
pub const SEQUENCE_HEADER: &str = "holdfast-sequence";
/// Request header: the client's acknowledgement.
pub const ACK_HEADER: &str = "holdfast-ack";
/// Request header: the cluster that the sender belongs to or means.
pub const CLUSTER_HEADER: &str = "holdfast-cluster";
/// Marks a request that a follower passed on, so that it is passed on once.
pub const FORWARDED_HEADER: &str = "holdfast-forwarded";
/// Request header of a stream: `1` asks a follower to pass the whole stream on to
/// the leader, for a client that reaches the follower alone.
pub const THROUGH_HEADER: &str = "holdfast-through";
/// Request header: `1` asks a follower to refuse with the leader's address
/// instead of passing the request on.
pub const NO_FORWARD_HEADER: &str = "holdfast-no-forward";
