//! The model of the server: one held round, written from the documentation.

use crate::act::Act;
use crate::case::{
    Case, MARGIN, PARTICIPANTS, PROCESSES, Participant, Participants, Rule, STORE_LOST, Tick,
    process_of,
};
use crate::clause::Clause;

#[derive(Clone, Copy)]
pub struct Rules<'c> {
    pub case: &'c Case,
    pub without: &'static [Clause],
}

impl Rules<'_> {
    pub fn has(&self, clause: Clause) -> bool {
        !self.without.contains(&clause)
    }
}

/// The latest generation of the held round, and who still holds it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Held {
    pub generation: u8,
    pub members: Participants,
    /// Members that have not released it.
    pub holding: Participants,
    /// Those of them that have ended without an observed exit.
    pub unseen: Participants,
    /// When they count as stopped; 0 = only when reported.
    pub free_at: [Tick; PARTICIPANTS],
    pub revoked: bool,
    pub revoked_at: Tick,
    pub ready: bool,
    pub closing: bool,
    pub formed_at: Tick,
    pub stop_from: Tick,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Why {
    Deadline,
    Revoked,
}

/// The state of an incarnation's latest call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Call {
    #[default]
    Nothing,
    Waits,
    Formed {
        generation: u8,
        again: bool,
        members: Participants,
    },
    /// All are ready, or about to part.
    AllThere,
    Failed(Why),
    Withdrawn,
}

/// One that waits for the next generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Arrived {
    /// The generation that it reports as held, intact.
    pub names: u8,
    /// The earliest generation that closed without it.
    pub passed_over: u8,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Server {
    pub now: Tick,
    pub run: u8,
    pub registered: Participants,
    pub ended: Participants,
    /// The latest generation's number.
    pub generations: u8,
    pub held: Option<Held>,
    pub waiting: [Option<Arrived>; PARTICIPANTS],
    pub since: Tick,
    /// The latest time that was seen to come for the waiting processes.
    pub reached: Tick,
    /// Members that are ready, and members that are about to part.
    pub ready: Participants,
    pub parting: Participants,
    pub calls: [Call; PARTICIPANTS],
    /// The latest renewal of each host's lease.
    pub renewed: [Tick; PROCESSES],
    /// Processes whose lease has ended, and those that have another one since.
    pub expired: [bool; PROCESSES],
    pub healed: [bool; PROCESSES],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    Register {
        participant: Participant,
    },
    Arrive {
        participant: Participant,
        names: u8,
    },
    Ready {
        participant: Participant,
        generation: u8,
    },
    Part {
        participant: Participant,
        generation: u8,
    },
    Withdraw {
        participant: Participant,
    },
    Release {
        participant: Participant,
        generation: u8,
    },
    Exited {
        participant: Participant,
    },
    Excuse {
        participant: Participant,
    },
    Revoke {
        participant: Participant,
        generation: u8,
    },
    End {
        participant: Participant,
        seen: bool,
    },
    Expire {
        process: usize,
    },
    Heal {
        process: usize,
    },
    NextRun,
    /// A tick passes; hosts but these renew their leases.
    TimePasses {
        cut: [bool; PROCESSES],
    },
    /// Proposals due for the held generation.
    DueOfHeld,
    /// Proposals due for the waiting processes.
    DueOfRound,
}

/// The judge's view of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Formed {
        generation: u8,
        members: Participants,
        again: bool,
        left: Participants,
        former: Option<Held>,
    },
    /// Somebody had no need of it.
    RevokedInVain,
    Revoked,
    Failed {
        early: bool,
    },
    AllReady {
        was_revoked: bool,
    },
    Freed,
    Verdict,
}

impl Server {
    pub fn alive(&self) -> Participants {
        self.registered - self.ended
    }

    pub fn arrived(&self) -> Participants {
        Participants::of(|participant| self.waiting[participant].is_some())
    }

    pub fn holds(&self, participant: Participant, generation: u8) -> bool {
        self.held.is_some_and(|held| held.generation == generation && held.holding.has(participant))
    }

    /// Whether a generation is still to be used, as far as the server knows.
    pub fn is_over(&self, generation: u8) -> bool {
        self.held.is_none_or(|held| held.generation != generation || held.revoked)
    }

    pub fn apply(&mut self, rules: Rules<'_>, command: Command) -> Vec<Event> {
        let mut act = Act { server: self, rules, events: Vec::new() };
        act.carry_out(command);
        act.evaluate();
        let events = act.events;
        self.forget_times(rules);
        events
    }

