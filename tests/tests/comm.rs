//! Operators' view of held rounds, and their actions on them: communicators and locks
//! made over plain HTTP, looked at with the command line.

use holdfast_tests::Cluster;
use holdfast_tests::coordination::{arrive, lease, post, register};
use holdfast_tests::http::{get_until_served, send_until_served};
use http::Method;
use serde_json::{Value, json};

/// No time of these tests comes by itself.
const NEVER_MS: u64 = 3_000_000;

/// A communicator that is ready as soon as it has formed.
fn communicator() -> Value {
    let hold = json!({"spec": "gloo", "stop_ms_max": NEVER_MS, "form_ms_max": 0});
    json!({"conclusion": "form", "hold": hold, "deadline": {"after_ms": NEVER_MS, "then": "fail"}})
}

/// A lock: its holder is alone.
fn lock() -> Value {
    let hold = json!({"stop_ms_max": NEVER_MS, "form_ms_max": 0});
    json!({"conclusion": "form", "hold": hold, "rule": {"quorum": {"min": 1, "max": 1}}})
}

/// A process of a host of its own, with the number of its next call.
struct Trainer {
    lease: holdfast_api::LeaseId,
    process: u32,
    incarnation: u64,
    call: u64,
}

impl Trainer {
    async fn join(cluster: &Cluster, process: u32) -> Trainer {
        let lease = lease(cluster, &format!("node-{process}"), process.into()).await;
        let incarnation = register(cluster, lease, process).await;
        Trainer { lease, process, incarnation, call: 1 }
    }

    async fn arrives(&mut self, cluster: &Cluster, round: &str, terms: Value) {
        let arrival = [(self.process, self.incarnation, self.call)];
        self.call += 1;
        let came = arrive(cluster, self.lease, round, terms, &arrival).await;
        assert!(came["arrived"][0].get("refused").is_none(), "{came}");
    }

    /// It ends, and no agent sees its exit.
    async fn is_gone(&self, cluster: &Cluster) {
        let end =
            json!({"process": self.process, "incarnation": self.incarnation, "cause": "gone"});
        post(cluster, "/v1/process", json!({"end": {"lease": self.lease, "ends": [end]}})).await;
    }
}

/// So many of them, that hold generation 1 of `world`.
async fn formed(cluster: &Cluster, count: u32) -> Vec<Trainer> {
    let mut trainers = Vec::new();
    for process in 0..count {
        trainers.push(Trainer::join(cluster, process).await);
    }
    for trainer in &mut trainers {
        trainer.arrives(cluster, "world", communicator()).await;
    }
    trainers
}

async fn cli(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.cli_ok(&[&["--job", "train"], arguments].concat()).await
}

