//! Memberships that were sent lately, so that they need not be sent again. Reader
//! and writer of a feed count alike, the store included
//! ([`Feed::note_rosters`](holdfast_api::Feed::note_rosters)).

use std::collections::{BTreeMap, VecDeque};

use holdfast_api::round::ROSTERS_MAX;
use holdfast_api::{Closed, Generation, Incarnation, Members, MembersChange, ProcessId};

/// The memberships that a reader of a feed has, the latest last: the reader keeps
/// them with the members, a writer without.
#[derive(Debug, Clone)]
pub struct Rosters<M> {
    known: VecDeque<(Generation, M)>,
}

impl<M> Default for Rosters<M> {
    fn default() -> Self {
        Rosters { known: VecDeque::new() }
    }
}

impl<M> Rosters<M> {
    /// The generations whose members are known.
    #[cfg(test)]
    fn generations(&self) -> Vec<Generation> {
        self.known.iter().map(|(generation, _)| *generation).collect()
    }

    fn find(&self, generation: Generation) -> Option<&M> {
        let found = self.known.iter().find(|(known, _)| *known == generation);
        found.map(|(_, members)| members)
    }

    fn remember(&mut self, generation: Generation, members: M) {
        self.known.retain(|(known, _)| *known != generation);
        self.known.push_back((generation, members));
        if self.known.len() > ROSTERS_MAX {
            self.known.pop_front();
        }
    }
}

impl Rosters<Members> {
    /// Puts the members where they were left out, and remembers all of them.
    pub fn fill_in(&mut self, closed_rounds: &mut [Closed]) {
        // Left-out members are known, until the new ones push them out.
        for closed in closed_rounds.iter_mut().filter(|closed| closed.members.is_none()) {
            closed.members = match &closed.change {
                Some(change) => self.find(change.from).map(|earlier| changed(earlier, change)),
                None => self.find(closed.same_as).cloned(),
            };
        }
        for closed in closed_rounds {
            if let Some(members) = &closed.members {
                self.remember(closed.same_as, members.clone());
            }
        }
    }
}

/// A membership after a change.
fn changed(earlier: &Members, change: &MembersChange) -> Members {
    let MembersChange { from: _, left, joined } = change;
    let stay =
        earlier.iter().filter(|(process, incarnation)| !left.contains(*process, *incarnation));
    // One of each process, for any input.
    let members: BTreeMap<ProcessId, Incarnation> = stay.chain(joined.iter()).collect();
    members.into_iter().collect()
}

impl Rosters<()> {
    /// Leaves out the members that the reader has, and notes what it has then.
    /// The very opposite of what the reader does in [`Rosters::fill_in`].
    pub fn leave_out(&mut self, closed_rounds: &mut [Closed]) {
        let mut told = Vec::new();
        for closed in closed_rounds.iter_mut() {
            let had = self.find(closed.same_as).is_some();
            let knows = |change: &MembersChange| self.find(change.from).is_some();
            closed.change = closed.change.take().filter(|change| !had && knows(change));
            if had || closed.members.is_some() {
                told.push(closed.same_as);
            }
            if had || closed.change.is_some() {
                closed.members = None;
            }
        }
        for generation in told {
            self.remember(generation, ());
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Concluded, Feed};
    use proptest::prelude::*;

    use super::*;

    /// A closing of one member, sent in full and as a change against another.
    fn closed(generation: Generation, same_as: Generation, from: Generation) -> Closed {
        Closed {
            run: "r".parse().unwrap(),
            round: "x".into(),
            generation,
            witness: generation,
            closed_at_ms: 0,
            same_as,
            count: 1,
            members: Some([(0, same_as)].into_iter().collect()),
            change: Some(MembersChange {
                from,
                left: [(0, from)].into_iter().collect(),
                joined: [(0, same_as)].into_iter().collect(),
            }),
            absent: Vec::new(),
            evicted: Members::default(),
            promoted: Members::default(),
            differing: Vec::new(),
            held: None,
            conclusion: Concluded::Roll,
            payloads: None,
        }
    }

    proptest! {
        /// The reader ends up with everything that was sent, in pieces of any size.
        #[test]
        fn a_reader_fills_in_what_a_writer_leaves_out(
            pieces in prop::collection::vec(
                prop::collection::vec((1_u64..40, 1_u64..40), 0..6),
                0..40,
            ),
        ) {
            let (mut writer, mut reader) = (Rosters::<()>::default(), Rosters::default());
            let (mut generation, mut left_out, mut account) = (100, 0, Vec::new());
            for piece in pieces {
                let full: Vec<Closed> = piece
                    .into_iter()
                    .map(|(same_as, from)| {
                        generation += 1;
                        closed(generation, same_as, from)
                    })
                    .collect();
                let mut sent = full.clone();
                writer.leave_out(&mut sent);
                let (decisions, ended) = (Vec::new(), Vec::new());
                let (closed, held) = (sent.clone(), Vec::new());
                let feed = Feed { upto: generation, decisions, closed, ended, held };
                feed.note_rosters(&mut account);
                left_out += sent.iter().filter(|closed| closed.members.is_none()).count();
                reader.fill_in(&mut sent);
                let members = |rounds: &[Closed]| -> Vec<_> {
                    rounds.iter().map(|closed| closed.members.clone()).collect()
                };
                prop_assert_eq!(members(&sent), members(&full));
                prop_assert_eq!(writer.generations(), reader.generations());
                prop_assert_eq!(&account, &reader.generations(), "the store counts alike");
            }
            prop_assert!(left_out > 0 || generation < 141);
        }
    }
}
