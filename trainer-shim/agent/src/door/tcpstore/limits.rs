//! Every bound of the TCPStore door.

use std::time::Duration;

use serde::{Deserialize, Serialize};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// The bounds of the TCPStore door. Sizes are in bytes. The first three are
/// those of PyTorch's own server; exceeding any bound closes the one
/// connection that did, with the bound's name in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Longest key, its leading `/` included.
    pub key_bytes_max: usize,
    /// Longest value in one message.
    pub value_bytes_max: usize,
    /// Most keys in one CHECK, WAIT, MULTI_GET or MULTI_SET.
    pub keys_per_message_max: usize,
    /// Longest message: all keys and values of a MULTI_SET or WAIT together.
    /// Below what one frame to the store can carry.
    pub message_bytes_max: usize,
    /// Longest answer (MULTI_GET, LIST_KEYS).
    pub answer_bytes_max: usize,
    /// Most bytes of keys and values in one command to the store: SETs are
    /// joined up to it and a MULTI_SET is cut into commands of this size, so
    /// that no client keeps a leader from its other duties. A single pair
    /// always fits.
    pub command_bytes_max: usize,
    /// Most keys in such a command.
    pub command_keys_max: usize,
    /// Complete messages of one connection that wait for their turn; reading
    /// pauses beyond it, or beyond four times as much while other connections
    /// wait to see what its client wrote. Where the store does not answer, and
    /// less than a quarter of `budget_bytes_max` is used, it pauses beyond twice
    /// `message_bytes_max`: a CANCEL_WAIT may come.
    pub queued_bytes_max: usize,
    /// Answers that a client has not read yet; no further operation of that
    /// connection that has an answer starts beyond it.
    pub unread_bytes_max: usize,
    /// How long a client may leave its answers unread without any progress.
    #[serde(with = "text_duration")]
    pub unread_time_max: Duration,
    /// Bytes of keys in all WAITs that are open, as they are sent: the store's
    /// client keeps them to be able to move them to the next leader. A process may hold
    /// as much as it leaves free. Half of it has room for the longest WAIT.
    pub wait_budget_bytes_max: usize,
    /// Open connections; one more is closed at once. Lowered by
    /// [`Agent::open`](crate::agent::Agent::open) where the process has too few descriptors.
    pub connections_max: usize,
    /// Bytes held for all connections together. A process may hold as much as it leaves
    /// free: a connection of it that needs more, and more than `budget_free_bytes`, is closed.
    pub budget_bytes_max: usize,
    /// Bytes that every connection may hold whatever others hold.
    pub budget_free_bytes: usize,
    /// When the agent stops: how long messages that have arrived completely
    /// may still take to be committed.
    #[serde(with = "text_duration")]
    pub drain_time_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            key_bytes_max: 8 * KIB,
            value_bytes_max: 8 * MIB,
            keys_per_message_max: 131_072,
            message_bytes_max: 32 * MIB,
            answer_bytes_max: 64 * MIB,
            command_bytes_max: MIB,
            command_keys_max: 4_096,
            queued_bytes_max: 4 * MIB,
            unread_bytes_max: 64 * KIB,
            unread_time_max: Duration::from_secs(300),
            wait_budget_bytes_max: 104 * MIB,
            connections_max: 16_384,
            budget_bytes_max: 1024 * MIB,
            budget_free_bytes: 64 * KIB,
            drain_time_max: Duration::from_secs(5),
        }
    }
}

/// The longest message that still fits into a frame to the store.
pub const MESSAGE_BYTES_CEILING: usize = 48 * MIB;

/// A set of limits that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("limits.{name} is {value}: it must be {rule}")]
pub struct LimitsError {
    name: &'static str,
    value: usize,
    rule: &'static str,
}

impl Limits {
    /// Whether a door can work within these limits.
    pub fn check(&self) -> Result<(), LimitsError> {
        let error = |name, value, rule| Err(LimitsError { name, value, rule });
        for (name, value) in [
            ("key_bytes_max", self.key_bytes_max),
            ("value_bytes_max", self.value_bytes_max),
            ("keys_per_message_max", self.keys_per_message_max),
            ("message_bytes_max", self.message_bytes_max),
            ("answer_bytes_max", self.answer_bytes_max),
            ("command_bytes_max", self.command_bytes_max),
            ("command_keys_max", self.command_keys_max),
            ("queued_bytes_max", self.queued_bytes_max),
            ("unread_bytes_max", self.unread_bytes_max),
            ("wait_budget_bytes_max", self.wait_budget_bytes_max),
            ("connections_max", self.connections_max),
            ("budget_bytes_max", self.budget_bytes_max),
            ("budget_free_bytes", self.budget_free_bytes),
        ] {
            if value == 0 {
                return error(name, value, "more than 0");
            }
        }
        if self.message_bytes_max > MESSAGE_BYTES_CEILING {
            return error("message_bytes_max", self.message_bytes_max, "at most 50331648 (48 MiB)");
        }
        Ok(())
    }
}

/// Durations in files read as `300s` or `5min`.
mod text_duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*value))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        humantime::parse_duration(&text)
            .map_err(|error| D::Error::custom(format!("{text:?} is no duration: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::name::NAME_BYTES_MAX;

    use super::*;
    use crate::door::budget::Budget;

    #[test]
    fn the_defaults_work_and_limits_that_cannot_are_named() {
        assert_eq!(Limits::default().check(), Ok(()));
        let none = Limits { queued_bytes_max: 0, ..Limits::default() };
        assert!(none.check().unwrap_err().to_string().contains("limits.queued_bytes_max"));
        let huge = Limits { message_bytes_max: MESSAGE_BYTES_CEILING + 1, ..Limits::default() };
        assert!(huge.check().unwrap_err().to_string().contains("limits.message_bytes_max"));
    }

    #[test]
    fn one_process_may_wait_for_as_many_keys_as_a_message_holds() {
        // A key has more beside it on its way to the store than in the message, and the prefix
        // of its namespace.
        const BESIDE_KEY: usize = 13 + "@#4294967295:".len() + NAME_BYTES_MAX;
        let limits = Limits::default();
        let longest = limits.message_bytes_max + limits.keys_per_message_max * BESIDE_KEY;
        let budget = Budget::new("wait_budget_bytes_max", limits.wait_budget_bytes_max, 0);
        budget.account(Some(1)).set(longest).unwrap();
    }

    #[test]
    fn a_file_names_only_the_limits_it_changes() {
        let limits: Limits =
            toml::from_str("connections_max = 10\nunread_time_max = \"2min\"").unwrap();
        let expected = Limits {
            connections_max: 10,
            unread_time_max: Duration::from_secs(120),
            ..Limits::default()
        };
        assert_eq!(limits, expected);
        let error = toml::from_str::<Limits>("connection_max = 10").unwrap_err().to_string();
        assert!(error.contains("connection_max") && error.contains("connections_max"), "{error}");
    }
}
