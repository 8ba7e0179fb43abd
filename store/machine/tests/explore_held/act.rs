//! The model of the server's actions: one command, and all that follows from it.

use crate::case::{PROCESSES, Participant, Participants, Rule, Tick};
use crate::clause::Clause;
use crate::server::{Arrived, Call, Command, Event, Held, Rules, Server, Why};

/// Carries out one command, and collects what follows from it.
pub struct Act<'s, 'c> {
    pub server: &'s mut Server,
    pub rules: Rules<'c>,
    pub events: Vec<Event>,
}

impl Act<'_, '_> {
    fn has(&self, clause: Clause) -> bool {
        self.rules.has(clause)
    }

    pub fn carry_out(&mut self, command: Command) {
        match command {
            Command::Register { participant } => self.register(participant),
            Command::Arrive { participant, names } => self.arrive(participant, names),
            Command::Ready { participant, generation } => {
                if self.come_to_held(participant, generation) {
                    self.server.ready.insert(participant);
                }
            }
            Command::Part { participant, generation } => {
                if self.come_to_held(participant, generation) {
                    self.server.parting.insert(participant);
                }
            }
            Command::Withdraw { participant } => {
                if self.server.waiting[participant].take().is_some() {
                    self.server.calls[participant] = Call::Withdrawn;
                    self.left(participant);
                }
            }
            Command::Release { participant, generation } => {
                let may =
                    self.has(Clause::EndedMayBeReleased) || !self.server.ended.has(participant);
                if may && self.server.holds(participant, generation) {
                    self.let_go(participant);
                }
            }
            Command::Exited { participant } | Command::Excuse { participant } => {
                let holds = self.server.held.is_some_and(|held| held.holding.has(participant));
                if holds && self.has(Clause::EndedMayBeReleased) {
                    self.let_go(participant);
                }
            }
            Command::Revoke { participant: _, generation } => {
                if self.server.held.is_some_and(|held| held.generation == generation) {
                    self.revoke();
                }
            }
            Command::End { participant, seen } => self.end(participant, seen),
            Command::Expire { process } => self.expire(process),
            Command::Heal { process } => {
                self.server.healed[process] = true;
                self.server.renewed[process] = self.server.now;
            }
            Command::NextRun => self.next_run(),
            Command::TimePasses { cut } => {
                self.server.now += 1;
                for (process, cut) in cut.into_iter().enumerate() {
                    let renewed = &mut self.server.renewed[process];
                    *renewed = if cut { *renewed } else { self.server.now };
                }
            }
            Command::DueOfHeld => self.held_is_due(),
            Command::DueOfRound => {
                if self.server.is_round_due(self.rules) {
                    self.server.reached = self.server.now;
                }
            }
        }
    }

    /// A new registration ends the process's older incarnation.
    fn register(&mut self, participant: Participant) {
        let older = participant - participant % 2;
        if older < participant && self.server.alive().has(older) {
            self.end(older, false);
        }
        self.server.registered.insert(participant);
    }

    fn arrive(&mut self, participant: Participant, names: u8) {
        if !self.server.alive().has(participant) || self.server.waiting[participant].is_some() {
            return;
        }
        if self.server.arrived().is_empty() {
            (self.server.since, self.server.reached) = (self.server.now, 0);
        }
        self.server.waiting[participant] = Some(Arrived { names, passed_over: 0 });
        self.server.calls[participant] = Call::Waits;
        let Some(held) = self.server.held.filter(|held| held.holding.has(participant)) else {
            return;
        };
        let keeps = held.ready && names == held.generation;
        if !keeps && !held.closing && self.has(Clause::ArrivalOfWhoStoppedRevokes) {
            self.revoke_by_release();
        }
        if !self.has(Clause::ArrivalReleasesAtTheClosing)
            && let Some(held) = &mut self.server.held
        {
            held.holding.remove(participant);
        }
    }

