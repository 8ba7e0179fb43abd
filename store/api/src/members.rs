//! The members of a generation and their ranks, in few bytes: jobs of many
//! thousand processes have long stretches in which process, incarnation and
//! rank grow together.

mod packed;

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use self::packed::Pack;
use crate::process::{Incarnation, ProcessId};
use crate::round::Generation;

/// Most members that a list may claim to hold when it is read.
pub const MEMBERS_MAX: u64 = 1 << 24;

/// Processes with their incarnations, in order of the processes. Cheap to
/// clone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = Vec<MemberStretch>))]
pub struct Members(Arc<Stretches<MemberStretch>>);

/// `count` members whose process and incarnation both grow by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemberStretch {
    /// First process of the stretch.
    pub process: ProcessId,
    /// Its incarnation: growing, given at registration, never reused.
    pub incarnation: Incarnation,
    /// How many, from 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u32,
}

/// How a membership differs from an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MembersChange {
    /// The first generation that had the earlier one.
    pub from: Generation,
    /// Members that are no longer in it.
    #[serde(default, skip_serializing_if = "Members::is_empty")]
    pub left: Members,
    /// Members that are new in it.
    #[serde(default, skip_serializing_if = "Members::is_empty")]
    pub joined: Members,
}

/// Why stretches do not make a list of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the member ranges are empty, overlap, are out of order, or hold more than {MEMBERS_MAX}")]
pub struct MembersError;

impl Members {
    /// How many members are in all stretches together.
    pub fn len(&self) -> usize {
        self.0.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.count == 0
    }

    /// All members in order.
    pub fn iter(&self) -> impl Iterator<Item = (ProcessId, Incarnation)> + '_ {
        self.0.all.iter().flat_map(|stretch| {
            let MemberStretch { process, incarnation, count } = *stretch;
            (0..count).map(move |n| (process + n, incarnation + u64::from(n)))
        })
    }

    /// A process's place in the list, from 0, and its incarnation.
    pub fn find(&self, process: ProcessId) -> Option<(usize, Incarnation)> {
        let behind = self.0.all.partition_point(|stretch| stretch.process <= process);
        let (stretch, before) = self.0.at(behind.checked_sub(1)?)?;
        let n = process.checked_sub(stretch.process).filter(|n| *n < stretch.count)?;
        Some((before + n as usize, stretch.incarnation + u64::from(n)))
    }

    /// Whether this very incarnation is a member.
    pub fn contains(&self, process: ProcessId, incarnation: Incarnation) -> bool {
        self.find(process).is_some_and(|(_, found)| found == incarnation)
    }

    /// The stretches, in order of the processes.
    pub fn stretches(&self) -> &[MemberStretch] {
        &self.0.all
    }
}

/// The members must come in strictly growing order of their processes.
impl FromIterator<(ProcessId, Incarnation)> for Members {
    fn from_iter<I: IntoIterator<Item = (ProcessId, Incarnation)>>(members: I) -> Self {
        let mut all = Stretches::<MemberStretch>::default();
        for (process, incarnation) in members {
            if let Some(last) = all.all.last_mut() {
                let next = last.process.checked_add(last.count);
                if next == Some(process) && last.incarnation + u64::from(last.count) == incarnation
                {
                    last.count += 1;
                    all.count += 1;
                    continue;
                }
                assert!(next.is_some_and(|next| next <= process), "members are in order");
            }
            all.push(MemberStretch { process, incarnation, count: 1 }, 1);
        }
        Members(Arc::new(all))
    }
}

impl TryFrom<Vec<MemberStretch>> for Members {
    type Error = MembersError;

    fn try_from(stretches: Vec<MemberStretch>) -> Result<Self, MembersError> {
        let mut next: u64 = 0;
        let mut count: u64 = 0;
        let mut all = Stretches::default();
        for stretch in stretches {
            let end = u64::from(stretch.process) + u64::from(stretch.count);
            let counts = stretch.incarnation.checked_add(stretch.count.into()).is_some();
            if stretch.count == 0
                || u64::from(stretch.process) < next
                || end > u64::from(u32::MAX) + 1
                || !counts
            {
                return Err(MembersError);
            }
            next = end;
            count += u64::from(stretch.count);
            if count > MEMBERS_MAX {
                return Err(MembersError);
            }
            all.push(stretch, stretch.count);
        }
        Ok(Members(Arc::new(all)))
    }
}

