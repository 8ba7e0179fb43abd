//! Fair shares of the sessions and of the leases of a cluster: a job holds at most as many as are
//! free (the dynamic threshold of Choudhury and Hahne 1998). One that takes all it can gets half
//! of them, the next one half of the rest, and so on. Shares hold between jobs: a client that may
//! name many jobs has the shares of all of them.

use holdfast_api::version::SHARES_LEVEL;
use holdfast_api::{Name, Refusal};
use imbl::OrdMap;

/// How many each job holds. Derived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Those without a job count together. No count is 0.
    by_job: OrdMap<Option<Name>, u64>,
    all: u64,
}

impl Shares {
    /// Whether a job may hold one more, by this limit.
    pub fn room_for_one(
        &self,
        job: Option<&Name>,
        (what, limit): (&str, u64),
        level: u32,
    ) -> Result<(), Refusal> {
        let full = |held, job: Option<&Name>| {
            let (what, job) = (what.to_owned(), job.cloned());
            Err(Refusal::ClusterFull { what, limit, held, job })
        };
        let (held, free) = (self.held(job), limit.saturating_sub(self.all));
        if free == 0 {
            return full(None, None);
        }
        if level >= SHARES_LEVEL && held >= free {
            return full(Some(held), job);
        }
        Ok(())
    }

    /// The shares of all other jobs.
    pub fn without(&self, job: &Name) -> Shares {
        let mut others = self.clone();
        others.all -= others.by_job.remove(&Some(job.clone())).unwrap_or(0);
        others
    }

    pub fn take(&mut self, job: Option<&Name>) {
        let held = self.held(job);
        self.by_job.insert(job.cloned(), held + 1);
        self.all += 1;
    }

    pub fn give_back(&mut self, job: Option<&Name>) {
        match self.held(job) {
            ..=1 => self.by_job.remove(&job.cloned()),
            held => self.by_job.insert(job.cloned(), held - 1),
        };
        self.all -= 1;
    }

    fn held(&self, job: Option<&Name>) -> u64 {
        self.by_job.get(&job.cloned()).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::version::FEATURE_LEVEL;

    use super::*;

    const LIMIT: (&str, u64) = ("places_max", 100);

    fn job(name: &str) -> Option<Name> {
        Some(name.parse().unwrap())
    }

    /// Takes as many as the job may have.
    fn fill(shares: &mut Shares, job: Option<&Name>, level: u32) -> u64 {
        let mut taken = 0;
        while shares.room_for_one(job, LIMIT, level).is_ok() {
            shares.take(job);
            taken += 1;
        }
        taken
    }

    #[test]
    fn however_much_some_take_the_next_finds_a_place() {
        let mut shares = Shares::default();
        let taken = ["a", "b", "c"].map(|name| {
            let job = job(name);
            fill(&mut shares, job.as_ref(), FEATURE_LEVEL)
        });
        assert_eq!(taken, [50, 25, 13]);
        assert_eq!(fill(&mut shares, None, FEATURE_LEVEL), 6, "who names no job is one more");
        let refusal = shares.room_for_one(job("a").as_ref(), LIMIT, FEATURE_LEVEL).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "job a holds 50 of 100 (places_max), and may hold no more than are free; close what is no longer used, or raise the limit"
        );
        assert!(shares.room_for_one(job("d").as_ref(), LIMIT, FEATURE_LEVEL).is_ok());
    }

    #[test]
    fn what_is_given_back_is_free_for_all() {
        let (mut shares, a, b) = (Shares::default(), job("a"), job("b"));
        let of_a = fill(&mut shares, a.as_ref(), FEATURE_LEVEL);
        let of_b = fill(&mut shares, b.as_ref(), FEATURE_LEVEL);
        let others = shares.without(a.as_ref().unwrap());
        (0..of_a).for_each(|_| shares.give_back(a.as_ref()));
        assert_eq!(shares, others);
        assert_eq!(of_b + fill(&mut shares, b.as_ref(), FEATURE_LEVEL), 50);
        (0..50).for_each(|_| shares.give_back(b.as_ref()));
        assert_eq!(shares, Shares::default());
    }

    #[test]
    fn below_the_level_one_job_may_hold_all() {
        let (mut shares, a, b) = (Shares::default(), job("a"), job("b"));
        assert_eq!(fill(&mut shares, a.as_ref(), SHARES_LEVEL - 1), 100);
        let refusal = shares.room_for_one(b.as_ref(), LIMIT, SHARES_LEVEL - 1).unwrap_err();
        let message = refusal.to_string();
        assert!(message.starts_with("cluster limit reached: places_max is 100; "), "{message}");
        // There may be more than the limit allows now.
        assert!(shares.room_for_one(b.as_ref(), ("places_max", 7), FEATURE_LEVEL).is_err());
    }
}