    /// A member of a generation arrives at a round that is built on it.
    fn come_to_held(&mut self, participant: Participant, generation: u8) -> bool {
        let is_over = self.server.is_over(generation);
        let refused = is_over && self.has(Clause::RevocationEndsWhatIsBuilt)
            || self.server.held.is_none_or(|held| held.generation != generation)
            || !self.server.alive().has(participant);
        self.server.calls[participant] =
            if refused { Call::Failed(Why::Revoked) } else { Call::Waits };
        !refused
    }

    /// An arrival has gone: a process that held before holds again.
    fn left(&mut self, participant: Participant) {
        let restores = self.has(Clause::WithdrawalRestoresTheHold);
        self.hold_again(Participants::of(|other| other == participant));
        if let Some(held) = self.server.held.as_mut().filter(|_| !restores) {
            held.holding.remove(participant);
        }
    }

    /// Those of these that hold, and have not arrived any more, have the whole time to stop.
    /// Others whose time has come do not get more.
    fn hold_again(&mut self, back: Participants) {
        let (now, has_limit) = (self.server.now, self.has(Clause::StopHasALimit));
        let holds = |held: &Held| back.iter().any(|participant| held.holding.has(participant));
        let Some(held) = self.server.held.as_mut().filter(|held| holds(held)) else {
            return;
        };
        let is_over = held.revoked && held.stop_from < now;
        held.stop_from = now;
        if is_over && has_limit {
            let late = self.server.not_stopped() - back;
            late.iter().for_each(|participant| self.end(participant, false));
        }
    }

    fn let_go(&mut self, participant: Participant) {
        let Some(held) = &mut self.server.held else { return };
        held.holding.remove(participant);
        held.unseen.remove(participant);
        held.free_at[participant] = 0;
        let spared = held.closing && self.has(Clause::CloseSparesTheRevocation);
        if !spared {
            self.revoke_by_release();
        }
    }

    fn revoke_by_release(&mut self) {
        let Some(held) = self.server.held else { return };
        if held.closing && !held.revoked {
            self.events.push(Event::RevokedInVain);
        }
        if self.has(Clause::ReleaseRevokes) {
            self.revoke();
        }
    }

    fn revoke(&mut self) {
        let now = self.server.now;
        if let Some(held) = self.server.held.as_mut().filter(|held| !held.revoked) {
            held.revoked = true;
            (held.revoked_at, held.stop_from) = (now, now);
            self.events.push(Event::Revoked);
        }
    }

    fn end(&mut self, participant: Participant, seen: bool) {
        if self.server.ended.has(participant) {
            if seen && self.server.held.is_some_and(|held| held.holding.has(participant)) {
                self.let_go(participant);
            }
            return;
        }
        self.server.ended.insert(participant);
        if self.server.waiting[participant].take().is_some() {
            self.left(participant);
        }
        self.server.ready.remove(participant);
        self.server.parting.remove(participant);
        if self.has(Clause::EndedIsFenced) {
            self.server.calls[participant] = Call::Nothing;
        }
        let Some(held) = self.server.held.filter(|held| held.members.has(participant)) else {
            return;
        };
        let holds = held.holding.has(participant);
        if self.has(Clause::DeathRevokes) && (holds || !held.closing) {
            self.revoke();
        }
        if let Some(held) = self.server.held.as_mut().filter(|_| holds) {
            if seen || !self.rules.has(Clause::UnseenExitHolds) {
                held.holding.remove(participant);
            } else {
                held.unseen.insert(participant);
            }
        }
    }

    fn expire(&mut self, process: usize) {
        // An incarnation that came with the other lease is not of this one.
        let first = [2 * process, 2 * process + 1].into_iter();
        let of_lease: Vec<Participant> =
            first.filter(|participant| self.server.registered.has(*participant)).collect();
        of_lease.iter().for_each(|participant| self.end(*participant, false));
        self.server.expired[process] = true;
        let at = self.server.free_at(self.rules, process);
        self.free_from(&of_lease, at);
    }

