//! Whose processes are whose, and who is told what of the lease's feed. Pure:
//! no socket, no clock, no task.

use std::collections::BTreeMap;

use holdfast_api::{
    Code, Decided, Ended, Feed, HeldNews, Incarnation, Members, Problem, ProcessId, Revision,
};
use holdfast_trainer_shim::Rosters;

use super::relay::Life;

/// Lives that one connection may have registered, those that have ended
/// included.
pub const LIVES_MAX: usize = 1_024;

/// A connection.
pub type SeatId = u64;

/// Everything that hangs on one lease.
#[derive(Debug, Default)]
pub struct Desk {
    last: SeatId,
    seats: BTreeMap<SeatId, Seat>,
    owners: BTreeMap<Life, SeatId>,
    /// Ends that were told, by process: the latest. One may be told before the
    /// registration's answer is here.
    ended: BTreeMap<ProcessId, Ended>,
    rosters: Rosters<Members>,
    since: Revision,
}

#[derive(Debug, Default)]
struct Seat {
    /// Its lives; whether they go on.
    lives: BTreeMap<Life, bool>,
    /// The memberships that it has.
    told: Rosters<()>,
}

impl Desk {
    /// A connection comes.
    pub fn sit(&mut self) -> SeatId {
        self.last += 1;
        self.seats.insert(self.last, Seat::default());
        self.last
    }

    /// A connection goes; answers its lives that go on.
    pub fn leave(&mut self, seat: SeatId) -> Vec<Life> {
        let Some(Seat { lives, .. }) = self.seats.remove(&seat) else { return Vec::new() };
        for life in lives.keys() {
            self.owners.remove(life);
        }
        lives.into_iter().filter(|(_, alive)| *alive).map(|(life, _)| life).collect()
    }

    /// Whether a life belongs to a connection.
    pub fn owns(&self, seat: SeatId, life: Life) -> bool {
        self.owners.get(&life) == Some(&seat)
    }

    /// The connection that a life belongs to.
    pub fn owner(&self, life: Life) -> Option<SeatId> {
        self.owners.get(&life).copied()
    }

    /// All lives of a connection, also those that have ended.
    pub fn lives(&self, seat: SeatId) -> Vec<Life> {
        self.seats.get(&seat).map_or_else(Vec::new, |seat| seat.lives.keys().copied().collect())
    }

    /// Whether a life has ended, as far as the feed has told: what its program says
    /// may be newer.
    pub fn has_ended(&self, life: Life) -> bool {
        self.ended.get(&life.0).is_some_and(|ended| ended.incarnation >= life.1)
    }

    /// Makes room for one more life, if there is any.
    pub fn make_room(&mut self, seat: SeatId) -> Result<(), Problem> {
        let Some(Seat { lives, .. }) = self.seats.get_mut(&seat) else { return Ok(()) };
        if lives.len() >= LIVES_MAX {
            let owners = &mut self.owners;
            lives.retain(|life, alive| {
                if !*alive {
                    owners.remove(life);
                }
                *alive
            });
        }
        if lives.len() < LIVES_MAX {
            return Ok(());
        }
        let text = format!("one connection holds {LIVES_MAX} processes at most; open another one");
        Err(Problem::refused(Code::LimitExceeded, text))
    }

    /// The life of a process that goes on at another connection.
    pub fn held_elsewhere(&self, seat: SeatId, process: ProcessId) -> Option<Life> {
        let all = (process, Incarnation::MIN)..=(process, Incarnation::MAX);
        let mut lives = self.owners.range(all).filter(|(_, owner)| **owner != seat);
        let goes_on = |life: &Life, owner: &SeatId| {
            self.seats.get(owner).and_then(|seat| seat.lives.get(life)) == Some(&true)
        };
        lives.find(|(life, owner)| goes_on(life, owner)).map(|(life, _)| *life)
    }

    /// A life was registered by a connection. Answers its end, if that was told
    /// already.
    pub fn registered(&mut self, seat: SeatId, life: Life) -> Result<Option<Feed>, Problem> {
        if self.owners.get(&life).is_some_and(|owner| *owner != seat) {
            let (process, incarnation) = life;
            let text = format!(
                "process {process} (incarnation {incarnation}) was registered on another \
                 connection; choose another nonce"
            );
            return Err(Problem::refused(Code::Conflict, text));
        }
        let ended = self.ended.get(&life.0).filter(|ended| ended.incarnation >= life.1).cloned();
        if let Some(found) = self.seats.get_mut(&seat) {
            found.lives.insert(life, ended.is_none());
            self.owners.insert(life, seat);
        }
        let piece = |ended: Ended| {
            let (decisions, closed, held) = (Vec::new(), Vec::new(), Vec::new());
            Feed { upto: self.since, decisions, closed, ended: vec![ended], held }
        };
        Ok(ended.map(piece))
    }

