//! What Python programs rely on in their loops: iterations one after the other, and what
//! happens in the job in between.

use holdfast_api::{CoordinationLimits, Limits};
use holdfast_tests::{Agent, Cluster, Script, binaries, eventually, http, python};

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_goes_on_through_a_regrouping_and_ends_when_nobody_should_go_on() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(1).await;
    let mut command = binaries::without_settings(&python);
    command.arg("-u").arg(python::script("job_iterations.py"));
    command.env("HOLDFAST_STORE", cluster.list());
    let mut script = Script::start_command(&mut cluster, "iterations", command);
    script.says("all good").await;
    script.succeeds().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_events_hears_of_those_that_are_forgotten_already() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(1).await;
    // No outcome is kept for long enough to be read.
    let coordination =
        CoordinationLimits { events_per_job_max: 0, ..CoordinationLimits::default() };
    let limits = Limits { coordination: Box::new(coordination), ..Limits::default() };
    let body = serde_json::to_string(&limits).expect("numbers");
    let headers = [("content-type", "application/json")];
    let leader = cluster.address(cluster.leader().await);
    // Once the feature level has risen.
    eventually("the limits to be set", async || {
        let (post, body) = (::http::Method::POST, body.clone());
        let set = http::send_until_served(leader, post, "/v1/limits", &headers, body).await;
        (set.expect("the leader answers").status == 200).then_some(())
    })
    .await;

    let mut agent = Agent::start(&mut cluster, "attached").await;
    let control = agent.control().await;
    for attached in [false, true] {
        let mut command = binaries::without_settings(&python);
        command.arg("-u").arg(python::script("job_forgotten.py"));
        match attached {
            true => command.env("HOLDFAST_CONTROL", &control),
            false => command.env("HOLDFAST_STORE", cluster.list()).env("HOLDFAST_JOB", "alone"),
        };
        let mut script =
            Script::start_command(&mut cluster, &format!("forgotten-{attached}"), command);
        script.says("all good").await;
        script.succeeds().await;
    }
}
