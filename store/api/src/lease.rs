//! Leases: how long an agent's processes count as alive without a renewal.

use crate::secret_id::SecretId;

/// A lease, assigned by the state machine, never reused.
pub type LeaseId = SecretId;
