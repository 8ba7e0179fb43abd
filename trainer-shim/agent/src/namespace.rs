//! Namespaces: disjoint key spaces within one run.
//!
//! Every port that an agent listens on serves one, and so does every attempt
//! of a launcher that restarts its ranks in place. All lie in the run's keys:
//!
//! | keys of | stand under |
//! | --- | --- |
//! | the run's first port, attempt 0 | themselves; a first `@` becomes `@:@` |
//! | anything else | `@NAME#ATTEMPT:` and the key; the first port's name is empty |
//!
//! The name of a further port is its number, so that agents on other hosts
//! serve the same namespace at the same port. The store that a program opens for
//! itself (`stores`) is a namespace, too: its owner comes through a port
//! of its own, and so does each attempt of ranks whose launcher opened it.

use holdfast_api::{Blob, Name};
use serde::{Deserialize, Serialize};

const MARK: u8 = b'@';
/// Prefix of a key of the first port that begins with [`MARK`].
const ESCAPE: &[u8] = b"@:";

/// A key space of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Namespace {
    name: Option<Name>,
    attempt: u32,
    side: Side,
}

/// Clients that come through a port of the namespace. The keys are the same for all.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub(crate) enum Side {
    /// Ranks of any attempt.
    #[default]
    Ranks,
    /// The program that opened the store: it is open for as long as that is
    /// connected.
    Owner,
    /// The other programs that use it.
    Others,
}

impl Namespace {
    /// Namespace of the run's first port.
    pub fn first() -> Namespace {
        Namespace::default()
    }

    /// Namespace with a name of its own.
    pub fn named(name: Name) -> Namespace {
        Namespace { name: Some(name), ..Namespace::default() }
    }

    /// Namespace of a port other than the first.
    pub(crate) fn of_port(port: u16) -> Namespace {
        let name = port.to_string().parse();
        Namespace::named(name.expect("digits are a name"))
    }

    /// Namespace of a store that a program opened, on one of its two sides.
    pub(crate) fn of_store(name: Name, side: Side) -> Namespace {
        Namespace { name: Some(name), attempt: 0, side }
    }

    /// Namespace of restarted ranks, by how often their launcher restarted them,
    /// in the store that it opened for them.
    pub(crate) fn of_restart(name: Name, attempt: u32) -> Namespace {
        Namespace { name: Some(name), attempt, side: Side::Others }
    }

    /// The same namespace for another attempt. A client of a program's store is
    /// of the attempt that the port is for.
    pub(crate) fn with_attempt(&self, attempt: u32) -> Namespace {
        if self.is_of_store() { self.clone() } else { Namespace { attempt, ..self.clone() } }
    }

    /// Whether it is the store of a program.
    pub(crate) fn is_of_store(&self) -> bool {
        self.side != Side::Ranks
    }

    /// Its name; `None` for the run's first port.
    pub fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    /// Clients that come through its port.
    pub(crate) fn side(&self) -> Side {
        self.side
    }

    /// Number of the attempt, from 0.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether its keys have no prefix in the run.
    pub(crate) fn is_plain(&self) -> bool {
        self.name.is_none() && self.attempt == 0
    }

    /// Prefix of its keys in the store; empty for the plain one.
    pub fn prefix(&self) -> Blob {
        if self.is_plain() {
            return Blob::from("");
        }
        let name = self.name.as_ref().map_or("", Name::as_str);
        Blob::from(format!("@{name}#{}:", self.attempt).into_bytes())
    }

    /// Common prefix of the keys of all attempts of this name.
    pub(crate) fn prefix_of_all(name: &Name) -> Blob {
        Blob::from(format!("@{name}#").into_bytes())
    }

    /// Prefixes of the keys of all namespaces but the plain one, and of the
    /// escaped keys of the plain one.
    pub(crate) fn marks() -> (Blob, Blob) {
        (Blob::from(vec![MARK]), Blob::from(ESCAPE.to_vec()))
    }

    /// A client's key as it is in the store.
    pub(crate) fn to_store(&self, key: Blob) -> Blob {
        if !self.is_plain() {
            return joined(self.prefix().as_bytes(), &key);
        }
        if key.as_bytes().first() == Some(&MARK) { joined(ESCAPE, &key) } else { key }
    }

    /// A key of the store as this namespace's clients know it; `None` for a key
    /// of another namespace.
    pub(crate) fn without_prefix(&self, key: Blob) -> Option<Blob> {
        if !self.is_plain() {
            let prefix = self.prefix();
            return key.as_bytes().strip_prefix(prefix.as_bytes()).map(|rest| rest.to_vec().into());
        }
        match key.as_bytes().strip_prefix(ESCAPE) {
            Some(rest) => Some(rest.to_vec().into()),
            None if key.as_bytes().first() == Some(&MARK) => None,
            None => Some(key),
        }
    }
}

impl std::fmt::Display for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name}")?,
            None => f.write_str("first")?,
        }
        write!(f, " attempt {}", self.attempt)
    }
}

fn joined(prefix: &[u8], key: &Blob) -> Blob {
    Blob::from([prefix, key.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Namespace> {
        let named = Namespace::named("a".parse().unwrap());
        let first = Namespace::first();
        let mut all: Vec<Namespace> =
            [&first, &named, &Namespace::of_port(29501)].map(Clone::clone).into();
        all.extend(all.clone().iter().map(|namespace| namespace.with_attempt(1)));
        all
    }

    #[test]
    fn a_key_is_found_by_its_own_namespace_alone() {
        let keys = ["", "/k", "init/", "@", "@:", "@:@", "@#1:/k", "@a#0:/k", "@29501#1:@"];
        for namespace in all() {
            for key in keys {
                let stored = namespace.to_store(key.into());
                for other in all() {
                    let expected = (other == namespace).then(|| Blob::from(key));
                    assert_eq!(
                        other.without_prefix(stored.clone()),
                        expected,
                        "{other}: {stored:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_keys_of_all_attempts_of_a_name_are_found_and_no_others() {
        let named = |text: &str| Namespace::named(text.parse().unwrap());
        let prefix = Namespace::prefix_of_all(named("a").name().unwrap());
        for (namespace, covered) in [
            (named("a"), true),
            (named("a").with_attempt(12), true),
            (named("ab"), false),
            (Namespace::first(), false),
            (Namespace::first().with_attempt(1), false),
        ] {
            let stored = namespace.to_store("@a#0:/k".into());
            assert_eq!(stored.as_bytes().starts_with(prefix.as_bytes()), covered, "{namespace}");
        }
    }

    #[test]
    fn the_keys_of_the_first_port_stand_in_the_run_as_they_are() {
        assert_eq!(Namespace::first().to_store("/k".into()), Blob::from("/k"));
        assert_eq!(Namespace::of_port(29501).to_store("/k".into()), Blob::from("@29501#0:/k"));
        let second = Namespace::first().with_attempt(2);
        assert_eq!(second.to_store("init/".into()), Blob::from("@#2:init/"));
    }
}
