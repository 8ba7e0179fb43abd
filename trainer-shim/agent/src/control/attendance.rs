//! Clients attached to an agent, by their part of the launch: a second command
//! for the same part is a second launch, which would read the first one's keys.

use std::collections::BTreeMap;

use holdfast_api::lasting;
use tokio::time::Instant;

use crate::parts::Part;

/// Most parts that are remembered once they are done.
const DONE_MAX: usize = 1_024;

/// Which clients are attached, and which parts of the launch are done.
#[derive(Debug, Default)]
pub struct Attendance {
    attached: usize,
    ever: usize,
    over: bool,
    /// Client of each part, and since when.
    present: BTreeMap<String, (Part, Instant)>,
    /// When a part was done.
    done: BTreeMap<String, Instant>,
}

impl Attendance {
    /// Whether the agent is about to end.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Commands that are attached.
    pub fn attached(&self) -> usize {
        self.attached
    }

    /// Attaches a client; refused, with the reason, if another one is there for
    /// its part, that part is done, or those that are there are of a launch of another size.
    pub fn enter(&mut self, part: Option<&Part>, now: Instant) -> Result<(), String> {
        if let Some(part @ Part { name, world_size, .. }) = part {
            if let Some((other, since)) = self.present.get(name) {
                let (who, since) = (other.process(), lasted(now, *since));
                return Err(format!("{name} is running here already{who}, since {since}"));
            }
            let is_other = |(other, _): &&(Part, Instant)| {
                other.world_size.zip(*world_size).is_some_and(|(other, own)| other != own)
            };
            if let Some((other, since)) = self.present.values().find(is_other) {
                let size = |size: Option<u64>| size.unwrap_or_default();
                return Err(format!(
                    "{} of a launch with WORLD_SIZE={} is running here{}, since {}, and this \
                     command is of one with WORLD_SIZE={}",
                    other.name,
                    size(other.world_size),
                    other.process(),
                    lasted(now, *since),
                    size(*world_size)
                ));
            }
            if let Some(at) = self.done.get(name) {
                return Err(format!(
                    "{name} has ended here already, {} ago with code 0, and others of that launch \
                     are still there",
                    lasted(now, *at)
                ));
            }
            self.present.insert(name.clone(), (part.clone(), now));
        }
        self.attached += 1;
        self.ever += 1;
        Ok(())
    }

    /// A part of the launch ended well.
    pub fn note_done(&mut self, part: &Part, now: Instant) {
        if self.done.len() < DONE_MAX {
            self.done.insert(part.name.clone(), now);
        }
    }

    /// Detaches a client; returns whether the agent ends with it: a client that
    /// `ends` does that as the last one.
    pub fn leave(&mut self, part: Option<&Part>, ends: bool) -> bool {
        if let Some(part) = part {
            self.present.remove(&part.name);
        }
        self.attached -= 1;
        self.over |= ends && self.attached == 0;
        self.over
    }

    /// Ends if no client ever attached; returns whether that is so.
    pub fn end_unless_used(&mut self) -> bool {
        self.over |= self.ever == 0;
        self.ever == 0
    }
}

fn lasted(now: Instant, since: Instant) -> String {
    let ms = now.duration_since(since).as_millis();
    lasting(u64::try_from(ms).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::parts::PART_CHARS_MAX;

    #[test]
    fn a_part_of_a_launch_is_there_once() {
        let (mut all, now) = (Attendance::default(), Instant::now());
        let part = |name: &str, pid| Part::new(name, Some(pid), Some(2));
        let (first, other) = (part("rank 0", 42), part("rank 1", 43));
        all.enter(Some(&first), now).unwrap();
        all.enter(Some(&other), now).unwrap();
        all.enter(None, now).unwrap();
        all.enter(None, now).unwrap();
        let later = now + Duration::from_secs(180);
        let refused = all.enter(Some(&part("rank 0", 44)), later).unwrap_err();
        assert_eq!(refused, "rank 0 is running here already: process 42, since 3 min");
        let refused = all.enter(Some(&Part::new("rank 2", Some(45), Some(4))), later).unwrap_err();
        let expected =
            "rank 0 of a launch with WORLD_SIZE=2 is running here: process 42, since 3 min";
        assert!(refused.starts_with(expected), "{refused}");
        assert_eq!(all.attached(), 4, "who is refused is not attached");
        // A client that died comes back; one that is done does not.
        assert!(!all.leave(Some(&first), true));
        all.enter(Some(&first), later).unwrap();
        all.note_done(&first, later);
        assert!(!all.leave(Some(&first), true));
        let refused = all.enter(Some(&first), later + Duration::from_secs(7)).unwrap_err();
        assert!(refused.starts_with("rank 0 has ended here already, 7 s ago"), "{refused}");
    }

    #[test]
    fn an_agent_ends_with_the_last_that_is_attached_or_if_nobody_comes() {
        let (mut all, now) = (Attendance::default(), Instant::now());
        all.enter(None, now).unwrap();
        assert!(!all.end_unless_used());
        assert!(!all.leave(None, false) && !all.is_over(), "it lasts");
        all.enter(None, now).unwrap();
        assert!(all.leave(None, true) && all.is_over());
        let mut unused = Attendance::default();
        assert!(unused.end_unless_used() && unused.is_over());
    }

    #[test]
    fn the_name_of_a_part_is_bounded() {
        let part = Part::new(&"\u{1F600}\n".repeat(1_000), None, None);
        assert_eq!(part.name.chars().count(), PART_CHARS_MAX);
        assert!(!part.name.contains('\n'));
        assert_eq!(
            Part::new("node rank 10 of torchrun", None, None).name,
            "node rank 10 of torchrun"
        );
    }
}
