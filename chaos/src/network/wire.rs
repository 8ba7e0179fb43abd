//! Pure: how packets travel on a wire that is not well, and what became of them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

/// Most packets on their way on one wire, as many as netem has.
const PACKETS_MAX: usize = 1_000;
/// A header of IPv4 without options.
const HEADER_LENGTH: usize = 20;

/// How packets travel: as ever by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    /// How long a packet is on its way.
    pub delay: Duration,
    /// How much longer or shorter it may be.
    pub jitter: Duration,
    /// Percentage of packets that are not delayed, and so overtake others.
    pub reorder_percent: u8,
    /// Percentage of packets that arrive twice.
    pub duplicate_percent: u8,
}

impl Shape {
    /// The same in the words of `tc netem`.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if !self.delay.is_zero() {
            words.extend(["delay".to_owned(), format!("{}ms", self.delay.as_millis())]);
            if !self.jitter.is_zero() {
                words.push(format!("{}ms", self.jitter.as_millis()));
            }
        }
        for (word, percent) in
            [("reorder", self.reorder_percent), ("duplicate", self.duplicate_percent)]
        {
            if percent > 0 {
                words.extend([word.to_owned(), format!("{percent}%")]);
            }
        }
        words
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(" "))
    }
}

/// What became of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Carried {
    /// Packets that were sent.
    pub packets: u64,
    /// Packets that were put before others.
    pub reordered: u64,
    /// Packets that were doubled.
    pub duplicated: u64,
    /// Packets that arrived, with the doubled ones.
    pub arrived: u64,
    /// How long all of these were on their way, one after the other.
    pub travelled: Duration,
}

impl Carried {
    /// How long a packet was on its way, on average.
    pub fn mean(&self) -> Duration {
        self.travelled.div_f64(self.arrived.max(1) as f64)
    }

    /// Adds what became of packets of another wire.
    pub fn add(&mut self, other: Carried) {
        self.packets += other.packets;
        self.reordered += other.reordered;
        self.duplicated += other.duplicated;
        self.arrived += other.arrived;
        self.travelled += other.travelled;
    }
}

/// The wire of one sender, to all receivers.
#[derive(Debug)]
pub struct Wire {
    shape: Shape,
    random: StdRng,
    /// By the time of arrival; of one time in the order in which they were sent.
    under_way: BTreeMap<(Instant, u64), Packet>,
    /// Packets so far, with the doubled ones.
    count: u64,
    /// When the last packet to each receiver arrives.
    last: BTreeMap<Ipv4Addr, Instant>,
    carried: Carried,
    /// Packets that their receivers did not take.
    lost: BTreeMap<Ipv4Addr, u64>,
}

/// A packet on its way.
#[derive(Debug)]
pub struct Packet {
    /// Address of its receiver.
    pub to: Ipv4Addr,
    /// All of it, with its header.
    pub bytes: Vec<u8>,
    sent: Instant,
}

impl Wire {
    /// A wire without packets. All that happens by chance follows from the seed.
    pub fn new(shape: Shape, seed: u64) -> Wire {
        Wire {
            shape,
            random: StdRng::seed_from_u64(seed),
            under_way: BTreeMap::new(),
            count: 0,
            last: BTreeMap::new(),
            carried: Carried::default(),
            lost: BTreeMap::new(),
        }
    }

    /// Whether another packet can be sent.
    pub fn has_room(&self) -> bool {
        self.under_way.len() < PACKETS_MAX
    }

    /// Sends a packet.
    pub fn send(&mut self, to: Ipv4Addr, bytes: &[u8], now: Instant) {
        let Shape { delay, jitter, reorder_percent, duplicate_percent } = self.shape;
        // All are drawn for each packet: one answer does not shift the next ones.
        let delay = self.random.random_range(delay.saturating_sub(jitter)..=delay + jitter);
        let is_first = self.random.random_range(0..100) < reorder_percent;
        let is_double = self.random.random_range(0..100) < duplicate_percent;
        let arrives = if is_first { now } else { now + delay };
        let last = self.last.entry(to).or_insert(arrives);
        self.carried.packets += 1;
        // Only packets to one receiver have an order.
        self.carried.reordered += u64::from(*last > arrives);
        *last = arrives.max(*last);
        self.carried.duplicated += u64::from(is_double);
        for _ in 0..=u8::from(is_double) {
            let packet = Packet { to, bytes: bytes.to_owned(), sent: now };
            self.under_way.insert((arrives, self.count), packet);
            self.count += 1;
        }
    }

