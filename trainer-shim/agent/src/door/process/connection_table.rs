//! Which connection each process belongs to, and what it gets of the lease's
//! feed. Pure: no socket, no clock, no task.

use std::collections::BTreeMap;

use holdfast_api::{
    Code, Decided, Ended, Feed, HeldNews, Incarnation, Members, Problem, ProcessId, Revision,
};
use holdfast_trainer_shim::Rosters;

use super::relay::Participant;

/// Incarnations that one connection may have registered, those that have ended
/// included.
pub const PARTICIPANTS_MAX: usize = 1_024;

/// Number of a connection, unique within its lease.
pub type ConnectionId = u64;

/// Everything that hangs on one lease.
#[derive(Debug, Default)]
pub struct ConnectionTable {
    last: ConnectionId,
    entries: BTreeMap<ConnectionId, Entry>,
    owners: BTreeMap<Participant, ConnectionId>,
    /// The latest end of each process, as the feed reported it. It may come
    /// before the registration's answer.
    ended: BTreeMap<ProcessId, Ended>,
    rosters: Rosters<Members>,
    since: Revision,
}

#[derive(Debug, Default)]
struct Entry {
    /// Its incarnations; whether they go on.
    participants: BTreeMap<Participant, bool>,
    /// The memberships that it has.
    told: Rosters<()>,
}

impl ConnectionTable {
    /// Adds a connection, without incarnations, and answers its id.
    pub fn sit(&mut self) -> ConnectionId {
        self.last += 1;
        self.entries.insert(self.last, Entry::default());
        self.last
    }

    /// A connection goes; answers its incarnations that go on.
    pub fn leave(&mut self, id: ConnectionId) -> Vec<Participant> {
        let Some(Entry { participants, .. }) = self.entries.remove(&id) else { return Vec::new() };
        for participant in participants.keys() {
            self.owners.remove(participant);
        }
        participants
            .into_iter()
            .filter(|(_, alive)| *alive)
            .map(|(participant, _)| participant)
            .collect()
    }

    /// Whether an incarnation belongs to a connection.
    pub fn owns(&self, id: ConnectionId, participant: Participant) -> bool {
        self.owners.get(&participant) == Some(&id)
    }

    /// The connection that an incarnation belongs to.
    pub fn owner(&self, participant: Participant) -> Option<ConnectionId> {
        self.owners.get(&participant).copied()
    }

    /// All incarnations of a connection, also those that have ended.
    pub fn participants(&self, id: ConnectionId) -> Vec<Participant> {
        self.entries.get(&id).map_or_else(Vec::new, |id| id.participants.keys().copied().collect())
    }

    /// Whether an incarnation has ended, as far as the feed has reported: what its program says
    /// may be newer.
    pub fn has_ended(&self, participant: Participant) -> bool {
        self.ended.get(&participant.0).is_some_and(|ended| ended.incarnation >= participant.1)
    }

    /// Makes room for one more participant, if there is any.
    pub fn make_room(&mut self, id: ConnectionId) -> Result<(), Problem> {
        let Some(Entry { participants, .. }) = self.entries.get_mut(&id) else { return Ok(()) };
        if participants.len() >= PARTICIPANTS_MAX {
            let owners = &mut self.owners;
            participants.retain(|participant, alive| {
                if !*alive {
                    owners.remove(participant);
                }
                *alive
            });
        }
        if participants.len() < PARTICIPANTS_MAX {
            return Ok(());
        }
        let text =
            format!("one connection holds {PARTICIPANTS_MAX} processes at most; open another one");
        Err(Problem::refused(Code::LimitExceeded, text))
    }

    /// The incarnation of a process that goes on at another connection.
    pub fn held_elsewhere(&self, id: ConnectionId, process: ProcessId) -> Option<Participant> {
        let all = (process, Incarnation::MIN)..=(process, Incarnation::MAX);
        let mut participants = self.owners.range(all).filter(|(_, owner)| **owner != id);
        let goes_on = |participant: &Participant, owner: &ConnectionId| {
            self.entries.get(owner).and_then(|id| id.participants.get(participant)) == Some(&true)
        };
        participants
            .find(|(participant, owner)| goes_on(participant, owner))
            .map(|(participant, _)| *participant)
    }

