//! Disks fill up, rot, vanish and are restored from the wrong copy: the node refuses and
//! reports why, the others go on, and no acknowledged write is lost.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use holdfast_api::Blob;
use holdfast_client::Deadline;
use holdfast_tests::cluster::job;
use holdfast_tests::disk::copy_folder;
use holdfast_tests::threads::StoppedThreads;
use holdfast_tests::{Adders, Cluster, Ended, binaries, eventually, soon};

/// Snapshots and purges early, so that there are files of every kind.
const SMALL: [&str; 4] = ["--snapshot-entries", "60", "--entries-kept", "10"];

/// Metric: how often a node found its disk damaged and repaired it.
const REPAIRS: &str = "holdfast_disk_repairs";

async fn write(cluster: &Cluster, count: u64) {
    let keys = cluster.client().keys(job("d"));
    for n in 0..count {
        let (key, value) = (format!("k{n}"), format!("v{n}-{}", "x".repeat(200)));
        keys.put(key.as_str(), value.as_str(), soon()).await.expect("a put");
    }
}

async fn assert_holds(cluster: &Cluster, count: usize) {
    let keys = cluster.agreement(&job("d")).await;
    assert_eq!(keys.len(), count);
}

/// A file system of its own that is unmounted in the end.
struct Mount(PathBuf);

impl Mount {
    /// None where this user may not mount.
    fn new(at: PathBuf, options: &str) -> Option<Mount> {
        fs::create_dir_all(&at).expect("a temporary folder");
        mount(&["-t", "tmpfs", "-o", options, "holdfast-test"], &at).then(|| Mount(at))
    }

    fn resize(&self, options: &str) {
        assert!(mount(&["-o", &format!("remount,{options}")], &self.0), "it was mounted before");
    }
}

fn mount(arguments: &[&str], at: &Path) -> bool {
    let run = |program: &[&str]| {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).args(arguments).arg(at);
        command.output().is_ok_and(|output| output.status.success())
    };
    run(&["mount"]) || run(&["sudo", "-n", "mount"])
}

