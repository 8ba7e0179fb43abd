//! Small reads that follow each other in a frame: they are taken and answered together.

use std::iter::Peekable;

use holdfast_api::{Problem, Read, ReadAnswer, ReplyBody, Request as Asked, RequestBody, Scope};
use tokio::time::Instant;

use super::cost::of_read;
use super::{Connection, Place};
use crate::node::tenant::Tenant;

/// Most reads that are taken together, and most keys of them: applying waits for as long as all
/// are looked up.
const READS_MAX: usize = 64;
const KEYS_MAX: usize = 256;

/// Small reads of keys in the same scope, which follow one in its frame.
pub(super) struct Company {
    scope: Scope,
    others: Vec<(u64, Read)>,
}

/// The scope of a small read, and how many keys it looks up.
fn small(read: &Read) -> Option<(&Scope, usize)> {
    match read {
        Read::Get { scope, .. } | Read::QueueLength { scope, .. } => Some((scope, 1)),
        Read::Check { scope, keys } | Read::MultiGet { scope, keys } if keys.len() <= KEYS_MAX => {
            Some((scope, keys.len()))
        }
        _ => None,
    }
}

/// Takes those that go with a request out of the ones that follow it; none if there are none.
pub(super) fn company(
    first: &RequestBody,
    requests: &mut Peekable<impl Iterator<Item = Asked>>,
) -> Option<Company> {
    let RequestBody::Read { read, stale: false } = first else { return None };
    let (scope, mut keys) = small(read)?;
    let mut others = Vec::new();
    while let Some(Asked { body: RequestBody::Read { read, stale: false }, .. }) = requests.peek()
        && let Some((of, more)) = small(read)
        && of == scope
        && keys + more <= KEYS_MAX
        && others.len() + 1 < READS_MAX
        && let Some(Asked { id, body: RequestBody::Read { read, .. } }) = requests.next()
    {
        keys += more;
        others.push((id, read));
    }
    (!others.is_empty()).then(|| Company { scope: scope.clone(), others })
}

impl Connection {
    /// Takes small reads: room for all of them, one question to the other nodes, one look at the
    /// state.
    pub(super) async fn take_reads(
        &mut self,
        first: (u64, Read),
        Company { scope, others }: Company,
        patience: Instant,
    ) {
        let (ids, reads): (Vec<u64>, Vec<Read>) = std::iter::once(first).chain(others).unzip();
        self.becomes(Tenant::of(&scope));
        let cost: u32 = reads.iter().map(of_read).sum();
        let count = u32::try_from(ids.len()).expect("they are few");
        let replies = self.replies.clone();
        let place = match self.shared_room(cost, count, patience).await {
            Ok(place) => place,
            Err(problem) => {
                for id in ids {
                    replies.send(id, ReplyBody::Problem(problem.clone()), None);
                }
                return;
            }
        };
        reads.iter().for_each(|_| self.app.metrics().asked());
        self.node.acting(&self.caller).submit_reads(&scope, reads, move |result| {
            let bodies = bodies(result, ids.len());
            let mut place = Some(place);
            for (left, (id, body)) in (0..ids.len()).rev().zip(ids.into_iter().zip(bodies)) {
                let own = match left {
                    0 => place.take(),
                    _ => place.as_mut().and_then(Place::split_off),
                };
                replies.send(id, body, own);
            }
        });
    }
}

/// The replies to so many reads.
fn bodies(result: Result<Vec<ReadAnswer>, Problem>, count: usize) -> Vec<ReplyBody> {
    match result {
        Ok(answers) => answers.into_iter().map(ReplyBody::Read).collect(),
        Err(problem) => vec![ReplyBody::Problem(problem); count],
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::Blob;

    use super::*;

    fn scope(job: &str) -> Scope {
        Scope { job: job.parse().unwrap(), run: None }
    }

    fn get(job: &str) -> RequestBody {
        RequestBody::Read { read: Read::Get { scope: scope(job), key: "k".into() }, stale: false }
    }

    fn check(job: &str, count: usize) -> RequestBody {
        let keys = vec![Blob::from("k"); count];
        RequestBody::Read { read: Read::Check { scope: scope(job), keys }, stale: false }
    }

    /// How many requests are taken together each time.
    fn taken(bodies: impl IntoIterator<Item = RequestBody>) -> Vec<usize> {
        let asked = |(id, body)| Asked { id, body };
        let mut requests = (1..).zip(bodies).map(asked).peekable();
        let (mut taken, mut last) = (Vec::new(), 0);
        while let Some(Asked { id, body }) = requests.next() {
            assert_eq!(id, last + 1, "none is left out");
            let others = company(&body, &mut requests).map_or_else(Vec::new, |them| them.others);
            last = others.last().map_or(id, |(id, _)| *id);
            taken.push(1 + others.len());
        }
        taken
    }

    #[test]
    fn small_reads_of_one_scope_that_follow_each_other_are_taken_together() {
        let stale = RequestBody::Read { read: Read::Jobs, stale: true };
        let bodies = [
            get("a"),
            check("a", 2),
            get("b"),
            get("a"),
            stale,
            RequestBody::Status,
            get("a"),
            get("a"),
        ];
        assert_eq!(taken(bodies), [2, 1, 1, 1, 1, 2]);
    }

    #[test]
    fn what_is_taken_together_is_bounded() {
        assert_eq!(taken(vec![get("a"); READS_MAX + 2]), [READS_MAX, 2]);
        let half = || check("a", KEYS_MAX / 2);
        assert_eq!(taken([half(), half(), get("a")]), [2, 1]);
        assert_eq!(taken([check("a", KEYS_MAX + 1), get("a"), get("a")]), [1, 2]);
    }
}