    /// Drops times that no longer matter.
    fn forget_times(&mut self, rules: Rules<'_>) {
        if !rules.case.deadline {
            self.since = 0;
        }
        if let Some(held) = &mut self.held {
            held.formed_at = if held.ready || held.revoked { 0 } else { held.formed_at };
            let stops = held.revoked && !(held.holding - held.unseen).is_empty();
            held.stop_from = if stops { held.stop_from } else { 0 };
            let revoked_at = held.revoked && rules.case.deadline;
            held.revoked_at = if revoked_at { held.revoked_at } else { 0 };
        }
    }

    /// Holders whose time is over, though their stop was not seen.
    pub fn free(&self) -> Participants {
        let free_at = self.held.map(|held| held.free_at).unwrap_or_default();
        let holding = self.held.map(|held| held.holding).unwrap_or_default();
        Participants::of(|participant| {
            holding.has(participant)
                && free_at[participant] > 0
                && free_at[participant] <= self.reached
        })
    }

    /// When the deadline of the waiting processes comes.
    pub fn deadline(&self, rules: Rules<'_>) -> Option<Tick> {
        if !rules.case.deadline || self.arrived().is_empty() {
            return None;
        }
        let revoked_at = self.held.filter(|held| held.revoked).map_or(0, |held| held.revoked_at);
        Some(self.since.max(revoked_at) + 1)
    }

    /// When no holder blocks the closing any more, if only time can release them.
    fn frees_at(&self, rules: Rules<'_>) -> Option<Tick> {
        let (held, arrived) = (self.held?, self.arrived());
        let blocks = held.holding - arrived - self.free();
        let is_last = !arrived.is_empty() && self.is_gathered(rules.case, arrived);
        let is_known = blocks.iter().all(|participant| held.free_at[participant] > 0);
        blocks
            .iter()
            .map(|participant| held.free_at[participant])
            .max()
            .filter(|_| is_last && is_known)
    }

    /// Whether enough have arrived, regardless of holders.
    pub fn is_gathered(&self, case: &Case, arrived: Participants) -> bool {
        match case.rule {
            Rule::Quorum { min, .. } => arrived.len() >= min,
            Rule::All if case.set => (0..PROCESSES).all(|process| {
                let participants =
                    Participants::of(|participant| process_of(participant) == process);
                let never_joined = (self.registered & participants).is_empty();
                !never_joined && (self.alive() & (participants - arrived)).is_empty()
            }),
            Rule::All => (self.alive() - arrived).is_empty(),
        }
    }

    /// Whether a time has come that matters to the waiting processes.
    pub fn is_round_due(&self, rules: Rules<'_>) -> bool {
        let is_due = |at: Tick| at > self.reached && at <= self.now;
        self.deadline(rules).is_some_and(is_due) || self.frees_at(rules).is_some_and(is_due)
    }

    /// Whether passing time can change anything.
    pub fn waits_for_time(&self, rules: Rules<'_>) -> bool {
        let Some(held) = self.held else { return self.deadline(rules).is_some() };
        let frees = held.free_at.into_iter().any(|at| at > self.reached);
        let stops = if held.revoked { !self.not_stopped().is_empty() } else { !held.ready };
        frees || stops || self.deadline(rules).is_some()
    }

    /// Whether calls wait after their second deadline.
    pub fn waits_past_its_deadline(&self, rules: Rules<'_>) -> bool {
        self.deadline(rules).is_some_and(|at| at <= self.reached)
    }

    /// Holders that were asked to stop, and have not.
    pub fn not_stopped(&self) -> Participants {
        let Some(held) = self.held else { return Participants::default() };
        held.holding - held.unseen - self.arrived()
    }

    /// Whether the time of the generation that is held has come.
    pub fn is_held_due(&self, rules: Rules<'_>) -> bool {
        let Some(held) = self.held else { return false };
        let is_late = held.formed_at < self.now;
        match held.revoked {
            false => {
                rules.has(Clause::FormationHasALimit)
                    && !held.ready
                    && is_late
                    && !(held.holding - held.unseen).is_empty()
            }
            true => {
                rules.has(Clause::StopHasALimit)
                    && held.stop_from < self.now
                    && !self.not_stopped().is_empty()
            }
        }
    }

    /// When processes of a silent host count as stopped.
    pub fn free_at(&self, rules: Rules<'_>, process: usize) -> Tick {
        if !rules.has(Clause::LostHoldersAreFree) {
            return 0;
        }
        let latest = rules.has(Clause::FreeFromTheLatestRenewal);
        let renewed = if latest { self.renewed[process] } else { 0 };
        let granted = rules.has(Clause::FreeByTheGrantedLimit);
        renewed + MARGIN + if granted { STORE_LOST } else { STORE_LOST - 1 }
    }
}