    /// When the next packet arrives; none if none is under way.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.under_way.first_key_value().map(|((arrives, _), _)| *arrives)
    }

    /// Packets that come to their receivers by now, in their order.
    pub fn arrivals(&mut self, now: Instant) -> Vec<Packet> {
        let mut arrived = Vec::new();
        while let Some(first) = self.under_way.first_entry()
            && first.key().0 <= now
        {
            arrived.push(first.remove());
        }
        arrived
    }

    /// A receiver has taken a packet.
    pub fn arrived(&mut self, packet: &Packet, now: Instant) {
        self.carried.arrived += 1;
        self.carried.travelled += now.saturating_duration_since(packet.sent);
    }

    /// A packet could not be given to this receiver.
    pub fn lost(&mut self, to: Ipv4Addr) {
        *self.lost.entry(to).or_default() += 1;
    }

    /// How many packets could not be given to the receivers of which that holds.
    pub fn count_lost(&self, is: impl Fn(Ipv4Addr) -> bool) -> u64 {
        self.lost.iter().filter(|(to, _)| is(**to)).map(|(_, count)| count).sum()
    }

    /// What became of its packets so far.
    pub fn carried(&self) -> Carried {
        self.carried
    }
}

/// Where a packet of IPv4 goes; none if it is of another protocol.
pub fn destination(packet: &[u8]) -> Option<Ipv4Addr> {
    let header = packet.first_chunk::<HEADER_LENGTH>()?;
    let is_ipv4 = header[0] >> 4 == 4;
    is_ipv4.then(|| Ipv4Addr::new(header[16], header[17], header[18], header[19]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Shape = Shape {
        delay: Duration::from_millis(75),
        jitter: Duration::from_millis(50),
        reorder_percent: 0,
        duplicate_percent: 0,
    };
    const PACKETS: u64 = 400;
    const ONE: Ipv4Addr = Ipv4Addr::new(198, 18, 77, 1);
    const OTHER: Ipv4Addr = Ipv4Addr::new(198, 18, 77, 2);

    fn number(n: u64) -> Vec<u8> {
        n.to_be_bytes().to_vec()
    }

    /// Sends packets, one a millisecond; answers them with the milliseconds of their arrival.
    fn sent(shape: Shape, seed: u64) -> (Vec<(u64, Vec<u8>)>, Carried) {
        let (began, mut wire) = (Instant::now(), Wire::new(shape, seed));
        let mut arrived = Vec::new();
        for ms in 0..PACKETS + 200 {
            let now = began + Duration::from_millis(ms);
            if ms < PACKETS {
                wire.send(ONE, &number(ms), now);
            }
            for packet in wire.arrivals(now) {
                wire.arrived(&packet, now);
                arrived.push((ms, packet.bytes));
            }
        }
        assert_eq!(wire.next_arrival(), None);
        (arrived, wire.carried())
    }

    fn value(packet: &[u8]) -> u64 {
        u64::from_be_bytes(packet.try_into().unwrap())
    }

    #[test]
    fn the_words_of_netem_say_the_same() {
        assert_eq!(LATE.to_string(), "delay 75ms 50ms");
        let first =
            Shape { delay: Duration::from_millis(10), reorder_percent: 25, ..Shape::default() };
        assert_eq!(first.to_string(), "delay 10ms reorder 25%");
        let doubled = Shape { duplicate_percent: 20, ..Shape::default() };
        assert_eq!(doubled.words(), ["duplicate", "20%"]);
    }

    #[test]
    fn a_wire_that_is_well_delivers_at_once_and_in_order() {
        let (arrived, carried) = sent(Shape::default(), 1);
        let all: Vec<(u64, Vec<u8>)> = (0..PACKETS).map(|ms| (ms, number(ms))).collect();
        assert_eq!(arrived, all);
        assert_eq!((carried.reordered, carried.duplicated), (0, 0));
        assert_eq!((carried.packets, carried.travelled), (PACKETS, Duration::ZERO));
    }

    #[test]
    fn a_delayed_packet_arrives_within_the_bounds_and_once() {
        let (arrived, carried) = sent(LATE, 7);
        for (at, packet) in &arrived {
            // Looked for once a millisecond.
            assert!((25..=126).contains(&(at - value(packet))), "{at}");
        }
        let mut numbers: Vec<u64> = arrived.iter().map(|(_, packet)| value(packet)).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..PACKETS).collect::<Vec<_>>());
        assert!((60..=90).contains(&carried.mean().as_millis()), "{carried:?}");
    }

    #[test]
    fn packets_that_are_not_delayed_overtake_those_that_are() {
        let shape =
            Shape { delay: Duration::from_millis(10), reorder_percent: 25, ..Shape::default() };
        let (arrived, carried) = sent(shape, 3);
        let early = arrived.iter().filter(|(at, packet)| *at == value(packet)).count() as u64;
        assert!((60..=140).contains(&early), "{early}");
        // The first packets may find nobody to overtake.
        assert!(carried.reordered > early - 5 && carried.reordered <= early, "{carried:?}");
        assert!(arrived.windows(2).any(|pair| value(&pair[0].1) > value(&pair[1].1)));
    }

    #[test]
    fn packets_to_different_receivers_do_not_overtake_each_other() {
        let all_first = Shape { reorder_percent: 100, ..LATE };
        let (now, mut wire) = (Instant::now(), Wire::new(LATE, 1));
        wire.send(ONE, b"late", now);
        wire.shape = all_first;
        wire.send(OTHER, b"first", now);
        assert_eq!(wire.carried().reordered, 0);
        wire.send(ONE, b"first", now);
        assert_eq!(wire.carried().reordered, 1);
    }

    #[test]
    fn a_packet_that_nobody_takes_is_lost_and_did_not_arrive() {
        let (now, mut wire) = (Instant::now(), Wire::new(Shape::default(), 1));
        wire.send(ONE, b"packet", now);
        for packet in wire.arrivals(now) {
            wire.lost(packet.to);
        }
        assert_eq!((wire.carried().packets, wire.carried().arrived), (1, 0));
        assert_eq!(wire.count_lost(|to| to == ONE), 1);
        assert_eq!(wire.count_lost(|to| to == OTHER), 0);
    }

    #[test]
    fn a_doubled_packet_arrives_twice_with_the_same_bytes() {
        let shape = Shape { duplicate_percent: 20, ..Shape::default() };
        let (arrived, carried) = sent(shape, 5);
        let twice = arrived.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64;
        assert!((40..=120).contains(&twice), "{twice}");
        assert_eq!((carried.duplicated, carried.arrived), (twice, PACKETS + twice));
        assert_eq!(carried.reordered, 0);
    }

    #[test]
    fn what_happens_by_chance_follows_from_the_seed() {
        assert_eq!(sent(LATE, 11), sent(LATE, 11));
        assert_ne!(sent(LATE, 11).0, sent(LATE, 12).0);
    }

    #[test]
    fn a_wire_carries_a_bounded_number_of_packets() {
        let (now, mut wire) = (Instant::now(), Wire::new(LATE, 1));
        while wire.has_room() {
            wire.send(ONE, b"packet", now);
        }
        assert_eq!(wire.carried().packets, PACKETS_MAX as u64);
        assert_eq!(wire.arrivals(now + Duration::from_secs(1)).len(), PACKETS_MAX);
        assert!(wire.has_room());
    }

    #[test]
    fn only_a_packet_of_ipv4_has_a_destination() {
        let mut packet = [0; 28];
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&[198, 18, 77, 3]);
        assert_eq!(destination(&packet), Some(Ipv4Addr::new(198, 18, 77, 3)));
        assert_eq!(destination(&packet[..HEADER_LENGTH - 1]), None);
        packet[0] = 0x60;
        assert_eq!(destination(&packet), None);
    }
}
