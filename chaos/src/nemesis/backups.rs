//! A backup that is made under load, and what a cluster restored from it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdfast_api::{Blob, Scope};
use holdfast_client::{Client, Deadline, Keys, Options};
use rand::Rng;

use super::{Injected, Stage, Wound};
use crate::cluster::PATIENCE;
use crate::run::drive::JOB;
use crate::workload::Workload;

/// A key that no client uses: what it is set to before the backup, and behind it.
const MARKER: &str = "backup-restore";

type Sums = BTreeMap<Blob, i64>;

/// What was acknowledged before a backup was begun is in it, and nothing that was begun when
/// it was made: the restored cluster is asked for both.
pub(super) async fn restore(stage: &mut Stage<'_>) -> anyhow::Result<Injected> {
    let scope = Scope { job: JOB.parse()?, run: None };
    let client = stage.cluster.client();
    let keys = client.keys(scope.clone());
    let number = stage.random.next_u32();
    let (marker, behind) = (format!("before {number}"), format!("behind {number}"));
    keys.put(MARKER, marker.as_str(), soon()).await?;
    let before = sums(&keys).await?;
    let mut after = Sums::new();
    let made = async || {
        after = sums(&keys).await?;
        keys.put(MARKER, behind.as_str(), soon()).await?;
        anyhow::Ok(())
    };
    let copy = stage.cluster.back_up_and_restore(made).await;
    client.close().await;
    let copy = copy?;
    let client = Client::new(Options::new(vec![copy.address.clone()]));
    let restored = client.keys(scope);
    let found = restored.get(MARKER, soon()).await?.and_then(|entry| entry.value);
    let held = sums(&restored).await?;
    client.close().await;
    let mut wrong = wrong_sums(&before, &held, &after);
    if found != Some(marker.as_str().into()) {
        wrong.push(format!("{MARKER} is {found:?} in it, and was {marker:?}"));
    }
    if !wrong.is_empty() {
        stage
            .cluster
            .complain(format!("a backup does not hold what it must: {}", wrong.join("; ")));
    }
    let evidence = format!("the restored cluster holds {} counters and {marker:?}", held.len());
    let what = "made a backup under load, and restored it into a cluster of its own".to_owned();
    let (evidence, wound) = (Some(evidence).filter(|_| wrong.is_empty()), Wound::Healed);
    Ok(Injected { what, evidence, wound, hold: Duration::ZERO, struck: None })
}

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

/// The counters, at one revision.
async fn sums(keys: &Keys) -> anyhow::Result<Sums> {
    let prefix = format!("{}/", Workload::Counter);
    let (mut sums, mut after) = (Sums::new(), None);
    loop {
        let page = keys.list(prefix.as_str(), after, 0, soon()).await?;
        for entry in page.entries {
            let value = entry.value.unwrap_or_default();
            sums.insert(entry.key, String::from_utf8_lossy(value.as_ref()).parse()?);
        }
        after = page.next;
        if after.is_none() {
            return Ok(sums);
        }
    }
}

/// Counters that lack what was acknowledged before, or hold what was added later.
fn wrong_sums(before: &Sums, held: &Sums, after: &Sums) -> Vec<String> {
    let sum = |sums: &Sums, key: &Blob| sums.get(key).copied().unwrap_or(0);
    let keys: BTreeSet<&Blob> = before.keys().chain(held.keys()).collect();
    let is_wrong = |key: &&Blob| {
        let held = sum(held, key);
        held < sum(before, key) || held > sum(after, key)
    };
    let text = |key: &Blob| {
        let (from, is, to) = (sum(before, key), sum(held, key), sum(after, key));
        format!("{key} is {is}, and was {from} before and {to} after it")
    };
    keys.into_iter().filter(is_wrong).map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_lies_between_those_before_and_behind_the_backup() {
        let of = |a, b| Sums::from([("a".into(), a), ("b".into(), b)]);
        assert_eq!(wrong_sums(&of(1, 5), &of(2, 5), &of(3, 5)), Vec::<String>::new());
        assert_eq!(wrong_sums(&of(1, 5), &of(0, 5), &of(3, 5)).len(), 1);
        assert_eq!(wrong_sums(&of(1, 5), &of(4, 6), &of(3, 5)).len(), 2);
        assert_eq!(wrong_sums(&of(1, 5), &Sums::new(), &of(3, 5)).len(), 2);
        assert_eq!(wrong_sums(&Sums::new(), &of(1, 0), &Sums::new()).len(), 1);
    }
}