    /// Records an incarnation that a connection registered. Returns its end, if that was reported
    /// already.
    pub fn registered(
        &mut self,
        id: ConnectionId,
        participant: Participant,
    ) -> Result<Option<Feed>, Problem> {
        if self.owners.get(&participant).is_some_and(|owner| *owner != id) {
            let (process, incarnation) = participant;
            let text = format!(
                "process {process} (incarnation {incarnation}) was registered on another \
                 connection; choose another nonce"
            );
            return Err(Problem::refused(Code::Conflict, text));
        }
        let ended = self
            .ended
            .get(&participant.0)
            .filter(|ended| ended.incarnation >= participant.1)
            .cloned();
        if let Some(found) = self.entries.get_mut(&id) {
            found.participants.insert(participant, ended.is_none());
            self.owners.insert(participant, id);
        }
        let piece = |ended: Ended| {
            let (decisions, closed, held) = (Vec::new(), Vec::new(), Vec::new());
            Feed { upto: self.since, decisions, closed, ended: vec![ended], held }
        };
        Ok(ended.map(piece))
    }

    /// The program has ended these incarnations itself.
    pub fn over(&mut self, id: ConnectionId, participants: &[Participant]) {
        let Some(id) = self.entries.get_mut(&id) else { return };
        for participant in participants {
            if let Some(alive) = id.participants.get_mut(participant) {
                *alive = false;
            }
        }
    }

