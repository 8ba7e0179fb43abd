//! How long a lease certainly holds: counted from the sending of the last
//! renewal that was acknowledged, never from the answer.

use std::time::Duration;

use tokio::sync::watch;

/// Part of the TTL that is kept back: clocks drift, and what is delivered takes
/// a moment to be used.
const MARGIN_DIVISOR: u32 = 8;

/// How long after its sending a renewal keeps a lease for certain.
pub(crate) fn certain(ttl: Duration) -> Duration {
    ttl - ttl / MARGIN_DIVISOR
}

/// Time since the host was started, sleep included.
pub fn boot_time() -> Duration {
    // Through libc, where a simulation has clocks of its own.
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME);
    now.map(Duration::from).expect("every supported kernel has this clock")
}

/// Until when, in [`boot_time`], the lease certainly holds.
#[derive(Debug)]
pub(crate) struct Validity {
    ttl: Duration,
    until: watch::Sender<Duration>,
}

impl Validity {
    /// A lease that was asked for at this time, and granted.
    pub fn granted(asked_at: Duration, ttl: Duration) -> Validity {
        let validity = Validity { ttl, until: watch::Sender::new(Duration::ZERO) };
        validity.renewed(asked_at);
        validity
    }

    /// A lease that another process holds, and which reports until when it holds.
    pub fn reported(until: Duration, ttl: Duration) -> Validity {
        Validity { ttl, until: watch::Sender::new(until) }
    }

    /// A renewal sent at this time was acknowledged.
    pub fn renewed(&self, sent_at: Duration) {
        self.extend(sent_at + certain(self.ttl));
    }

    /// The TTL of the lease.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// It holds until then, at least.
    pub fn extend(&self, until: Duration) {
        self.until.send_if_modified(|known| {
            let later = until > *known;
            *known = until.max(*known);
            later
        });
    }

    /// How long it still holds at this time; nothing once it may be over.
    pub fn left(&self, now: Duration) -> Option<Duration> {
        let until = *self.until.borrow();
        until.checked_sub(now).filter(|left| !left.is_zero())
    }

    /// Hears of every extension.
    pub fn subscribe(&self) -> watch::Receiver<Duration> {
        self.until.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_from_the_sending_and_keeps_a_margin() {
        let at = Duration::from_millis;
        let validity = Validity::granted(at(1_000), at(8_000));
        assert_eq!(validity.left(at(1_000)), Some(at(7_000)));
        assert_eq!(validity.left(at(8_000)), None);
        validity.renewed(at(5_000));
        validity.renewed(at(3_000));
        assert_eq!(validity.left(at(8_000)), Some(at(4_000)), "a late answer takes nothing back");
        assert_eq!(validity.left(at(12_000)), None);
    }

    #[test]
    fn the_clock_goes_on() {
        let first = boot_time();
        assert!(first > Duration::ZERO && boot_time() >= first);
    }
}
