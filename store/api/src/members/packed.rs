//! Stretches in MessagePack: bytes instead of a list of maps. Where processes
//! registered in any order, each is a stretch of its own, and the list goes to
//! every agent: it is packed once, in three to five bytes for each.
//!
//! A stretch of members is the gap to the one before, how far its incarnation is
//! from the one that would have gone on, and its count less one; one of ranks
//! is 0 without a rank, else 1 more than how far its rank is from the one that
//! would have gone on, and its count less one. Numbers are LEB128, distances
//! zigzag.

use super::{MemberStretch, MembersError, RankStretch};

/// Stretches that can be packed one after the other.
pub(super) trait Pack: Sized {
    /// What the next one is encoded relative to.
    type Before: Default;

    fn pack(&self, before: &mut Self::Before, out: &mut Vec<u8>);

    fn unpack(before: &mut Self::Before, bytes: &mut &[u8]) -> Result<Self, MembersError>;
}

pub(super) fn pack<T: Pack>(stretches: &[T]) -> Vec<u8> {
    let (mut before, mut out) = (T::Before::default(), Vec::new());
    stretches.iter().for_each(|stretch| stretch.pack(&mut before, &mut out));
    out
}

pub(super) fn unpack<T: Pack>(mut bytes: &[u8]) -> Result<Vec<T>, MembersError> {
    let (mut before, mut stretches) = (T::Before::default(), Vec::new());
    while !bytes.is_empty() {
        stretches.push(T::unpack(&mut before, &mut bytes)?);
    }
    Ok(stretches)
}

impl Pack for MemberStretch {
    type Before = (u32, u64);

    fn pack(&self, (process, incarnation): &mut Self::Before, out: &mut Vec<u8>) {
        write(out, u64::from(self.process.wrapping_sub(*process)));
        write(out, distance(*incarnation, self.incarnation));
        write(out, u64::from(self.count.wrapping_sub(1)));
        *process = self.process.wrapping_add(self.count);
        *incarnation = self.incarnation.wrapping_add(u64::from(self.count));
    }

    fn unpack(
        (process, incarnation): &mut Self::Before,
        bytes: &mut &[u8],
    ) -> Result<Self, MembersError> {
        let stretch = MemberStretch {
            process: process.checked_add(read_u32(bytes)?).ok_or(MembersError)?,
            incarnation: at_distance(*incarnation, read(bytes)?),
            count: read_u32(bytes)?.checked_add(1).ok_or(MembersError)?,
        };
        *process = stretch.process.wrapping_add(stretch.count);
        *incarnation = stretch.incarnation.wrapping_add(u64::from(stretch.count));
        Ok(stretch)
    }
}

impl Pack for RankStretch {
    type Before = u64;

    fn pack(&self, next: &mut Self::Before, out: &mut Vec<u8>) {
        match self.rank {
            Some(rank) => {
                write(out, 1 + distance(*next, u64::from(rank)));
                *next = u64::from(rank) + u64::from(self.count);
            }
            None => write(out, 0),
        }
        write(out, u64::from(self.count.wrapping_sub(1)));
    }

    fn unpack(next: &mut Self::Before, bytes: &mut &[u8]) -> Result<Self, MembersError> {
        let rank = match read(bytes)?.checked_sub(1) {
            Some(distance) => {
                let rank = at_distance(*next, distance);
                Some(u32::try_from(rank).map_err(|_| MembersError)?)
            }
            None => None,
        };
        let count = read_u32(bytes)?.checked_add(1).ok_or(MembersError)?;
        if let Some(rank) = rank {
            *next = u64::from(rank) + u64::from(count);
        }
        Ok(RankStretch { rank, count })
    }
}

/// Distance from one number to another, small in either direction.
fn distance(from: u64, to: u64) -> u64 {
    let ahead = to.wrapping_sub(from).cast_signed();
    ((ahead << 1) ^ (ahead >> 63)).cast_unsigned()
}

fn at_distance(from: u64, distance: u64) -> u64 {
    let ahead = (distance >> 1).cast_signed() ^ -(distance & 1).cast_signed();
    from.wrapping_add(ahead.cast_unsigned())
}

fn write(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn read(bytes: &mut &[u8]) -> Result<u64, MembersError> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or(MembersError)?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if part << shift >> shift != part {
            return Err(MembersError);
        }
        number |= part << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(MembersError)
}

fn read_u32(bytes: &mut &[u8]) -> Result<u32, MembersError> {
    u32::try_from(read(bytes)?).map_err(|_| MembersError)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::members::{Members, Ranks};

    fn members() -> impl Strategy<Value = Members> {
        let one = (1_u32..100_000, any::<u64>().prop_map(|n| n >> 1));
        prop::collection::vec(one, 0..200).prop_map(|steps| {
            let mut process = 0;
            let members = steps.into_iter().map(move |(step, incarnation)| {
                process += step;
                (process, incarnation)
            });
            members.collect()
        })
    }

    fn ranks() -> impl Strategy<Value = Ranks> {
        let one = prop::option::of(0_u32..2_000_000_000);
        prop::collection::vec(one, 0..200).prop_map(|ranks| ranks.into_iter().collect())
    }

    #[test]
    fn scattered_members_take_few_bytes() {
        let scattered: Members =
            (0..16_384_u32).map(|n| (n, u64::from(n.wrapping_mul(7_919) % 16_384))).collect();
        let bytes = rmp_serde::to_vec_named(&scattered).unwrap();
        assert!(bytes.len() < 6 * 16_384, "{}", bytes.len());
    }

    #[test]
    fn a_list_of_maps_is_read_too() {
        let members: Members = [(3, 9), (4, 10), (8, 2)].into_iter().collect();
        let stretches: Vec<MemberStretch> = members.clone().into();
        let bytes = rmp_serde::to_vec_named(&stretches).unwrap();
        assert_eq!(rmp_serde::from_slice::<Members>(&bytes).unwrap(), members);
        let text = serde_json::to_string(&members).unwrap();
        assert_eq!(
            text,
            r#"[{"process":3,"incarnation":9,"count":2},{"process":8,"incarnation":2}]"#
        );
        assert_eq!(serde_json::from_str::<Members>(&text).unwrap(), members);
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(members in members(), ranks in ranks()) {
            let bytes = rmp_serde::to_vec_named(&members).unwrap();
            prop_assert_eq!(rmp_serde::from_slice::<Members>(&bytes).unwrap(), members);
            let bytes = rmp_serde::to_vec_named(&ranks).unwrap();
            prop_assert_eq!(rmp_serde::from_slice::<Ranks>(&bytes).unwrap(), ranks);
        }

        /// Bytes from outside are read or refused, never a panic.
        #[test]
        fn rubbish_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let packed = rmp_serde::to_vec_named(&serde_bytes::Bytes::new(&bytes)).unwrap();
            let _ = rmp_serde::from_slice::<Members>(&packed);
            let _ = rmp_serde::from_slice::<Ranks>(&packed);
        }
    }
}