async fn cli_json(cluster: &Cluster, arguments: &[&str]) -> Value {
    let printed = cli(cluster, &[&["-o", "json"], arguments].concat()).await;
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

async fn refused(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.cli_fails(1, &[&["--job", "train"], arguments].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_whose_exit_nobody_saw_is_named_and_excused() {
    let cluster = Cluster::start(1).await;
    let mut trainers = formed(&cluster, 3).await;
    let list = cli_json(&cluster, &["comm", "list"]).await;
    let group = &list["groups"][0];
    assert_eq!((&group["round"], &group["phase"]), (&"world".into(), &"ready".into()), "{list}");
    assert_eq!((&group["count"], &group["holding"]), (&3.into(), &3.into()), "{list}");
    assert!(!cli(&cluster, &["why"]).await.contains("group world"));

    trainers[2].is_gone(&cluster).await;
    let table = cli(&cluster, &["comm", "list"]).await;
    let row = table.lines().nth(1).map(|row| row.split_whitespace().collect::<Vec<_>>().join(" "));
    let row = row.unwrap_or_default();
    assert!(row.starts_with("world 1 revoked 3 3 0 "), "{table}");
    assert!(row.ends_with(" process 2: gone"), "{table}");
    // No process waits yet, and it is no longer in use.
    let why = cli(&cluster, &["why"]).await;
    assert!(why.contains("group world: generation 1 was revoked"), "{why}");
    assert!(why.contains("3 processes hold it still, and nobody waits"), "{why}");

    for trainer in &mut trainers[..2] {
        trainer.arrives(&cluster, "world", communicator()).await;
    }
    let line = "`holdfast --job train comm excuse world 2` vouches for it";
    for command in [&["why"][..], &["comm", "show", "world"]] {
        let told = cli(&cluster, command).await;
        let named = told.lines().find(|one| one.contains("node-2: process 2 ended "));
        let named = named.unwrap_or_else(|| panic!("{command:?}: {told}"));
        assert!(named.contains("(gone), exit unseen") && named.ends_with(line), "{told}");
    }
    let rounds = cli(&cluster, &["rounds"]).await;
    assert!(rounds.contains("1 process still holds the revoked generation"), "{rounds}");
    let show = cli_json(&cluster, &["comm", "show", "world"]).await;
    let arrived = json!([{"process": 0, "incarnation": trainers[0].incarnation, "count": 2}]);
    assert_eq!(show["arrived"], arrived, "{show}");
    assert_eq!((&show["waiting"], &show["new"]), (&2.into(), &json!([])), "{show}");
    assert_eq!(show["unreleased"][0]["process"]["process"], 2, "{show}");
    assert_eq!(show["revoked"]["cause"]["ended"]["cause"], "gone", "{show}");

    let said = refused(&cluster, &["comm", "excuse", "world", "7"]).await;
    assert!(said.contains("process 7 is not a member of generation 1 of group world"), "{said}");
    let said = refused(&cluster, &["comm", "excuse", "world", "0"]).await;
    assert!(said.contains("process 0 is not in the way"), "{said}");
    let said = cli(&cluster, &["comm", "excuse", "world", "2"]).await;
    assert!(said.contains("by your word nothing of generation 1 of group world runs"), "{said}");
    assert!(said.contains("nobody keeps the next generation from closing"), "{said}");

    let show = cli_json(&cluster, &["comm", "show", "world"]).await;
    assert_eq!((&show["phase"], &show["count"]), (&"ready".into(), &2.into()), "{show}");
    assert!(show["generation"].as_u64() > Some(1), "{show}");
    let said = refused(&cluster, &["comm", "excuse", "world", "2"]).await;
    assert!(said.contains("which has processes 0-1"), "{said}");
    let events = cli(&cluster, &["events"]).await;
    assert!(events.lines().any(|line| line.contains("excused")), "{events}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_is_revoked_by_an_operator_and_its_members_form_the_next() {
    let cluster = Cluster::start(1).await;
    let mut trainers = formed(&cluster, 2).await;
    let revoke = ["comm", "revoke", "world", "--reason", "the NIC\u{7}flaps"];
    let said = cli(&cluster, &revoke).await;
    assert!(said.starts_with("revoked generation 1 of group world"), "{said}");
    let again = cli_json(&cluster, &revoke).await;
    assert_eq!((&again["revoked"], &again["holding"]), (&false.into(), &2.into()), "{again}");
    assert_eq!(again["cause"]["operator"]["reason"], "the NIC\u{7}flaps", "{again}");
    let show = cli(&cluster, &["comm", "show", "world"]).await;
    assert!(show.contains("revoked by an operator: the NIC flaps"), "{show}");
    assert!(show.contains("node-0: process 0 alive for "), "{show}");
    assert!(show.contains("has not stopped: in "), "{show}");

    for trainer in &mut trainers {
        trainer.arrives(&cluster, "world", communicator()).await;
    }
    let show = cli_json(&cluster, &["comm", "show", "world"]).await;
    assert_eq!((&show["phase"], &show["holding"]), (&"ready".into(), &2.into()), "{show}");

    // A slip does not excuse a live process.
    let generation = show["generation"].to_string();
    let excuse = ["comm", "excuse", "world", "0"];
    let said = refused(&cluster, &excuse).await;
    assert!(said.contains("is alive, and its agent can report its exit"), "{said}");
    assert!(said.contains("`holdfast --job train process remove 0 --reason TEXT`"), "{said}");
    let line = format!("comm excuse world 0 --generation {generation} --yes-it-is-gone`");
    assert!(said.contains(&line), "{said}");
    let yes = ["--generation", &generation, "--yes-it-is-gone"];
    let excused = cli_json(&cluster, &[&excuse[..], &yes].concat()).await;
    assert_eq!((&excused["alive"], &excused["left"]), (&true.into(), &1.into()), "{excused}");

    // The other one releases it by HTTP: nothing is left to revoke.
    let one = &trainers[1];
    let release = json!({"process": one.process, "incarnation": one.incarnation});
    let release = json!({"scope": {"job": "train"}, "releases": [release]});
    post(&cluster, "/v1/round", json!({"release": release})).await;
    let said = refused(&cluster, &["comm", "revoke", "world"]).await;
    assert!(said.contains("is held by nobody: there is nothing to revoke"), "{said}");
    assert!(cli(&cluster, &["comm", "show", "world"]).await.contains("nobody holds this one"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_is_listed_and_let_go_over_http() {
    let cluster = Cluster::start(1).await;
    let trainers = formed(&cluster, 2).await;
    let node = cluster.address(cluster.leader().await).to_owned();
    let held = async |query: &str| {
        let answer = get_until_served(&node, &format!("/v1/held?{query}")).await;
        let answer = answer.expect("an answer");
        (answer.status, answer.json())
    };
    let (status, all) = held("job=train").await;
    assert_eq!((status, &all["held"][0]["phase"]), (200, &"ready".into()), "{all}");
    assert!(all["held"][0].get("members").is_some(), "{all}");
    assert!(all["revision"].as_u64() > Some(0), "{all}");
    let (_, brief) = held("job=train&round=world&brief=true").await;
    assert_eq!((&brief["held"][0]["count"], brief["held"][0].get("members")), (&2.into(), None));
    let (_, none) = held("job=train&round=other").await;
    assert_eq!(none["held"], json!([]));
    let (status, problem) = held("job=trian").await;
    assert_eq!((status, &problem["code"]), (404, &"job_not_found".into()), "{problem}");
    let (status, problem) = held("job=train&ruond=world").await;
    assert_eq!(status, 400, "{problem}");

    let headers = [("content-type", "application/json")];
    let slip = json!({"revoke": {"scope": {"job": "train"}, "generation": 1, "reson": "x"}});
    let body = slip.to_string();
    let answer = send_until_served(&node, Method::POST, "/v1/round", &headers, body).await;
    assert_eq!(answer.expect("an answer").status, 400);
    let revoke = json!({"scope": {"job": "train"}, "generation": 1, "reason": "by hand"});
    post(&cluster, "/v1/round", json!({"revoke": revoke})).await;
    let (_, revoked) = held("job=train").await;
    let revoked = &revoked["held"][0];
    assert_eq!(revoked["revoked"]["cause"]["operator"]["reason"], "by hand", "{revoked}");
    let releases: Vec<Value> = trainers
        .iter()
        .map(|one| json!({"process": one.process, "incarnation": one.incarnation, "generation": 1}))
        .collect();
    let excuse = json!({"scope": {"job": "train"}, "releases": releases, "why": "excused"});
    post(&cluster, "/v1/round", json!({"release": excuse})).await;
    let (_, drained) = held("job=train").await;
    assert_eq!(drained["held"][0]["phase"], "drained", "{drained}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_said_with_the_next_line_to_type() {
    let cluster = Cluster::start(1).await;
    let mut trainers = formed(&cluster, 2).await;
    for command in [
        &["comm", "list"][..],
        &["comm", "show", "world"],
        &["comm", "excuse", "world", "0"],
        &["comm", "revoke", "world"],
    ] {
        let said = cluster.cli_fails(1, &[&["--job", "trian"], command].concat()).await;
        assert!(said.contains("job trian does not exist; is train meant?"), "{command:?}: {said}");
    }
    for command in [
        &["comm", "show", "wrold"][..],
        &["comm", "excuse", "wrold", "0"],
        &["comm", "revoke", "wrold"],
    ] {
        let said = refused(&cluster, command).await;
        let wanted = "job train holds no group wrold; is world meant? `holdfast --job train comm list` shows all";
        assert!(said.contains(wanted), "{command:?}: {said}");
    }
    let said = refused(&cluster, &["-o", "json", "comm", "show", "wrold"]).await;
    let problem: Value = serde_json::from_str(&said).expect("JSON was asked for");
    assert_eq!(
        (&problem["code"], &problem["outcome"]),
        (&"generation_unknown".into(), &"none".into())
    );
    cluster.cli_fails(2, &["comm", "excuse", "world", "host7"]).await;

    // Another group of the same name, among one process only: once no process holds this one.
    let releases = trainers
        .iter()
        .map(|trainer| json!({"process": trainer.process, "incarnation": trainer.incarnation}));
    let releases: Vec<Value> = releases.collect();
    let release = json!({"scope": {"job": "train"}, "releases": releases});
    post(&cluster, "/v1/round", json!({"release": release})).await;
    let mut among = communicator();
    among["among"] = json!({"set": [1]});
    trainers[1].arrives(&cluster, "world", among).await;
    let said = refused(&cluster, &["comm", "show", "world"]).await;
    assert!(said.contains("job train has 2 groups of the name world: "), "{said}");
    assert!(said.contains("generation 1 (among all, drained)"), "{said}");
    assert!(said.contains("generation 2 (among process 1, ready)"), "{said}");
    let show = cli(&cluster, &["comm", "show", "world", "--generation", "2"]).await;
    assert!(show.starts_with("group world of job train, generation 2 (among process 1,"), "{show}");
    let said = refused(&cluster, &["comm", "revoke", "world", "--generation", "7"]).await;
    assert!(said.contains("no group world of job train is in generation 7"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_a_lock_is_told_who_holds_it() {
    let cluster = Cluster::start(1).await;
    let mut zero = Trainer::join(&cluster, 0).await;
    let mut one = Trainer::join(&cluster, 1).await;
    assert!(cli(&cluster, &["comm", "ls"]).await.starts_with("nothing is held"));
    zero.arrives(&cluster, "checkpoint", lock()).await;
    one.arrives(&cluster, "checkpoint", lock()).await;
    let why = cli(&cluster, &["why"]).await;
    assert!(why.contains("1 process still holds the present generation"), "{why}");
    let holder = "  node-0: process 0 alive for ";
    assert!(why.lines().any(|line| line.starts_with(holder)), "{why}");
    assert!(why.contains(", has neither released it nor arrived again"), "{why}");
    let json = cli_json(&cluster, &["why"]).await;
    let holding = &json["rounds"][0]["holding"];
    assert_eq!(holding["holders"][0]["processes"], json!([0]), "{json:#}");
    let show = cli(&cluster, &["comm", "show", "checkpoint"]).await;
    assert!(show.contains("  waiting  process 1; new: process 1\n"), "{show}");
    assert!(show.contains("not released, so that the next generation cannot close: 1"), "{show}");
}