    /// Takes a feed apart: to each connection what concerns its incarnations.
    pub fn hand_out(&mut self, mut feed: Feed) -> Vec<(ConnectionId, Feed)> {
        self.since = self.since.max(feed.upto);
        self.rosters.fill_in(&mut feed.closed);
        let upto = feed.upto;
        let mut pieces: BTreeMap<ConnectionId, Feed> = BTreeMap::new();
        let empty =
            || Feed { upto, decisions: vec![], closed: vec![], ended: vec![], held: vec![] };
        for news in feed.held {
            let mut of: BTreeMap<ConnectionId, Vec<Participant>> = BTreeMap::new();
            for participant in news.holders.iter() {
                if let Some(owner) = self.owners.get(&participant) {
                    of.entry(*owner).or_default().push(participant);
                }
            }
            for (owner, participants) in of {
                let news = HeldNews { holders: participants.into_iter().collect(), ..news.clone() };
                pieces.entry(owner).or_insert_with(empty).held.push(news);
            }
        }
        for ended in feed.ended {
            // When several incarnations ended since the last feed, it names only the latest.
            let all = (ended.process, 0)..=(ended.process, ended.incarnation);
            for (participant, owner) in self.owners.range(all) {
                let id = self.entries.get_mut(owner);
                let alive = id.and_then(|id| id.participants.get_mut(participant));
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
            let participant = (decision.process, decision.incarnation);
            let Some(owner) = self.owners.get(&participant) else { continue };
            let piece = pieces.entry(*owner).or_insert_with(empty);
            if let Decided::Closed { generation } = decision.decided {
                let known = piece.closed.iter().any(|closed| closed.generation == generation);
                let found = feed.closed.iter().find(|closed| closed.generation == generation);
                piece.closed.extend(found.filter(|_| !known).cloned());
            }
            piece.decisions.push(decision);
        }
        for (owner, piece) in &mut pieces {
            if let Some(id) = self.entries.get_mut(owner) {
                id.told.leave_out(&mut piece.closed);
            }
        }
        pieces.into_iter().collect()
    }

    /// Connections that are there.
    #[cfg(test)]
    fn entries(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Cause, Closed, Concluded, Decision, Generation};

    use super::*;

    fn feed(upto: Revision) -> Feed {
        Feed { upto, decisions: vec![], closed: vec![], ended: vec![], held: vec![] }
    }

    fn closed(generation: Generation, members: &[Participant]) -> Closed {
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

    fn decision((process, incarnation): Participant, generation: Generation) -> Decision {
        let decided = Decided::Closed { generation };
        Decision { process, incarnation, call: 1, round: "x".into(), at: generation, decided }
    }

    fn ended((process, incarnation): Participant, at: Revision) -> Ended {
        Ended { process, incarnation, at, cause: Cause::Gone }
    }

    #[test]
    fn each_connection_is_told_what_concerns_its_own_and_members_once() {
        let mut table = ConnectionTable::default();
        let (one, two) = (table.sit(), table.sit());
        for (id, participant) in [(one, (0, 10)), (two, (1, 11)), (two, (2, 12))] {
            assert_eq!(table.registered(id, participant), Ok(None));
        }
        let members = [(0, 10), (1, 11), (2, 12)];
        let all = |generation| Feed {
            decisions: members
                .iter()
                .map(|participant| decision(*participant, generation))
                .collect(),
            closed: vec![closed(generation, &members)],
            ..feed(generation)
        };
        let pieces = table.hand_out(all(5));
        assert_eq!(pieces.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [one, two]);
        let counts: Vec<_> =
            pieces.iter().map(|(_, p)| (p.decisions.len(), p.closed.len())).collect();
        assert_eq!(counts, [(1, 1), (2, 1)]);
        assert!(pieces.iter().all(|(_, piece)| piece.closed[0].members.is_some()));
        // The store leaves out what the agent has; a connection without it must get it from the
        // agent.
        let late = table.sit();
        assert_eq!(table.registered(late, (3, 13)), Ok(None));
        let mut again = all(6);
        again.closed[0].members = None;
        again.decisions.push(decision((3, 13), 6));
        let told: Vec<bool> =
            table.hand_out(again).iter().map(|(_, p)| p.closed[0].members.is_some()).collect();
        assert_eq!(told, [false, false, true]);
    }

    #[test]
    fn an_end_reaches_its_owner_also_if_it_is_told_before_the_registration() {
        let mut table = ConnectionTable::default();
        let id = table.sit();
        assert_eq!(table.registered(id, (0, 10)), Ok(None));
        let told = Feed { ended: vec![ended((0, 10), 7), ended((1, 11), 7)], ..feed(7) };
        let pieces = table.hand_out(told);
        assert_eq!(pieces, [(id, Feed { ended: vec![ended((0, 10), 7)], ..feed(7) })]);
        let late = table.registered(id, (1, 11));
        assert_eq!(late, Ok(Some(Feed { ended: vec![ended((1, 11), 7)], ..feed(7) })));
        assert_eq!(table.registered(id, (1, 12)), Ok(None), "its next incarnation goes on");
        assert_eq!(table.leave(id), [(1, 12)], "nobody dies twice");
    }

    #[test]
    fn a_participant_belongs_to_one_connection_and_who_left_has_left() {
        let mut table = ConnectionTable::default();
        let (one, two) = (table.sit(), table.sit());
        for participant in [(0, 10), (1, 11)] {
            assert_eq!(table.registered(one, participant), Ok(None));
        }
        let stolen = table.registered(two, (0, 10)).unwrap_err();
        assert!(stolen.message.contains("on another connection"), "{stolen}");
        assert!(table.owns(one, (0, 10)) && !table.owns(two, (0, 10)));
        table.over(one, &[(0, 10)]);
        assert_eq!(table.leave(one), [(1, 11)]);
        assert!(!table.owns(one, (1, 11)));
        assert_eq!((table.leave(one), table.entries()), (vec![], 1));
    }

    #[test]
    fn a_process_is_held_elsewhere_until_its_connection_goes_or_it_ends() {
        let mut table = ConnectionTable::default();
        let (one, two) = (table.sit(), table.sit());
        for participant in [(0, 10), (1, 11)] {
            assert_eq!(table.registered(one, participant), Ok(None));
        }
        assert_eq!(table.held_elsewhere(one, 0), None, "its own");
        assert_eq!(table.held_elsewhere(two, 0), Some((0, 10)));
        assert_eq!(table.held_elsewhere(two, 2), None, "nobody's");
        table.hand_out(Feed { ended: vec![ended((0, 10), 7)], ..feed(7) });
        assert_eq!(table.held_elsewhere(two, 0), None, "it has ended");
        table.leave(one);
        assert_eq!(table.held_elsewhere(two, 1), None, "its end is being told");
    }

    #[test]
    fn a_connection_holds_so_many_participants_and_the_ended_make_room() {
        let mut table = ConnectionTable::default();
        let id = table.sit();
        for n in 0..PARTICIPANTS_MAX as u32 {
            table.make_room(id).unwrap();
            assert_eq!(table.registered(id, (n, 1 + u64::from(n))), Ok(None));
        }
        assert_eq!(table.make_room(id).unwrap_err().code, Code::LimitExceeded);
        table.hand_out(Feed { ended: vec![ended((5, 6), 9)], ..feed(9) });
        table.make_room(id).unwrap();
        assert_eq!(table.leave(id).len(), PARTICIPANTS_MAX - 1);
    }
}