    fn free_from(&mut self, participants: &[Participant], at: Tick) {
        if let Some(held) = &mut self.server.held {
            for participant in
                participants.iter().filter(|participant| held.unseen.has(**participant))
            {
                held.free_at[*participant] = at;
            }
        }
    }

    fn next_run(&mut self) {
        self.server.run += 1;
        for participant in self.server.alive().iter().collect::<Vec<_>>() {
            self.server.ended.insert(participant);
            self.server.waiting[participant] = None;
            self.server.calls[participant] = Call::Nothing;
            if let Some(held) =
                self.server.held.as_mut().filter(|held| held.holding.has(participant))
            {
                held.unseen.insert(participant);
            }
        }
        (self.server.ready, self.server.parting) = Default::default();
        if self.server.held.is_some_and(|held| !held.holding.is_empty()) {
            self.revoke();
        }
        for process in 0..PROCESSES {
            let at = self.server.free_at(self.rules, process);
            self.free_from(&[2 * process, 2 * process + 1], at);
        }
        if !self.has(Clause::RunEndCarriesWhatIsHeld) {
            self.server.held = None;
        }
    }

    fn held_is_due(&mut self) {
        let Some(held) = self.server.held.filter(|_| self.server.is_held_due(self.rules)) else {
            return;
        };
        if !held.revoked {
            self.revoke();
            return;
        }
        let late = self.server.not_stopped();
        late.iter().for_each(|participant| self.end(participant, false));
        self.events.push(Event::Verdict);
    }

    /// Looks at everything that the command may have changed.
    pub fn evaluate(&mut self) {
        self.evaluate_built();
        while self.evaluate_round() {}
        self.evaluate_built();
    }

    /// The rounds among the generation that is held.
    fn evaluate_built(&mut self) {
        let Some(held) = self.server.held else { return };
        if held.revoked && self.has(Clause::RevocationEndsWhatIsBuilt) {
            self.end_built();
            return;
        }
        let all = |there: Participants| !there.is_empty() && (held.members - there).is_empty();
        let (ready, parting) = (all(self.server.ready), all(self.server.parting));
        if ready {
            self.events.push(Event::AllReady { was_revoked: held.revoked });
            let there = std::mem::take(&mut self.server.ready);
            self.all_there(there);
        }
        if parting {
            let there = std::mem::take(&mut self.server.parting);
            self.all_there(there);
        }
        if let Some(held) = &mut self.server.held {
            held.ready |= ready;
            held.closing |= parting;
        }
    }

    fn all_there(&mut self, participants: Participants) {
        participants.iter().for_each(|participant| self.server.calls[participant] = Call::AllThere);
    }

    fn end_built(&mut self) {
        for participant in (self.server.ready | self.server.parting).iter() {
            self.server.calls[participant] = Call::Failed(Why::Revoked);
        }
        (self.server.ready, self.server.parting) = Default::default();
    }

    /// Whether it changed anything that may lead to more.
    fn evaluate_round(&mut self) -> bool {
        let arrived = self.server.arrived();
        if arrived.is_empty() {
            (self.server.since, self.server.reached) = (0, 0);
            return false;
        }
        let held = self.server.held;
        let holding = held.map(|held| held.holding).unwrap_or_default() - self.server.free();
        let blocks = !(holding - arrived).is_empty() && self.has(Clause::DrainRule);
        let is_gathered = self.server.is_gathered(self.rules.case, arrived);
        if is_gathered && !blocks {
            if !self.server.free().is_empty() {
                self.events.push(Event::Freed);
            }
            self.close(arrived);
            return true;
        }
        let unrevoked = held.filter(|held| !held.revoked);
        let is_full = unrevoked.is_some_and(|held| held.members.len() >= self.rules.case.most());
        let comes_anew = unrevoked.is_some_and(|held| !(arrived - held.members).is_empty());
        let early = !self.has(Clause::MembershipRevokesAtLast) && comes_anew;
        if unrevoked.is_some() && !is_full && blocks && (is_gathered || early) {
            if !is_gathered {
                self.events.push(Event::RevokedInVain);
            }
            if self.has(Clause::MembershipRevokes) {
                self.revoke();
                return true;
            }
        }
        let is_due = self.server.deadline(self.rules).is_some_and(|at| at <= self.server.reached);
        if !is_due {
            return false;
        }
        if unrevoked.is_some() && !holding.is_empty() {
            if self.has(Clause::FirstDeadlineRevokes) {
                self.revoke();
            }
            if self.has(Clause::FirstDeadlineFailsNobody) && self.has(Clause::FirstDeadlineRevokes)
            {
                return false;
            }
        } else if !self.has(Clause::SecondDeadlineFails) {
            return false;
        }
        self.fail(arrived, unrevoked.is_some() && !holding.is_empty());
        false
    }