    /// The program has ended these lives itself.
    pub fn over(&mut self, seat: SeatId, lives: &[Life]) {
        let Some(seat) = self.seats.get_mut(&seat) else { return };
        for life in lives {
            if let Some(alive) = seat.lives.get_mut(life) {
                *alive = false;
            }
        }
    }

    /// Takes a feed apart: to each connection what concerns its lives.
    pub fn hand_out(&mut self, mut feed: Feed) -> Vec<(SeatId, Feed)> {
        self.since = self.since.max(feed.upto);
        self.rosters.fill_in(&mut feed.closed);
        let upto = feed.upto;
        let mut pieces: BTreeMap<SeatId, Feed> = BTreeMap::new();
        let empty =
            || Feed { upto, decisions: vec![], closed: vec![], ended: vec![], held: vec![] };
        for news in feed.held {
            let mut of: BTreeMap<SeatId, Vec<Life>> = BTreeMap::new();
            for life in news.holders.iter() {
                if let Some(owner) = self.owners.get(&life) {
                    of.entry(*owner).or_default().push(life);
                }
            }
            for (owner, lives) in of {
                let news = HeldNews { holders: lives.into_iter().collect(), ..news.clone() };
                pieces.entry(owner).or_insert_with(empty).held.push(news);
            }
        }
        for ended in feed.ended {
            // Of several that ended since the last feed it names the latest alone.
            let all = (ended.process, 0)..=(ended.process, ended.incarnation);
            for (life, owner) in self.owners.range(all) {
                let seat = self.seats.get_mut(owner);
                let alive = seat.and_then(|seat| seat.lives.get_mut(life));
                if let Some(alive) = alive.filter(|alive| **alive) {
                    *alive = false;
                    pieces.entry(*owner).or_insert_with(empty).ended.push(ended.clone());
                }
            }
            let latest = self.ended.get(&ended.process).map_or(0, |known| known.incarnation);
            if ended.incarnation >= latest {
                self.ended.insert(ended.process, ended);
            }
        }
        for decision in feed.decisions {
            let life = (decision.process, decision.incarnation);
            let Some(owner) = self.owners.get(&life) else { continue };
            let piece = pieces.entry(*owner).or_insert_with(empty);
            if let Decided::Closed { generation } = decision.decided {
                let known = piece.closed.iter().any(|closed| closed.generation == generation);
                let found = feed.closed.iter().find(|closed| closed.generation == generation);
                piece.closed.extend(found.filter(|_| !known).cloned());
            }
            piece.decisions.push(decision);
        }
        for (owner, piece) in &mut pieces {
            if let Some(seat) = self.seats.get_mut(owner) {
                seat.told.leave_out(&mut piece.closed);
            }
        }
        pieces.into_iter().collect()
    }

    /// Connections that are there.
    pub fn seats(&self) -> usize {
        self.seats.len()
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Cause, Closed, Concluded, Decision, Generation};

    use super::*;

    fn feed(upto: Revision) -> Feed {
        Feed { upto, decisions: vec![], closed: vec![], ended: vec![], held: vec![] }
    }

    fn closed(generation: Generation, members: &[Life]) -> Closed {
        Closed {
            run: "r".parse().unwrap(),
            round: "x".into(),
            generation,
            witness: generation,
            closed_at_ms: 0,
            same_as: 1,
            count: members.len() as u32,
            members: Some(members.iter().copied().collect()),
            change: None,
            absent: vec![],
            evicted: Members::default(),
            promoted: Members::default(),
            differing: Vec::new(),
            held: None,
            conclusion: Concluded::Roll,
            payloads: None,
        }
    }

    fn decision((process, incarnation): Life, generation: Generation) -> Decision {
        let decided = Decided::Closed { generation };
        Decision { process, incarnation, call: 1, round: "x".into(), at: generation, decided }
    }

    fn ended((process, incarnation): Life, at: Revision) -> Ended {
        Ended { process, incarnation, at, cause: Cause::Gone }
    }