impl From<Members> for Vec<MemberStretch> {
    fn from(members: Members) -> Self {
        members.0.all.clone()
    }
}

/// A rank, or none, for each member of a generation, in their order.
/// Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = Vec<RankStretch>))]
pub struct Ranks(Arc<Stretches<RankStretch>>);

/// `count` members with growing ranks, or without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RankStretch {
    /// The first one's rank; none = they do not take part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// How many, from 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u32,
}

impl Ranks {
    /// The rank of the member at this place.
    pub fn at(&self, place: usize) -> Option<u32> {
        if place >= self.0.count {
            return None;
        }
        let behind = self.0.before.partition_point(|before| *before <= place);
        let (stretch, before) = self.0.at(behind.checked_sub(1)?)?;
        stretch.rank.map(|rank| rank + (place - before) as u32)
    }

    /// All ranks, in the order of the members.
    pub fn iter(&self) -> impl Iterator<Item = Option<u32>> + '_ {
        self.0.all.iter().flat_map(|stretch| {
            let RankStretch { rank, count } = *stretch;
            (0..count).map(move |n| rank.map(|rank| rank + n))
        })
    }

    /// How many members have a rank.
    pub fn world_size(&self) -> u32 {
        let taking_part = self.0.all.iter().filter(|stretch| stretch.rank.is_some());
        taking_part.map(|stretch| stretch.count).sum()
    }
}

impl FromIterator<Option<u32>> for Ranks {
    fn from_iter<I: IntoIterator<Item = Option<u32>>>(ranks: I) -> Self {
        let mut stretches: Stretches<RankStretch> = Stretches::default();
        for rank in ranks {
            if let Some(last) = stretches.all.last_mut() {
                let goes_on = match (last.rank, rank) {
                    (Some(first), Some(rank)) => first.checked_add(last.count) == Some(rank),
                    (None, None) => true,
                    _ => false,
                };
                if goes_on {
                    last.count += 1;
                    stretches.count += 1;
                    continue;
                }
            }
            stretches.push(RankStretch { rank, count: 1 }, 1);
        }
        Ranks(Arc::new(stretches))
    }
}

impl TryFrom<Vec<RankStretch>> for Ranks {
    type Error = MembersError;

    fn try_from(stretches: Vec<RankStretch>) -> Result<Self, MembersError> {
        let mut count: u64 = 0;
        let mut all = Stretches::default();
        for stretch in stretches {
            count += u64::from(stretch.count);
            let fits = stretch.rank.is_none_or(|rank| rank.checked_add(stretch.count).is_some());
            if stretch.count == 0 || count > MEMBERS_MAX || !fits {
                return Err(MembersError);
            }
            all.push(stretch, stretch.count);
        }
        Ok(Ranks(Arc::new(all)))
    }
}

impl From<Ranks> for Vec<RankStretch> {
    fn from(ranks: Ranks) -> Self {
        ranks.0.all.clone()
    }
}

/// Stretches with running counts: a lookup need not walk over all of them.
struct Stretches<T> {
    all: Vec<T>,
    /// Number of members before each stretch.
    before: Vec<usize>,
    /// Number of members in all stretches.
    count: usize,
    /// As they are sent, once they were sent.
    packed: OnceLock<Vec<u8>>,
}

impl<T> Default for Stretches<T> {
    fn default() -> Self {
        Stretches { all: Vec::new(), before: Vec::new(), count: 0, packed: OnceLock::new() }
    }
}

impl<T: PartialEq> PartialEq for Stretches<T> {
    fn eq(&self, other: &Self) -> bool {
        self.all == other.all
    }
}

impl<T: Eq> Eq for Stretches<T> {}

impl<T: fmt::Debug> fmt::Debug for Stretches<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.all.fmt(f)
    }
}

/// Text is for people: a list of maps.
impl<T: Pack + Serialize> Serialize for Stretches<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            self.all.serialize(serializer)
        } else {
            serializer.serialize_bytes(self.packed.get_or_init(|| packed::pack(&self.all)))
        }
    }
}

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl Serialize for Ranks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stretches = deserializer.deserialize_any(EitherWay(PhantomData))?;
        Members::try_from(stretches).map_err(serde::de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Ranks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stretches = deserializer.deserialize_any(EitherWay(PhantomData))?;
        Ranks::try_from(stretches).map_err(serde::de::Error::custom)
    }
}