    /// All calls are void. `early`: holders have not been asked to stop before.
    fn fail(&mut self, arrived: Participants, early: bool) {
        self.events.push(Event::Failed { early });
        for participant in arrived.iter() {
            self.server.waiting[participant] = None;
            self.server.calls[participant] = Call::Failed(Why::Deadline);
        }
        (self.server.since, self.server.reached) = (0, 0);
        self.hold_again(arrived);
    }

    /// Participants that go first.
    fn in_turn(&self, arrived: Participants) -> Participants {
        let mut turn: Vec<Participant> = arrived.iter().collect();
        if matches!(self.rules.case.rule, Rule::Quorum { .. }) && self.has(Clause::PassedOverFirst)
        {
            let passed_over =
                |participant: &Participant| self.server.waiting[*participant].unwrap().passed_over;
            turn.sort_by_key(|participant| {
                (passed_over(participant) == 0, passed_over(participant), *participant)
            });
        }
        turn.truncate(self.rules.case.most());
        Participants::of(|participant| turn.contains(&participant))
    }

    fn close(&mut self, arrived: Participants) {
        let members = self.in_turn(arrived);
        let left = arrived - members;
        let goes_on = self.server.held.filter(|held| self.is_again(held, members));
        let former = self.server.held;
        let held = goes_on.unwrap_or_else(|| {
            let is_new = self.has(Clause::GenerationIsNeverReused)
                || self.server.held.is_none_or(|held| !held.revoked);
            self.server.generations += u8::from(is_new);
            Held {
                generation: self.server.generations,
                members,
                holding: members,
                ready: !self.rules.case.forms,
                formed_at: self.server.now,
                stop_from: self.server.now,
                ..Held::default()
            }
        });
        let (generation, again) = (held.generation, goes_on.is_some());
        if !again {
            // Rounds built on the one before are over.
            self.end_built();
        }
        self.server.held = Some(held);
        for participant in members.iter() {
            self.server.waiting[participant] = None;
            self.server.calls[participant] = Call::Formed { generation, again, members };
        }
        for participant in left.iter() {
            if let Some(arrived) = &mut self.server.waiting[participant]
                && arrived.passed_over == 0
            {
                arrived.passed_over = generation;
            }
        }
        (self.server.since, self.server.reached) = (self.server.now, 0);
        self.events.push(Event::Formed { generation, members, again, left, former });
    }

    /// Whether these go on with what they hold.
    fn is_again(&self, held: &Held, members: Participants) -> bool {
        let same = match self.has(Clause::AgainWithoutNewcomers) {
            true => held.members == members,
            false => (held.members - members).is_empty(),
        };
        let names = |participant: Participant| {
            self.server.waiting[participant].map(|arrived| arrived.names)
        };
        let all_name_it =
            held.members.iter().all(|participant| names(participant) == Some(held.generation));
        held.ready
            && !held.closing
            && (!held.revoked || !self.has(Clause::AgainUnlessRevoked))
            && held.holding == held.members
            && same
            && (all_name_it || !self.has(Clause::AgainIfAllNameIt))
    }
}
