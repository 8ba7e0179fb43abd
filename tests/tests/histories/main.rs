//! Rounds of real 4-process jobs, with ranks, agents and nodes killed, paused
//! and started again, judged by what the ranks saw; and the same recordings
//! with one lie in them.

mod lies;
mod superseded;

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast_chaos::check::Sort;
use holdfast_chaos::{History, Report};
use holdfast_tests::Cluster;
use holdfast_tests::histories::{Lap, PROVEN, lap};

use crate::lies::LIES;

const SEED: u64 = 20_260_801;
const JOBS: u32 = 10;
const LAPS_MAX: u64 = 6;

#[tokio::test(flavor = "multi_thread")]
async fn no_round_names_the_dead_or_leaves_out_the_living() {
    let mut cluster = Cluster::start(3).await;
    let folder = tempfile::Builder::new().prefix("holdfast-histories-").tempdir();
    let folder = folder.expect("the folder for temporary files can be written").keep();
    println!("seed {SEED}; the histories are in {}", folder.display());
    let (mut report, mut found) = (Report::default(), BTreeSet::new());
    let mut laps = 0;
    // On a machine that is busy otherwise, one may see little, or have no place for a lie.
    while !unseen(&report).is_empty() || found.len() < LIES.len() {
        assert!(
            laps < LAPS_MAX,
            "unseen: {:?}; lies have no place but {found:?}; seed {SEED}\n{report}",
            unseen(&report)
        );
        let name = format!("short{laps}");
        let size = Lap {
            name: name.clone(),
            jobs: JOBS,
            lasts: Duration::from_secs(20),
            pause: Duration::from_millis(100),
            node_faults_every: Duration::from_secs(4),
            seed: SEED + laps,
            folder: folder.clone(),
        };
        report.add(lap(&mut cluster, &size).await);
        println!("{report}");
        assert_eq!(report.violations, [], "seed {SEED}; histories in {}", folder.display());
        for job in 0..JOBS {
            let history = History::read(&folder.join(format!("{name}-{job}")));
            found.extend(lies::found(&history.expect("it was judged"), &found));
        }
        println!("lies found: {found:?}");
        laps += 1;
    }
    // Folders of passed runs are not needed any more.
    std::fs::remove_dir_all(folder).expect("the folder was made here");
}

/// Required closings that were not seen yet.
fn unseen(report: &Report) -> Vec<String> {
    let kinds = PROVEN.iter().filter(|kind| !report.kinds.contains_key(kind));
    let sorts = Sort::ALL.iter().filter(|sort| !report.sorts.contains_key(sort));
    kinds.map(ToString::to_string).chain(sorts.map(ToString::to_string)).collect()
}
