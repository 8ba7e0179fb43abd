//! What a round comes to when it closes or fails.

use crate::case::{LIVES, Life, PROCESSES};
use crate::clause::Clause;
use crate::server::{Act, Event, Known, NO_CALL, Outcome, Round};

impl Act<'_> {
    pub fn close(&mut self, name: usize, promotable: u8, evicted: [bool; LIVES]) {
        let Some(round) = self.server.rounds[name].take() else {
            return;
        };
        let mut members = round.arrived;
        let mut promoted = [false; LIVES];
        let mut left = Round::default();
        self.server.generations += 1;
        let generation = self.server.generations;
        for life in (0..LIVES).filter(|life| !self.counts(*life)) {
            let is_there = round.arrived[life] > 0;
            let may = is_there
                || !self.rules.has(Clause::OnlyArrivedSpares) && self.server.is_alive(life);
            let promotes = promoted.iter().filter(|p| **p).count() < usize::from(promotable);
            if may && promotes {
                promoted[life] = true;
                members[life] = if is_there { members[life] } else { NO_CALL };
            } else if is_there {
                members[life] = 0;
                left.arrived[life] = round.arrived[life];
                left.said[life] = round.said[life];
            }
        }
        for (life, promoted) in promoted.iter().enumerate() {
            self.server.records[life].active |= promoted;
        }
        let outcome = Outcome {
            generation,
            since: round.since,
            name,
            members,
            evicted,
            promoted,
            absent: self.absent(),
            iteration: self.iteration(&members),
            succeeded: self.succeeded(generation, &members, &round.said),
        };
        self.server.formed |= self.rules.case.world > 0;
        self.server.met |= self.rules.case.standby.contains(&true);
        for life in (0..LIVES).filter(|life| (1..NO_CALL).contains(&members[*life])) {
            let place = usize::from(members[life]) - 1;
            self.server.records[life].calls[place] = Known::Closed(generation);
        }
        self.server.outcomes.push(outcome);
        self.release(generation);
        self.events.push(Event::Closed(outcome));
        if left.arrived != [0; LIVES] {
            self.server.rounds[name] = Some(left);
        }
    }

    fn absent(&self) -> [bool; PROCESSES] {
        let mut absent = [false; PROCESSES];
        for process in self.rules.case.set.into_iter().flatten() {
            absent[*process] = !self.server.is_live_process(*process);
        }
        absent
    }

    fn iteration(&mut self, members: &[u8; LIVES]) -> u8 {
        if self.rules.case.blocks {
            return 0;
        }
        if self.rules.has(Clause::OneCounterOfIterations) {
            self.server.iteration += 1;
            return self.server.iteration;
        }
        // Each member counts for itself, from nothing when it starts.
        members.iter().copied().max().unwrap_or(0)
    }

    /// The verdict on the block before; this generation opens the next.
    fn succeeded(
        &mut self,
        generation: u8,
        members: &[u8; LIVES],
        said: &[u8; LIVES],
    ) -> Option<bool> {
        if !self.rules.case.blocks {
            return None;
        }
        let there: [bool; LIVES] = std::array::from_fn(|life| members[life] > 0);
        let before = self.server.block.replace((generation, there));
        let asked = (0..LIVES).filter(|life| there[*life] && said[*life] > 0);
        let asked: Vec<u8> = asked.map(|life| said[life]).collect();
        let latest = asked.iter().max()?;
        Some(before.is_some_and(|(opened, lives)| {
            let agrees = |life: &Life| there[*life] && said[*life] == opened;
            let needed = |life: &Life| {
                lives[*life] && (there[*life] || self.rules.has(Clause::BlockNeedsAllOfItsLives))
            };
            opened == *latest && (0..LIVES).filter(needed).all(|life| agrees(&life))
        }))
    }

    /// All calls that wait in it are void.
    pub fn fail(&mut self, name: usize) {
        let Some(round) = self.server.rounds[name].take() else {
            return;
        };
        self.server.generations += 1;
        let generation = self.server.generations;
        for life in (0..LIVES).filter(|life| round.arrived[*life] > 0) {
            let place = usize::from(round.arrived[life]) - 1;
            self.server.records[life].calls[place] = Known::Failed(generation);
        }
        let Round { since, arrived: calls, .. } = round;
        if !self.rules.has(Clause::GenerationIsNeverReused) {
            self.server.generations -= 1;
        }
        self.events.push(Event::Failed { name, generation, since, calls });
    }
}
