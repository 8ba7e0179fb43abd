//! The effects of a round that closes or fails.

use crate::case::{Kind, PARTICIPANTS, PROCESSES, Participants};
use crate::clause::Clause;
use crate::server::{Act, Block, Event, Key, Known, NO_CALL, Outcome, Round, Why};

impl Act<'_> {
    pub fn close(&mut self, key: Key, promotable: u8, evicted: Participants) {
        let Some(round) = self.server.take(key) else {
            return;
        };
        let case = self.rules.case;
        let is_over_all = key.scope == 0 && case.set.is_none();
        let apart = match is_over_all {
            true => round.participants() - self.facts().counted(key, &round),
            false => Participants::default(),
        };
        let only_arrived = self.rules.has(Clause::OnlyArrivedSpares);
        let spares = match only_arrived {
            true => self.facts().spares(&round),
            false => self.server.live() - self.server.live_active(),
        };
        let promoted = spares.first(promotable);
        let most = self.facts().most(key, &round);
        let surplus = round.participants() - apart - (round.participants() - apart).first(most);
        let left = (apart - promoted) | surplus;
        let mut members = round.arrived;
        left.iter().for_each(|participant| members[participant] = 0);
        for participant in promoted.iter() {
            self.server.records[participant].active = true;
            members[participant] =
                if members[participant] > 0 { members[participant] } else { NO_CALL };
        }
        self.server.generations += 1;
        let generation = self.server.generations;
        let there = Participants::of(|participant| members[participant] > 0);
        let scope = if key.scope > 0 { self.facts().scope(key) } else { there };
        let outcome = Outcome {
            generation,
            opened: round.opened,
            enough: round.enough,
            key,
            members,
            evicted,
            promoted,
            absent: self.absent(key, scope - self.facts().failed_there(key), there),
            iteration: self.iteration(key, &members),
            succeeded: self.succeeded(key, scope, there & round.well),
        };
        self.note(key, generation, there);
        for participant in there.iter().filter(|participant| members[*participant] < NO_CALL) {
            let place = usize::from(members[participant]) - 1;
            self.server.records[participant].calls[place] = Known::Closed(generation);
        }
        self.server.outcomes.push(outcome);
        self.release(generation);
        self.events.push(Event::Closed(outcome));
        self.keep_waiting(key, &round, left);
    }

    /// Arrivals that were not needed go on waiting.
    fn keep_waiting(&mut self, key: Key, before: &Round, left: Participants) {
        if left.is_empty() {
            return;
        }
        let mut round = Round { gathering: self.gather(), ..Round::default() };
        for participant in left.iter() {
            round.arrived[participant] = before.arrived[participant];
            round.came[participant] = before.came[participant];
        }
        round.well = before.well & left;
        self.server.put(key, round);
    }

    fn absent(&self, key: Key, scope: Participants, there: Participants) -> [bool; PROCESSES] {
        let set = self.rules.case.set.filter(|_| key.scope == 0);
        std::array::from_fn(|process| {
            let participants = [2 * process, 2 * process + 1];
            let is_of_it = match set {
                Some(set) => set.contains(&process),
                None => participants.iter().any(|participant| scope.has(*participant)),
            };
            is_of_it && !participants.iter().any(|participant| there.has(*participant))
        })
    }

    fn iteration(&mut self, key: Key, members: &[u8; PARTICIPANTS]) -> u8 {
        if key.kind != Kind::Advance {
            return 0;
        }
        if self.rules.has(Clause::OneCounterOfIterations) {
            self.server.iteration += 1;
            return self.server.iteration;
        }
        // Each member counts for itself, from nothing when it starts.
        members.iter().copied().max().unwrap_or(0)
    }

    /// Whether a vote is carried, or a block done: all of its scope say so.
    fn succeeded(&self, key: Key, scope: Participants, well: Participants) -> Option<bool> {
        let has = |clause| self.rules.has(clause);
        let live = self.server.live();
        match key.kind {
            Kind::Roll | Kind::Advance | Kind::Entry => None,
            Kind::Vote => {
                let needed = if has(Clause::VoteNeedsItsScope) { scope } else { scope & live };
                Some((needed - well).is_empty())
            }
            Kind::Exit => {
                let block = self.server.blocks.iter().find(|block| block.entry == key.scope);
                let failed = block.map(|block| block.failed).unwrap_or_default();
                let all = has(Clause::BlockNeedsAllOfItsParticipants);
                let needed = if all { scope } else { scope & live };
                Some((needed - (well - failed)).is_empty())
            }
        }
    }

    /// Records what later rounds depend on.
    fn note(&mut self, key: Key, generation: u8, there: Participants) {
        let case = self.rules.case;
        let server = &mut *self.server;
        if key.quorum {
            server.quorums.retain(|(of, _)| *of != key);
            server.quorums.push((key, there));
            server.quorums.sort_unstable();
        } else if key.scope == 0 && case.set.is_none() {
            for participant in there.iter() {
                let since = &mut server.records[participant].since;
                *since = if *since > 0 { *since } else { generation };
            }
            server.expected = there;
            server.formed = !self.rules.has(Clause::FormationBeginsAnew);
            server.records.iter_mut().for_each(|record| record.over = false);
        }
        if case.has_scopes() && matches!(key.kind, Kind::Advance | Kind::Entry) {
            server.scopes.push((generation, there));
        }
        match key.kind {
            Kind::Entry => server.blocks.push(Block {
                name: key.name,
                entry: generation,
                participants: there,
                failed: Participants::default(),
                verdict: None,
            }),
            Kind::Exit => {
                let block = server.blocks.iter_mut().find(|block| block.entry == key.scope);
                block.into_iter().for_each(|block| block.verdict = Some(generation));
            }
            _ => {}
        }
    }

    /// Calls that wait in it are void.
    pub fn fail(&mut self, key: Key, why: Why, participants: Participants) {
        let Some(mut round) = self.server.take(key) else {
            return;
        };
        // Where some go on waiting, it is no generation that fails.
        let generation = if why == Why::Over { 0 } else { self.server.generations + 1 };
        let mut calls = [0; PARTICIPANTS];
        for participant in participants.iter() {
            calls[participant] = std::mem::take(&mut round.arrived[participant]);
            round.came[participant] = 0;
            let place = usize::from(calls[participant]) - 1;
            self.server.records[participant].calls[place] = Known::Failed(generation, why);
            if key.kind == Kind::Exit && self.rules.has(Clause::VoidExitFails) {
                self.fail_exit(key, participant);
            }
        }
        let is_used = why != Why::Over && self.rules.has(Clause::GenerationIsNeverReused);
        self.server.generations += u8::from(is_used);
        let opened = round.opened;
        self.events.push(Event::Failed { key, generation, why, opened, calls });
        if !round.participants().is_empty() {
            self.server.put(key, round);
        }
    }
}