    #[test]
    fn each_connection_is_told_what_concerns_its_own_and_members_once() {
        let mut desk = Desk::default();
        let (one, two) = (desk.sit(), desk.sit());
        for (seat, life) in [(one, (0, 10)), (two, (1, 11)), (two, (2, 12))] {
            assert_eq!(desk.registered(seat, life), Ok(None));
        }
        let members = [(0, 10), (1, 11), (2, 12)];
        let all = |generation| Feed {
            decisions: members.iter().map(|life| decision(*life, generation)).collect(),
            closed: vec![closed(generation, &members)],
            ..feed(generation)
        };
        let pieces = desk.hand_out(all(5));
        assert_eq!(pieces.iter().map(|(seat, _)| *seat).collect::<Vec<_>>(), [one, two]);
        let counts: Vec<_> =
            pieces.iter().map(|(_, p)| (p.decisions.len(), p.closed.len())).collect();
        assert_eq!(counts, [(1, 1), (2, 1)]);
        assert!(pieces.iter().all(|(_, piece)| piece.closed[0].members.is_some()));
        // The store leaves out what the agent knows; whoever has it gets it from nobody.
        let late = desk.sit();
        assert_eq!(desk.registered(late, (3, 13)), Ok(None));
        let mut again = all(6);
        again.closed[0].members = None;
        again.decisions.push(decision((3, 13), 6));
        let told: Vec<bool> =
            desk.hand_out(again).iter().map(|(_, p)| p.closed[0].members.is_some()).collect();
        assert_eq!(told, [false, false, true]);
    }

    #[test]
    fn an_end_reaches_its_owner_also_if_it_is_told_before_the_registration() {
        let mut desk = Desk::default();
        let seat = desk.sit();
        assert_eq!(desk.registered(seat, (0, 10)), Ok(None));
        let told = Feed { ended: vec![ended((0, 10), 7), ended((1, 11), 7)], ..feed(7) };
        let pieces = desk.hand_out(told);
        assert_eq!(pieces, [(seat, Feed { ended: vec![ended((0, 10), 7)], ..feed(7) })]);
        let late = desk.registered(seat, (1, 11));
        assert_eq!(late, Ok(Some(Feed { ended: vec![ended((1, 11), 7)], ..feed(7) })));
        assert_eq!(desk.registered(seat, (1, 12)), Ok(None), "its next life goes on");
        assert_eq!(desk.leave(seat), [(1, 12)], "nobody dies twice");
    }

    #[test]
    fn a_life_belongs_to_one_connection_and_whoever_left_has_left() {
        let mut desk = Desk::default();
        let (one, two) = (desk.sit(), desk.sit());
        for life in [(0, 10), (1, 11)] {
            assert_eq!(desk.registered(one, life), Ok(None));
        }
        let stolen = desk.registered(two, (0, 10)).unwrap_err();
        assert!(stolen.message.contains("on another connection"), "{stolen}");
        assert!(desk.owns(one, (0, 10)) && !desk.owns(two, (0, 10)));
        desk.over(one, &[(0, 10)]);
        assert_eq!(desk.leave(one), [(1, 11)]);
        assert!(!desk.owns(one, (1, 11)));
        assert_eq!((desk.leave(one), desk.seats()), (vec![], 1));
    }

    #[test]
    fn a_process_is_held_elsewhere_until_its_connection_goes_or_it_ends() {
        let mut desk = Desk::default();
        let (one, two) = (desk.sit(), desk.sit());
        for life in [(0, 10), (1, 11)] {
            assert_eq!(desk.registered(one, life), Ok(None));
        }
        assert_eq!(desk.held_elsewhere(one, 0), None, "its own");
        assert_eq!(desk.held_elsewhere(two, 0), Some((0, 10)));
        assert_eq!(desk.held_elsewhere(two, 2), None, "nobody's");
        desk.hand_out(Feed { ended: vec![ended((0, 10), 7)], ..feed(7) });
        assert_eq!(desk.held_elsewhere(two, 0), None, "it has ended");
        desk.leave(one);
        assert_eq!(desk.held_elsewhere(two, 1), None, "its end is being told");
    }

    #[test]
    fn a_connection_holds_so_many_lives_and_the_ended_make_room() {
        let mut desk = Desk::default();
        let seat = desk.sit();
        for n in 0..LIVES_MAX as u32 {
            desk.make_room(seat).unwrap();
            assert_eq!(desk.registered(seat, (n, 1 + u64::from(n))), Ok(None));
        }
        assert_eq!(desk.make_room(seat).unwrap_err().code, Code::LimitExceeded);
        desk.hand_out(Feed { ended: vec![ended((5, 6), 9)], ..feed(9) });
        desk.make_room(seat).unwrap();
        assert_eq!(desk.leave(seat).len(), LIVES_MAX - 1);
    }
}
