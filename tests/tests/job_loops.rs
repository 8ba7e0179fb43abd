//! What Python programs build on in their loops: iterations one after the other.

use holdfast_tests::{Cluster, Script, binaries, python};

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
