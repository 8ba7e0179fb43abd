//! Who a request is from: what it showed, and the role that this gives it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use holdfast_api::grant::{Grant, Role};
use holdfast_api::{JobPattern, Name};
use http::HeaderValue;

/// The peer's address, beside each request of its connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RemoteAddress(pub(crate) SocketAddr);

/// Who a request is from. Cheap to clone; goes with a request or a connection.
#[derive(Debug, Clone)]
pub(crate) struct Principal {
    proof: Proof,
    role: Role,
    jobs: Arc<[JobPattern]>,
    from: Option<SocketAddr>,
}

/// What a caller showed.
#[derive(Debug, Clone)]
pub(crate) enum Proof {
    /// Nothing: nobody asked for any.
    Nothing,
    /// The token that nodes, agents and the CLI share.
    SharedToken,
    Certificate,
    /// A node's certificate. What is not between nodes it passes on for a caller that it
    /// let in without a signed token.
    Node,
    Token(Arc<HeldToken>),
}

/// A signed token that was valid when it was shown.
#[derive(Debug)]
pub(crate) struct HeldToken {
    /// Its id, by which it is revoked.
    pub id: Name,
    /// Whose it is, for people.
    pub name: Name,
    /// The key that signed it.
    pub key: Name,
    /// When it expires, in milliseconds since 1970, UTC.
    pub(crate) expires_at_ms: u64,
    /// The header that it came in.
    pub(crate) authorization: HeaderValue,
}

impl Principal {
    /// An admin: it may do everything but what is between nodes.
    pub(crate) fn admin(proof: Proof) -> Principal {
        Principal { proof, role: Role::Admin, jobs: Arc::default(), from: None }
    }

    /// Another node, about what is between nodes.
    pub(crate) fn peer() -> Principal {
        Principal { proof: Proof::Node, role: Role::Peer, jobs: Arc::default(), from: None }
    }

    /// Anybody, about what is open to everybody: it may do nothing else.
    pub(crate) fn stranger() -> Principal {
        Principal { proof: Proof::Nothing, role: Role::Job, jobs: Arc::default(), from: None }
    }

    /// The holder of a signed token.
    pub(crate) fn of_token(token: HeldToken, Grant { role, jobs }: Grant) -> Principal {
        Principal { proof: Proof::Token(Arc::new(token)), role, jobs: jobs.into(), from: None }
    }

    /// The same, from this address.
    pub(crate) fn at(self, from: Option<SocketAddr>) -> Principal {
        Principal { from, ..self }
    }

    /// What it is to the cluster.
    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// Whether a job is among those that its role is about.
    pub(crate) fn has_job(&self, job: &Name) -> bool {
        self.jobs.iter().any(|pattern| pattern.matches(job))
    }

    /// Its address, if it has one.
    pub(crate) fn from(&self) -> Option<SocketAddr> {
        self.from
    }

    /// Its signed token, if it showed one.
    pub(crate) fn token(&self) -> Option<&Arc<HeldToken>> {
        match &self.proof {
            Proof::Token(token) => Some(token),
            Proof::Nothing | Proof::SharedToken | Proof::Certificate | Proof::Node => None,
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.proof {
            Proof::Nothing => f.write_str("a caller without a token")?,
            Proof::SharedToken => f.write_str("the shared token")?,
            Proof::Certificate => f.write_str("a client's certificate")?,
            Proof::Node => f.write_str("a node's certificate")?,
            Proof::Token(token) => write!(f, "token {} ({})", token.id, token.name)?,
        }
        write!(f, ", role {}", self.role)?;
        let patterns: Vec<&str> = self.jobs.iter().map(JobPattern::as_str).collect();
        if patterns.is_empty() { Ok(()) } else { write!(f, " for {}", patterns.join(", ")) }
    }
}
