//! Bytes of waits and watches parked on this node, in total and for each job.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_api::{Budget, Name, Problem};
use parking_lot::Mutex;

/// When a request that found no room may be retried.
const RETRY_AFTER_MS: u64 = 1_000;

/// What a job may take even when others take everything: no other job can keep it
/// out.
const ALWAYS_BYTES: u64 = 64 * 1024;

/// Bytes taken by each job.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: u64,
    /// Jobs that do not exist count as one.
    by_job: HashMap<Option<Name>, u64>,
}

/// Room for something parked; dropping it returns the room.
#[derive(Debug)]
pub(crate) struct Room {
    parking: Arc<Parking>,
    job: Option<Name>,
    bytes: u64,
}

impl Parking {
    /// Takes this many bytes for a job; `None` stands for all jobs that do not exist.
    ///
    /// # Errors
    /// The job, or all jobs together, would take more than the budget gives them.
    pub(crate) fn take(
        self: &Arc<Self>,
        job: Option<&Name>,
        bytes: u64,
        budget: &Budget,
    ) -> Result<Room, Problem> {
        let mut taken = self.taken.lock();
        let job = job.cloned();
        let of_job = taken.by_job.get(&job).copied().unwrap_or(0) + bytes;
        let all = taken.all + bytes;
        for (whose, would_be, name, limit) in [
            ("this job", of_job, "job_wait_bytes_max", budget.job_wait_bytes_max),
            ("all jobs", all, "wait_bytes_max", budget.wait_bytes_max),
        ] {
            if would_be > limit && of_job > ALWAYS_BYTES {
                let message = format!(
                    "the waits and watches of {whose} would hold {would_be} bytes, and budget.{name} is {limit}: wait for fewer keys at once, or retry when others have ended"
                );
                return Err(Problem::overloaded(message).after_ms(RETRY_AFTER_MS));
            }
        }
        taken.all = all;
        taken.by_job.insert(job.clone(), of_job);
        Ok(Room { parking: self.clone(), job, bytes })
    }

    /// Bytes of all jobs.
    pub(crate) fn bytes(&self) -> u64 {
        self.taken.lock().all
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut taken = self.parking.taken.lock();
        taken.all -= self.bytes;
        if let Some(of_job) = taken.by_job.get_mut(&self.job) {
            *of_job -= self.bytes;
            if *of_job == 0 {
                taken.by_job.remove(&self.job);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::Code;

    use super::*;

    #[test]
    fn a_job_leaves_room_for_the_others_and_gives_back_what_it_took() {
        const KIB: u64 = 1024;
        let parking = Arc::new(Parking::default());
        let (wait_bytes_max, job_wait_bytes_max) = (1_000 * KIB, 600 * KIB);
        let budget = Budget { wait_bytes_max, job_wait_bytes_max, ..Budget::default() };
        let [a, b, c] = ["a", "b", "c"].map(|name| name.parse().unwrap());
        let take = |job, bytes| parking.take(job, bytes, &budget);
        let first = take(Some(&a), 600 * KIB).unwrap();
        let refused = take(Some(&a), 1).unwrap_err();
        assert_eq!((refused.code, refused.retryable), (Code::Overloaded, true));
        assert!(refused.message.contains("job_wait_bytes_max is 614400"), "{refused}");
        let second = take(Some(&b), 400 * KIB).unwrap();
        let refused = take(Some(&b), 1).unwrap_err();
        assert!(refused.message.contains("budget.wait_bytes_max is 1024000"), "{refused}");
        // No job can keep another out, and jobs that do not exist count as one.
        let third = take(Some(&c), 64 * KIB).unwrap();
        let fourth = take(None, 64 * KIB).unwrap();
        assert_eq!([Some(&c), None].map(|job| take(job, 1).is_err()), [true, true]);
        drop((first, second, third, fourth));
        assert_eq!(parking.bytes(), 0);
        assert!(parking.taken.lock().by_job.is_empty());
    }
}
