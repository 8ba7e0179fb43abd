//! Clients of each namespace, and which namespaces are over.
//!
//! A rank of attempt n exists because those of the attempts below have ended; and
//! a launcher that opens a namespace by a name of its own needs the one that it
//! opened before no more. Such a namespace is over once it has no connection
//! left. Its keys stay readable for a while and are then collected: the collector
//! claims the namespace, and no client enters until it is settled.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{Blob, Name};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::keeper::state::Notes;
use crate::namespace::Namespace;

/// Namespaces that are kept in mind; keys of others go with their run.
const NAMESPACES_MAX: usize = 1024;

/// All namespaces of a door. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Presence(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    account: Mutex<Account>,
    /// Notified when something may be over.
    changed: Notify,
    /// Notified when one side of a program's store has no connection left.
    store_left: Notify,
    /// Where an agent that follows finds the namespaces that had clients.
    notes: Notes,
}

/// One connection in a namespace, until it is dropped.
#[derive(Debug)]
pub struct Guest {
    presence: Presence,
    namespace: Namespace,
    counted: bool,
}

/// Namespaces that are collected together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Over {
    /// One attempt of a launcher that restarts its ranks in place; above 0.
    Attempt(Namespace),
    /// A namespace that was opened by name, with all its attempts.
    Named(Name),
}

/// The namespace is over, and its keys are being deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} is over and its keys are just being deleted (attempts_kept); \
     use the newest one, or try again when they are gone"
)]
pub struct BeingCollected(Over);

/// Connections by namespace. Has no clock: callers pass the time.
#[derive(Debug, Default)]
struct Account {
    visited: BTreeMap<Namespace, Visits>,
    /// Namespaces that were opened by name and when, the latest last.
    named: Vec<(Name, Instant)>,
    claimed: Option<Over>,
    /// Nothing is claimed before: the last time it could not be deleted.
    retry_at: Option<Instant>,
}

#[derive(Debug)]
struct Visits {
    guests: usize,
    /// When the first came.
    came: Instant,
    /// When the last left, or, while one is connected, came.
    left: Instant,
}

/// When the next collection is due.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Now(Over),
    At(Instant),
    Never,
}

impl Presence {
    /// No namespace has clients yet.
    pub fn new(notes: Notes) -> Presence {
        Presence(Arc::new(Shared { notes, ..Shared::default() }))
    }

    /// Goes on with the namespaces that had clients of the agent before.
    pub fn restore(&self, namespaces: Vec<Namespace>) {
        let mut account = self.0.account.lock();
        namespaces.into_iter().for_each(|namespace| account.restore(namespace, Instant::now()));
    }

    /// Counts one more connection in this namespace.
    pub fn enter(&self, namespace: Namespace) -> Result<Guest, BeingCollected> {
        let (counted, first) = self.0.account.lock().enter(&namespace, Instant::now())?;
        if first {
            if !namespace.is_of_store() {
                self.note();
            }
            self.0.changed.notify_one();
        }
        Ok(Guest { presence: self.clone(), namespace, counted })
    }

    /// A namespace is opened by this name, or was and is wanted again: those
    /// opened before it are old.
    pub fn open(&self, name: &Name) -> Result<(), BeingCollected> {
        self.0.account.lock().open(name, Instant::now())?;
        self.0.changed.notify_one();
        Ok(())
    }

    /// The namespace of this name stays as long as its run.
    pub fn keep(&self, name: &Name) -> Result<(), BeingCollected> {
        self.0.account.lock().keep(name)
    }

    /// The newest attempt of the namespace's name that any client came from.
    pub fn newest(&self, namespace: &Namespace) -> u32 {
        self.0.account.lock().newest(namespace)
    }

    /// How many are connected in exactly this namespace.
    pub fn guests(&self, namespace: &Namespace) -> usize {
        self.0.account.lock().visited.get(namespace).map_or(0, |visits| visits.guests)
    }

    /// Ready when the last has left a side of a program's store.
    pub async fn store_left(&self) {
        self.0.store_left.notified().await;
    }