impl Drop for Mount {
    fn drop(&mut self) {
        for program in [&["umount", "-l"][..], &["sudo", "-n", "umount", "-l"]] {
            let mut command = Command::new(program[0]);
            command.args(&program[1..]).arg(&self.0);
            if command.output().is_ok_and(|output| output.status.success()) {
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_its_node_alone_and_nothing_is_lost() {
    let mut cluster = Cluster::plan(3, &[]);
    let full = 3;
    let Some(disk) = Mount::new(cluster.folder().join("small-disk"), "size=24m") else {
        eprintln!(
            "SKIPPED: a full disk needs a small file system, and mounting one is not allowed here"
        );
        return;
    };
    cluster.set_data_dir(full, disk.0.join("node"));
    for id in cluster.ids() {
        cluster.launch(id);
    }
    cluster.wait_all_ready().await;
    write(&cluster, 50).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), 8);
    load.progress(50).await;

    // Whatever is left is taken away, and more is written than the log may
    // have set aside.
    cluster.expect_error("no space left");
    let filler = disk.0.join("filler");
    drop(
        Command::new("dd")
            .args(["if=/dev/zero", "bs=64k"])
            .arg(format!("of={}", filler.display()))
            .output(),
    );
    let keys = client.keys(job("big"));
    let big = "x".repeat(300_000);
    for n in 0..100 {
        keys.put(format!("k{n}").as_str(), big.as_str(), soon()).await.expect("two nodes go on");
    }
    cluster.refuses(full, &["no space left", "free space", "start the node again"]).await;
    load.progress(50).await;

    fs::remove_file(filler).expect("it was written");
    disk.resize("size=200m");
    cluster.restart(full).await;
    load.progress(50).await;
    let tally = load.finish().await;
    assert_eq!(tally.failed, 0, "{tally:?}");
    assert_holds(&cluster, 50).await;
    cluster.agreement(&job("load")).await;
    assert_eq!(cluster.agreement(&job("big")).await.len(), 100);
    // Before its disk is unmounted.
    cluster.kill(full);
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_that_fill_together_take_no_more_and_nobody_dies() {
    let mut cluster = Cluster::plan(3, &["--disk-reserve", "100MiB"]);
    let mut disks = Vec::new();
    for id in cluster.ids() {
        let at = cluster.folder().join(format!("disk-{id}"));
        let Some(disk) = Mount::new(at, "size=300m") else {
            eprintln!("SKIPPED: this user may not mount file systems");
            return;
        };
        cluster.set_data_dir(id, disk.0.join("node"));
        disks.push(disk);
        cluster.launch(id);
    }
    cluster.wait_all_ready().await;
    let client = cluster.client();
    let (keys, big) = (client.keys(job("big")), "x".repeat(500_000));
    let (mut written, mut late) = (0, 0);
    let refused = loop {
        let brief = Deadline::after(Duration::from_secs(3));
        match keys.put(format!("k{written}").as_str(), big.as_str(), brief).await {
            Ok(_) => written += 1,
            Err(error) if error.to_string().contains("of disk free, ") => break error.to_string(),
            // A node was slow, or there was an election.
            Err(error) => {
                late += 1;
                assert!(late < 20, "{error}");
            }
        }
        assert!(written < 600, "more than the disks hold");
    };
    println!("{written} values of 500 kB; then: {refused}");
    let status = cluster.cli(&["status"]).await;
    assert!(status.stderr.contains("writes that add data are refused"), "{status:?}");
    let told = cluster.cli(&["kv", "put", "k", "v", "--timeout", "3s"]).await;
    assert!(told.stderr.contains("no_space"), "{told:?}");

    // Commands that free room are accepted; so are all others, once there is some.
    for n in 0..written {
        keys.delete(format!("k{n}").as_str(), soon()).await.expect("a delete frees room");
    }
    keys.put("small", "again", soon()).await.expect("there is room again");
    cluster.wait_all_ready().await;
    assert_eq!(cluster.agreement(&job("big")).await.len(), 1);
    for id in cluster.ids() {
        cluster.kill(id);
    }
}

/// How long a node's threads that answer requests stand still: longer than its leader takes to ask
/// it for its room, and shorter than its last answer counts.
const BUSY: Duration = Duration::from_millis(2_500);

#[tokio::test(flavor = "multi_thread")]
async fn a_voter_too_busy_to_say_what_room_it_has_stops_no_writes() {
    let mut cluster = Cluster::plan(3, &[]);
    let short = 3;
    for id in cluster.ids() {
        let mut command = cluster.command(id);
        if id == short {
            command.args(["--disk-reserve", "1PiB"]);
        }
        cluster.launch_as(id, command);
    }
    cluster.wait_all_ready().await;
    let leader = eventually("a leader with room", async || {
        let leader = cluster.leader().await;
        let nodes = cluster.status(leader).await?.nodes;
        let measured = nodes.iter().all(|node| node.disk.is_some());
        (leader != short && measured).then_some(leader)
    })
    .await;
    let busy = cluster.ids().into_iter().find(|id| ![leader, short].contains(id));
    let busy = busy.expect("there are three");
    // The leader asks by itself each second.
    tokio::time::sleep(Duration::from_secs(2)).await;

    let keys = cluster.client().keys(job("busy"));
    let (before, pid) = (cluster.process(leader).said().len(), cluster.process(busy).pid());
    let stopped = StoppedThreads::named(pid, "serve");
    let begun = Instant::now();
    while begun.elapsed() < BUSY {
        keys.put("k", "v", soon()).await.expect("two of three have room");
    }
    drop(stopped);
    let said = cluster.process(leader).said();
    let said = said.get(before..).unwrap_or_default();
    assert!(!said.contains("writes that add data are refused"), "{said}");
}

/// Files below a folder whose name `wanted` accepts, the biggest first.
fn files(folder: &Path, wanted: impl Fn(&str) -> bool + Copy) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a data folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        if path.is_dir() {
            found.extend(files(&path, wanted));
        } else if name.is_some_and(|name| wanted(&name)) {
            found.push(path);
        }
    }
    let length = |path: &PathBuf| fs::metadata(path).map_or(0, |metadata| metadata.len());
    found.sort_by_key(|path| std::cmp::Reverse(length(path)));
    found
}

/// Inverts one byte in the middle of what the file holds.
fn damage(path: &Path) {
    let bytes = fs::read(path).expect("a file of a stopped node");
    // Files may be allocated ahead: zeros at the end are not yet content.
    let content = bytes.iter().rposition(|byte| *byte != 0).expect("the file holds something") + 1;
    let at = content / 2;
    let file = fs::File::options().write(true).open(path).expect("a file of a stopped node");
    file.write_all_at(&[!bytes[at]], at as u64).expect("a file of a stopped node");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_named_and_the_node_stays_down() {
    let mut cluster = Cluster::start_with(3, &SMALL).await;
    write(&cluster, 150).await;
    let victim = cluster.follower().await;
    eventually("a snapshot", async || {
        let status = cluster.status(victim).await?;
        status.nodes.into_iter().find(|node| node.id == victim)?.snapshot
    })
    .await;
    cluster.kill(victim);
    let sound = cluster.folder().join("sound");
    copy_folder(cluster.data_dir(victim), &sound);

    let mut tried = 0;
    for (kind, wanted) in [
        ("the log", (|name| name.ends_with(".log")) as fn(&str) -> bool),
        ("a table", |name| name.ends_with(".sst")),
        ("the manifest", |name| name.starts_with("MANIFEST")),
        ("a snapshot", |name| name.contains("snap")),
        ("the watermark", |name| name.contains("watermark")),
        ("the identity", |name| name == "identity.json"),
    ] {
        let Some(path) = files(cluster.data_dir(victim), wanted).into_iter().next() else {
            // Not each start leaves a table.
            assert_eq!(kind, "a table", "there is no file of the kind: {kind}");
            continue;
        };
        tried += 1;
        damage(&path);
        cluster.launch(victim);
        let (status, said) = cluster.ended(victim).await;
        assert_eq!(status.code(), Some(1), "with {kind} damaged the node ended with {status}");
        let last = said.lines().last().unwrap_or_default();
        let folder = cluster.data_dir(victim).display().to_string();
        assert!(last.contains(&folder), "{kind}: no file is named: {last}");
        for text in ["restore", "node remove", "never used"] {
            assert!(last.contains(text), "{kind}: {text:?} is missing: {last}");
        }
        cluster.wipe(victim);
        copy_folder(&sound, cluster.data_dir(victim));
    }
    assert!(tried >= 5);
    // With its own bytes back it is as good as new.
    cluster.restart(victim).await;
    assert_holds(&cluster, 150).await;
}

/// A running node's memory is intact: it repairs its own disk.
#[tokio::test(flavor = "multi_thread")]
async fn damage_under_a_running_node_is_found_and_written_anew() {
    let flags = [&SMALL[..], &["--scrub-every", "300ms"]].concat();
    let mut cluster = Cluster::start_with(3, &flags).await;
    write(&cluster, 150).await;
    let (follower, leader) = cluster.follower_and_leader().await;
    for victim in [follower, leader] {
        let mended = async |what: &str, cluster: &Cluster, from: f64| {
            eventually(&format!("{what} of node {victim} to be written anew"), async || {
                (cluster.metric(victim, REPAIRS).await > from).then_some(())
            })
            .await;
        };
        for (kind, wanted) in [
            ("the log", (|name| name.ends_with(".log")) as fn(&str) -> bool),
            ("the manifest", |name| name.starts_with("MANIFEST")),
            ("a snapshot", |name| name.ends_with(".snap")),
            ("the watermark", |name| name == "watermark"),
        ] {
            let before = cluster.metric(victim, REPAIRS).await;
            let path = files(cluster.data_dir(victim), wanted).into_iter().next();
            damage(&path.expect("a running node has one of each"));
            mended(kind, &cluster, before).await;
        }
        // A write in flight may have covered the damage before it was seen.
        write(&cluster, 150).await;
        cluster.kill(victim);
        cluster.restart(victim).await;
    }
    assert_holds(&cluster, 150).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_its_disk_never_comes_back_under_its_old_id() {
    let mut cluster = Cluster::start(3).await;
    write(&cluster, 20).await;
    let (follower, leader) = cluster.follower_and_leader().await;
    // A slip: the id of a node that is well, for a new one elsewhere.
    let here = format!("127.0.0.1:{}", cluster.port());
    let mut slip = binaries::command("holdfast-store");
    slip.args(["serve", "--node-id", &follower.to_string(), "--listen", &here]);
    slip.args(["--join", cluster.address(leader), "--data-dir"]).arg(cluster.folder().join("slip"));
    let in_use = Ended::of(slip).await;
    let member = format!("the node at {} answers under it", cluster.address(follower));
    let (id, add) = (format!("node id {follower} is in use"), format!("node add 4 {here}"));
    in_use.failed(1, &[id.as_str(), member.as_str(), "--node-id 4", add.as_str()]);
    assert!(!in_use.stderr.contains("replace"), "{in_use:#?}");
    assert!(!in_use.stderr.contains("in the place of"), "it was started with --join: {in_use:#?}");
    for victim in [follower, leader] {
        cluster.kill(victim);
        let kept = cluster.folder().join(format!("kept-{victim}"));
        fs::rename(cluster.data_dir(victim), &kept).expect("a stopped node's folder");
        cluster.launch(victim);
        let replace = format!("node replace {victim} 4");
        let texts = ["its disk was lost", replace.as_str(), "--node-id 4", "--join"];
        cluster.refuses(victim, &texts).await;
        cluster.wipe(victim);
        fs::rename(&kept, cluster.data_dir(victim)).expect("a stopped node's folder");
        cluster.restart(victim).await;
    }
    assert_holds(&cluster, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_log_folder_was_lost_refuses() {
    let mut cluster = Cluster::start(3).await;
    write(&cluster, 20).await;
    let victim = cluster.follower().await;
    cluster.kill(victim);
    let identity =
        fs::read(cluster.data_dir(victim).join("identity.json")).expect("it was written");
    cluster.wipe(victim);
    fs::create_dir_all(cluster.data_dir(victim)).expect("a temporary folder");
    fs::write(cluster.data_dir(victim).join("identity.json"), identity).expect("a file");
    cluster.launch(victim);
    cluster.refuses(victim, &["log", "missing", "node remove"]).await;
    write(&cluster, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_disk_was_rolled_back_refuses() {
    let mut cluster = Cluster::start(3).await;
    write(&cluster, 20).await;
    let (follower, leader) = cluster.follower_and_leader().await;
    for victim in [follower, leader] {
        cluster.stop(victim).await;
        let old = cluster.folder().join(format!("old-{victim}"));
        copy_folder(cluster.data_dir(victim), &old);
        cluster.restart(victim).await;
        write(&cluster, 40).await;
        cluster.agreement(&job("d")).await;
        led_by_another(&cluster, victim).await;
        cluster.stop(victim).await;
        let new = cluster.folder().join(format!("new-{victim}"));
        fs::rename(cluster.data_dir(victim), &new).expect("a stopped node's folder");
        fs::rename(&old, cluster.data_dir(victim)).expect("a stopped node's folder");

        cluster.expect_error("rolled back");
        cluster.launch(victim);
        cluster.refuses(victim, &["rolled back", "node remove", "new node id"]).await;
        cluster.client().keys(job("d")).put("k0", "v0", soon()).await.expect("two nodes go on");
        cluster.wipe(victim);
        fs::rename(&new, cluster.data_dir(victim)).expect("a stopped node's folder");
        cluster.restart(victim).await;
    }
    assert_holds(&cluster, 40).await;
}

/// The leader knows how far a node's log reaches as soon as it has committed something.
async fn led_by_another(cluster: &Cluster, victim: u64) {
    if cluster.leader().await == victim {
        let to = cluster.follower().await;
        cluster.operate_ok(&["leader", "transfer", &to.to_string()]).await;
        eventually("the transfer", async || (cluster.leader().await == to).then_some(())).await;
        write(cluster, 40).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_another_node_or_cluster_or_program_is_refused() {
    let mut cluster = Cluster::start(3).await;
    write(&cluster, 5).await;
    let one = cluster.data_dir(1).to_owned();
    cluster.kill(1);
    cluster.kill(2);

    cluster.set_data_dir(1, cluster.data_dir(2).to_owned());
    cluster.launch(1);
    cluster.refuses(1, &["belongs to node 2", "--node-id 2"]).await;
    cluster.restart(2).await;

    // A node of another cluster is not talked to, even if it was started here.
    let mut other = Cluster::start(1).await;
    other.kill(1);
    cluster.set_data_dir(1, other.data_dir(1).to_owned());
    cluster.expect_error("cluster");
    cluster.launch(1);
    cluster.refuses(1, &["cluster", "--data-dir"]).await;

    let foreign = cluster.folder().join("foreign");
    fs::create_dir_all(&foreign).expect("a temporary folder");
    fs::write(foreign.join("holiday.jpg"), "").expect("a temporary file");
    cluster.set_data_dir(1, foreign);
    cluster.launch(1);
    cluster.refuses(1, &["holiday.jpg", "choose an empty folder"]).await;

    cluster.set_data_dir(1, one);
    cluster.restart(1).await;
    // One folder, two processes.
    let mut second = binaries::command("holdfast-store");
    second.args(["serve", "--node-id", "1", "--data-dir"]).arg(cluster.data_dir(1));
    second.args(["--listen", &format!("127.0.0.1:{}", cluster.port())]);
    Ended::of(second).await.failed(1, &["another holdfast-store is using", "stop it first"]);
    assert_eq!(cluster.agreement(&job("d")).await.len(), 5);
    assert!(cluster.agreement(&job("d")).await.contains_key(&Blob::from("k4")));
}