/// Reads stretches as bytes or as a list of maps.
struct EitherWay<T>(PhantomData<T>);

impl<'de, T: Pack + Deserialize<'de>> Visitor<'de> for EitherWay<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of stretches")
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Vec<T>, E> {
        packed::unpack(bytes).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let mut stretches = Vec::new();
        while let Some(stretch) = seq.next_element()? {
            stretches.push(stretch);
        }
        Ok(stretches)
    }
}

impl<T> Stretches<T> {
    fn push(&mut self, stretch: T, count: u32) {
        self.all.push(stretch);
        self.before.push(self.count);
        self.count += count as usize;
    }

    fn at(&self, place: usize) -> Option<(&T, usize)> {
        Some((self.all.get(place)?, *self.before.get(place)?))
    }
}

fn one() -> u32 {
    1
}

fn is_one(count: &u32) -> bool {
    *count == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_grow_together_are_one_stretch() {
        let fresh: Members = (0..16_384).map(|n| (n, u64::from(n) + 1)).collect();
        assert_eq!(fresh.stretches().len(), 1);
        assert_eq!(fresh.len(), 16_384);
        assert_eq!(fresh.find(5), Some((5, 6)));
        let restarted: Members =
            (0..8).map(|n| (n, if n == 3 { 100 } else { u64::from(n) + 1 })).collect();
        assert_eq!(restarted.stretches().len(), 3);
        assert!(restarted.contains(3, 100) && !restarted.contains(3, 4));
        assert_eq!(restarted.find(7), Some((7, 8)));
        assert_eq!(restarted.find(8), None);
        assert_eq!(restarted.iter().count(), 8);
        let bytes = rmp_serde::to_vec_named(&restarted).unwrap();
        assert_eq!(rmp_serde::from_slice::<Members>(&bytes).unwrap(), restarted);
    }

    /// A list of single members is searched as one of long stretches is: walking
    /// over it each time would not come to an end.
    #[test]
    fn scattered_members_and_ranks_are_found() {
        let members: Members = (0..400_000).map(|n| (2 * n, 500_000 - u64::from(n))).collect();
        assert_eq!(members.stretches().len(), 400_000);
        for (place, (process, incarnation)) in members.iter().enumerate() {
            assert_eq!(members.find(process), Some((place, incarnation)));
            assert_eq!(members.find(process + 1), None);
        }
        let ranks: Ranks = (0..400_000).rev().map(|n| (n % 3 > 0).then_some(n)).collect();
        for (place, rank) in ranks.iter().enumerate() {
            assert_eq!(ranks.at(place), rank);
        }
        assert_eq!(ranks.at(400_000), None);
        let stretches: Vec<MemberStretch> = members.clone().into();
        assert_eq!(Members::try_from(stretches), Ok(members));
    }

    #[test]
    fn stretches_that_cannot_be_are_refused() {
        let stretch = |process, incarnation, count| MemberStretch { process, incarnation, count };
        for bad in [
            vec![stretch(0, 1, 0)],
            vec![stretch(3, 1, 2), stretch(4, 9, 1)],
            vec![stretch(5, 1, 1), stretch(1, 2, 1)],
            vec![stretch(u32::MAX, 1, 2)],
            vec![stretch(0, u64::MAX, 1)],
            vec![stretch(0, 1, u32::MAX)],
        ] {
            assert_eq!(Members::try_from(bad.clone()), Err(MembersError), "{bad:?}");
        }
        let rank = |rank, count| RankStretch { rank, count };
        for bad in [vec![rank(None, 0)], vec![rank(Some(u32::MAX), 1)], vec![rank(None, u32::MAX)]]
        {
            assert_eq!(Ranks::try_from(bad.clone()), Err(MembersError), "{bad:?}");
        }
    }

    #[test]
    fn ranks_are_told_by_place() {
        let ranks: Ranks = [Some(0), Some(1), None, None, Some(2), Some(7)].into_iter().collect();
        let told: Vec<_> = (0..7).map(|place| ranks.at(place)).collect();
        assert_eq!(told, [Some(0), Some(1), None, None, Some(2), Some(7), None]);
        assert_eq!(ranks.world_size(), 4);
        assert_eq!(ranks.iter().collect::<Ranks>(), ranks);
    }
}
