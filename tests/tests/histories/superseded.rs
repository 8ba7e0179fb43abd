//! A process that was counted, and is superseded before it got the result.

use std::time::Duration;

use holdfast_api::{Among, Policy, Role, Scope};
use holdfast_chaos::History;
use holdfast_chaos::history::{Meaning, Verb, What};
use holdfast_client::Deadline;
use holdfast_tests::cluster::name_of;
use holdfast_tests::histories::plan::{Calls, EXIT_ENDED, RankPlan, Step, Verbs};
use holdfast_tests::patience::{eventually, soon};
use holdfast_tests::process::Process as Child;
use holdfast_tests::{Cluster, binaries};
use holdfast_trainer_shim::{Host, HostOptions, Join, Process};
use nix::sys::signal::Signal;

const JOB: &str = "superseded";
const RUN: &str = "r1";

/// Longer than a rank is paused.
const TTL: Duration = Duration::from_secs(60);

fn policy() -> Policy {
    Policy { world: 2, ..Policy::default() }
}

async fn join(cluster: &Cluster, process: u32, takeover: bool) -> Process {
    let scope = Scope { job: name_of(JOB), run: Some(name_of(RUN)) };
    let options = HostOptions { ttl: TTL, open_run: true, ..HostOptions::default() };
    let host = Host::grant(cluster.client(), scope, options).await.expect("a lease");
    let join = Join { process: Some(process), policy: policy(), takeover, ..Join::default() };
    host.join(join).await.expect("a life")
}

/// The round has closed with it, so its call was not void; and the values, which
/// the others have, are no longer kept for it, since its incarnation is over.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_ends_before_it_has_what_was_gathered_is_fenced() {
    let cluster = Cluster::start(1).await;
    let folder = cluster.folder().join("history");
    std::fs::create_dir(&folder).expect("the folder for temporary files can be written");
    let steps = vec![Step::Gather];
    let plan = RankPlan {
        store: vec![cluster.address(1).to_owned()],
        job: JOB.to_owned(),
        run: RUN.to_owned(),
        process: 0,
        role: Role::Active,
        takeover: false,
        agent: None,
        ttl: TTL,
        program: "rank".to_owned(),
        folder: folder.clone(),
        calls: Calls {
            verbs: Verbs::Iterations { steps, patience: Duration::from_secs(600) },
            pause: Duration::ZERO,
            policy: policy(),
            desertion: 0.0,
            evict_after: None,
        },
    };
    let mut command = binaries::command("recording-rank");
    command.arg(serde_json::to_string(&plan).expect("a plan is plain data"));
    let mut rank = Child::start("the rank", command, &cluster.folder().join("rank.log"));
    let other = join(&cluster, 1, false).await;
    let begun = other.advance(None, soon()).await.expect("an iteration");

    // It waits for the other one, and does not notice its arrival.
    let waits = eventually("the rank in the gather", async || {
        let waiting = other.waiting("gather:state", soon()).await.expect("open rounds");
        waiting.into_iter().find(|members| members.find(0).is_some())
    });
    waits.await;
    rank.signal(Signal::SIGSTOP);
    let among = Among::Generation(begun.generation);
    let gathered = other.gather("state", "mine".into(), among, soon()).await.expect("all values");
    assert_eq!(gathered.values.len(), 2);
    join(&cluster, 0, true).await;
    // With its next call it acknowledges what it wanted of the former.
    other.live_processes("alone", Among::Set(vec![1]), Deadline::never()).await.expect("itself");

    rank.signal(Signal::SIGCONT);
    assert_eq!(rank.ended().await.code(), Some(EXIT_ENDED.into()), "{}", rank.said());
    let history = History::read(&folder).expect("what was recorded can be read");
    let mut records = history.programs["rank"].iter();
    let gathers = |what: &What| matches!(what, What::Call(call) if call.round.verb == Verb::Gather);
    records.find(|record| gathers(&record.what)).expect("it has called");
    let came_to = &records.next().expect("it was answered").what;
    assert!(matches!(came_to, What::Failed { meaning: Meaning::Ended, .. }), "{came_to:?}");
}