    /// Waits until something has been over for `kept`, and claims it: no client
    /// enters it before [`Presence::settle`].
    pub async fn claim(&self, kept: Duration) -> Over {
        loop {
            let due = self.0.account.lock().claim(kept, Instant::now());
            match due {
                Due::Now(over) => return over,
                Due::At(at) => tokio::select! {
                    () = sleep_until(at) => {}
                    () = self.0.changed.notified() => {}
                },
                Due::Never => self.0.changed.notified().await,
            }
        }
    }

    /// The claimed namespace is deleted, or, if that failed, is claimed again
    /// after this time.
    pub fn settle(&self, deleted: Result<(), Duration>) {
        let now = Instant::now();
        let retry_at = |pause| now.checked_add(pause).unwrap_or(now);
        self.0.account.lock().settle(deleted.map_err(retry_at));
        self.note();
    }

    fn note(&self) {
        self.0.notes.namespaces(|| self.0.account.lock().namespaces());
    }
}

impl Guest {
    /// Where the connection is counted.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let shared = &self.presence.0;
        if self.counted && shared.account.lock().leave(&self.namespace, Instant::now()) {
            if self.namespace.is_of_store() {
                shared.store_left.notify_one();
            } else {
                shared.changed.notify_one();
            }
        }
    }
}

impl Account {
    /// Whether it is counted, and whether it is the first.
    fn enter(
        &mut self,
        namespace: &Namespace,
        now: Instant,
    ) -> Result<(bool, bool), BeingCollected> {
        self.check(|over| over.covers(namespace))?;
        if let Some(visits) = self.visited.get_mut(namespace) {
            visits.guests += 1;
            return Ok((true, false));
        }
        // Stores of programs have a bound of their own, and are forgotten at once.
        if self.visited.len() >= NAMESPACES_MAX && !namespace.is_of_store() {
            return Ok((false, false));
        }
        self.visited.insert(namespace.clone(), Visits { guests: 1, came: now, left: now });
        Ok((true, true))
    }

    fn restore(&mut self, namespace: Namespace, now: Instant) {
        if self.visited.len() < NAMESPACES_MAX {
            self.visited.entry(namespace).or_insert(Visits { guests: 0, came: now, left: now });
        }
    }

    /// Those that had clients; stores of programs are noted apart.
    fn namespaces(&self) -> Vec<Namespace> {
        self.visited.keys().filter(|namespace| !namespace.is_of_store()).cloned().collect()
    }

    /// Whether it was the last.
    fn leave(&mut self, namespace: &Namespace, now: Instant) -> bool {
        let Some(visits) = self.visited.get_mut(namespace) else { return false };
        visits.guests = visits.guests.saturating_sub(1);
        visits.left = now;
        let was_last = visits.guests == 0;
        if was_last && namespace.is_of_store() {
            self.visited.remove(namespace);
        }
        was_last
    }

    fn open(&mut self, name: &Name, now: Instant) -> Result<(), BeingCollected> {
        self.keep(name)?;
        if self.named.len() < NAMESPACES_MAX {
            self.named.push((name.clone(), now));
        }
        Ok(())
    }

    fn keep(&mut self, name: &Name) -> Result<(), BeingCollected> {
        self.check(|over| matches!(over, Over::Named(other) if other == name))?;
        self.named.retain(|(other, _)| other != name);
        Ok(())
    }

    fn check(&self, concerns: impl Fn(&Over) -> bool) -> Result<(), BeingCollected> {
        match &self.claimed {
            Some(over) if concerns(over) => Err(BeingCollected(over.clone())),
            _ => Ok(()),
        }
    }

    fn newest(&self, namespace: &Namespace) -> u32 {
        let from = namespace.with_attempt(0);
        let to = namespace.with_attempt(u32::MAX);
        self.visited.range(from..=to).next_back().map_or(0, |(newest, _)| newest.attempt())
    }

    fn claim(&mut self, kept: Duration, now: Instant) -> Due {
        let named = self.named_over();
        let Some((since, over)) = self.attempts_over().chain(named).min_by_key(|(at, _)| *at)
        else {
            return Due::Never;
        };
        // A time beyond the clock's range never comes.
        let Some(due) = since.checked_add(kept) else { return Due::Never };
        let due = due.max(self.retry_at.unwrap_or(due));
        if due > now {
            return Due::At(due);
        }
        self.retry_at = None;
        self.claimed = Some(over.clone());
        Due::Now(over)
    }

    /// Attempts above 0 without connections, where a newer one of the same name
    /// was seen, and since when that is so.
    fn attempts_over(&self) -> impl Iterator<Item = (Instant, Over)> {
        let behind = self.visited.iter().skip(1);
        self.visited.iter().zip(behind).filter_map(|((this, visits), (next, newer))| {
            let over = this.attempt() > 0 && visits.guests == 0 && next.name() == this.name();
            over.then(|| (visits.left.max(newer.came), Over::Attempt(this.clone())))
        })
    }

    /// Names without connections in any attempt, where another was opened later,
    /// and since when that is so.
    fn named_over(&self) -> impl Iterator<Item = (Instant, Over)> {
        self.named.windows(2).filter_map(|pair| {
            let ((name, _), (_, later)) = (&pair[0], &pair[1]);
            let first = Namespace::named(name.clone());
            let last = first.with_attempt(u32::MAX);
            let mut since = *later;
            for (_, visits) in self.visited.range(first..=last) {
                if visits.guests > 0 {
                    return None;
                }
                since = since.max(visits.left);
            }
            Some((since, Over::Named(name.clone())))
        })
    }

    fn settle(&mut self, deleted: Result<(), Instant>) {
        let Some(over) = self.claimed.take() else { return };
        match deleted {
            Ok(()) => {
                self.visited.retain(|namespace, _| !over.covers(namespace));
                self.named.retain(|(name, _)| over != Over::Named(name.clone()));
            }
            Err(retry_at) => self.retry_at = Some(retry_at),
        }
    }
}

impl Over {
    /// Common prefix of its keys.
    pub fn prefix(&self) -> Blob {
        match self {
            Over::Attempt(namespace) => namespace.prefix(),
            Over::Named(name) => Namespace::prefix_of_all(name),
        }
    }

    fn covers(&self, namespace: &Namespace) -> bool {
        match self {
            Over::Attempt(own) => own == namespace,
            Over::Named(name) => namespace.name() == Some(name),
        }
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Over::Attempt(namespace) => write!(f, "namespace {namespace}"),
            Over::Named(name) => write!(f, "namespace {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Duration = Duration::from_secs(600);
    const SECOND: Duration = Duration::from_secs(1);

    fn first(attempt: u32) -> Namespace {
        Namespace::first().with_attempt(attempt)
    }

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn an_attempt_is_over_when_a_newer_one_of_its_name_came_and_nobody_is_connected() {
        let other = |attempt| Namespace::of_port(29501).with_attempt(attempt);
        let (mut account, now) = (Account::default(), Instant::now());
        for namespace in [first(0), first(1), first(2), first(3), other(1)] {
            account.enter(&namespace, now).unwrap();
        }
        assert_eq!((account.newest(&first(0)), account.newest(&other(0))), (3, 1));
        assert_eq!(account.claim(KEPT, now + 2 * KEPT), Due::Never, "everybody is connected");
        let left = now + SECOND;
        for namespace in [first(0), first(1), first(3), other(1)] {
            assert!(account.leave(&namespace, left));
        }
        // 2 is in use, 3 the newest, and so is the other name's 1.
        assert_eq!(account.claim(KEPT, left), Due::At(left + KEPT));
        let over = Over::Attempt(first(1));
        assert_eq!(account.claim(KEPT, left + KEPT), Due::Now(over));
        account.settle(Ok(()));
        assert_eq!(account.claim(KEPT, left + KEPT), Due::Never);
    }

    #[test]
    fn time_counts_from_the_last_that_left() {
        let (mut account, now) = (Account::default(), Instant::now());
        for namespace in [first(1), first(2)] {
            account.enter(&namespace, now).unwrap();
        }
        account.leave(&first(1), now);
        // A client comes back for a moment, shortly before the time is over.
        account.enter(&first(1), now + KEPT - SECOND).unwrap();
        assert_eq!(account.claim(KEPT, now + KEPT), Due::Never);
        let left = now + KEPT + SECOND;
        account.leave(&first(1), left);
        assert_eq!(account.claim(KEPT, left), Due::At(left + KEPT));
    }

    #[test]
    fn nobody_enters_what_is_being_collected() {
        let (mut account, now) = (Account::default(), Instant::now());
        for namespace in [first(1), first(2)] {
            account.enter(&namespace, now).unwrap();
            account.leave(&namespace, now);
        }
        assert!(matches!(account.claim(KEPT, now + KEPT), Due::Now(_)));
        let refused = account.enter(&first(1), now).unwrap_err();
        assert!(refused.to_string().contains("first attempt 1 is over"), "{refused}");
        account.enter(&first(2), now).unwrap();
        // It could not be deleted: until it is tried again, it is open.
        account.settle(Err(now + 2 * KEPT));
        account.enter(&first(1), now).unwrap();
        account.leave(&first(1), now);
        assert_eq!(account.claim(KEPT, now + KEPT), Due::At(now + 2 * KEPT));
        assert!(matches!(account.claim(KEPT, now + 2 * KEPT), Due::Now(_)));
        account.settle(Ok(()));
        account.enter(&first(1), now).unwrap();
    }

    #[test]
    fn a_name_is_over_when_another_was_opened_and_nobody_is_in_any_of_its_attempts() {
        let (mut account, now) = (Account::default(), Instant::now());
        let [old, new] = ["attempt-1", "attempt-2"].map(name);
        account.open(&old, now).unwrap();
        let restarted = Namespace::named(old.clone()).with_attempt(1);
        account.enter(&Namespace::named(old.clone()), now).unwrap();
        account.enter(&restarted, now).unwrap();
        account.leave(&Namespace::named(old.clone()), now);
        assert_eq!(account.claim(KEPT, now + KEPT), Due::Never, "it is the only one");
        let opened = now + SECOND;
        account.open(&new, opened).unwrap();
        assert_eq!(account.claim(KEPT, opened + KEPT), Due::Never, "it is in use");
        let left = opened + SECOND;
        account.leave(&restarted, left);
        assert_eq!(account.claim(KEPT, left), Due::At(left + KEPT));
        // Wanted again, it is the newest, and the other one is old.
        account.open(&old, left).unwrap();
        assert_eq!(account.claim(KEPT, left + KEPT), Due::Now(Over::Named(new.clone())));
        assert!(account.open(&new, left).is_err() && account.keep(&new).is_err());
        assert!(account.enter(&Namespace::named(new.clone()), left).is_err());
        account.settle(Ok(()));
        account.open(&new, left).unwrap();
        // A port of the command line with that number as its name stays.
        account.keep(&old).unwrap();
        assert_eq!(account.claim(KEPT, left + 2 * KEPT), Due::Never);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_over_is_claimed_when_its_time_has_passed() {
        let presence = Presence::default();
        let guests = [1, 2].map(|attempt| presence.enter(first(attempt)).unwrap());
        let began = Instant::now();
        let ((), over) = tokio::join!(
            async {
                tokio::time::sleep(SECOND).await;
                drop(guests);
            },
            presence.claim(KEPT)
        );
        assert_eq!(over, Over::Attempt(first(1)));
        assert_eq!(began.elapsed(), SECOND + KEPT);
        assert!(presence.enter(first(1)).is_err());
        presence.settle(Ok(()));
        assert!(presence.enter(first(1)).is_ok());
        let never = presence.claim(Duration::MAX);
        assert!(tokio::time::timeout(KEPT, never).await.is_err());
    }
}
