//! `holdfast-store restore`: a new cluster that begins with a backup.
//!
//! Each node's folder is made from the same file and the same list of nodes, and
//! holds the same: a snapshot of the restored state, and the nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use holdfast_api::NodeId;
use holdfast_api::backup::{self, BackupHeader};
use holdfast_machine::{EPOCH_ITERATIONS, FEATURE_LEVEL, Machine, Restored};
use sha2::{Digest, Sha256};

use crate::config::parse_nodes;
use crate::formation;
use crate::node::VERSION;
use crate::storage::record::{
    LogIdRecord, MembershipRecord, NodeRecord, SnapshotMetaRecord, StoredMembershipRecord,
};
use crate::storage::{Opened, Options, Storage, StorageError};

/// Drift allowed between hosts' clocks while trainers stop themselves, in parts
/// per thousand.
const DRIFT_PER_MILLE: u64 = 10;

/// Extra time beyond that drift.
const MARGIN: Duration = Duration::from_secs(1);

/// The nodes of a cluster.
type Nodes = BTreeMap<NodeId, String>;

fn nodes(list: &str) -> Result<Nodes, String> {
    parse_nodes("--initial-cluster", list).map_err(|error| error.to_string())
}

/// Numbers up to this stay within JSON's range after a restore, after any number
/// of earlier restores.
const NUMBER_MAX: u64 = 1 << 52;
/// Numbers of runs are in names alone. Who names runs gets to half of all numbers, earlier restores
/// and later runs a little farther.
const RUN_NUMBER_MAX: u64 = u64::MAX / 4 * 3;
const ATTEMPTS_MAX: u64 = 1_000;

/// Flags of `holdfast-store restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Read this backup; `-` is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Make the folder of the node of this id
    #[arg(long, env = "HOLDFAST_NODE_ID", value_name = "ID")]
    pub node_id: NodeId,
    /// Make this data folder; it must be empty or missing
    #[arg(long, env = "HOLDFAST_DATA_DIR", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Begin a cluster of these nodes, this one included: 1=HOST:PORT,2=HOST:PORT,…
    #[arg(long, env = "HOLDFAST_INITIAL_CLUSTER", value_name = "LIST", value_parser = nodes)]
    pub(crate) initial_cluster: Nodes,
    /// Count the restores of this cluster, from 1 on and of any backup; the same for all nodes.
    /// Numbers that an earlier restore has given are not given again
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=ATTEMPTS_MAX))]
    pub attempt: u64,
    /// Confirm that no trainer runs: do not wait until those that do not know of the loss have
    /// stopped by themselves
    #[arg(long)]
    trainers_are_stopped: bool,
}

/// Makes the folder of a node of a new cluster that begins with a backup.
pub async fn run(args: RestoreArgs) -> anyhow::Result<()> {
    let nodes = &args.initial_cluster;
    if !nodes.contains_key(&args.node_id) {
        bail!("--initial-cluster does not name this node, {}", args.node_id);
    }
    let begun = tokio::time::Instant::now();
    let opened = Storage::open(&args.data_dir, args.node_id, Options::default());
    let opened = opened.map_err(|error| hint(args.data_dir.display(), error))?;
    let Opened::Empty(empty) = opened else {
        bail!(
            "{} is the folder of a node already: choose an empty one as --data-dir; nothing was changed",
            args.data_dir.display()
        );
    };
    let (header, mut machine) = read(&args)?;
    let hold = hold(&machine);
    let cluster_id = cluster_id(&header, machine.digest(), nodes, args.attempt);
    let restored = machine.restore(&cluster_id, args.attempt);
    if !args.trainers_are_stopped {
        let rest = hold.saturating_sub(begun.elapsed());
        eprintln!(
            "waiting {} s, until trainers of the lost cluster have stopped by themselves (--trainers-are-stopped: none runs)",
            rest.as_secs()
        );
        tokio::time::sleep(rest).await;
    }
    let meta = beginning(nodes);
    let storage = empty.create_from(cluster_id.clone(), &meta, |out| machine.encode(out))?;
    storage.close().await;
    say(&args, &header, &cluster_id, &machine, &restored);
    Ok(())
}

/// A restore that was ended leaves a folder without an owner.
fn hint(dir: impl fmt::Display, error: StorageError) -> anyhow::Error {
    let is_ended = matches!(error, StorageError::IdentityMissing { .. });
    let error = anyhow::Error::new(error);
    match is_ended {
        true => error.context(format!(
            "if a restore into {dir} was ended before it was done, delete that folder and run it again"
        )),
        false => error,
    }
}

/// Reads and checks the whole backup.
fn read(args: &RestoreArgs) -> anyhow::Result<(BackupHeader, Machine)> {
    let named = args.file.display();
    let input: Box<dyn Read> = match args.file.as_os_str() == "-" {
        true => Box::new(io::stdin().lock()),
        false => Box::new(File::open(&args.file).with_context(|| format!("{named}"))?),
    };
    let whole = |what: &str| format!("{named} is not a whole backup{what}; nothing was changed");
    let (header, mut blocks) = backup::open(BufReader::new(input)).with_context(|| whole(""))?;
    if header.feature_level > FEATURE_LEVEL {
        bail!(
            "{named} was made at feature level {}, this program knows levels up to {FEATURE_LEVEL}: restore it with version {} or a later one",
            header.feature_level,
            header.version
        );
    }
    let decoded = Machine::decode(&mut blocks);
    let machine = decoded.with_context(|| whole(": its state cannot be read"))?;
    blocks.finish().with_context(|| whole(""))?;
    let limits =
        [(machine.greatest_number(), NUMBER_MAX), (machine.greatest_run_number(), RUN_NUMBER_MAX)];
    if let Some((number, _)) = limits.iter().find(|(number, limit)| number > limit) {
        bail!(
            "{named} is not a valid backup: {number} exceeds the largest possible number; nothing was changed"
        );
    }
    Ok((header, machine))
}

/// How long a trainer that has just lost the cluster may go on.
fn hold(machine: &Machine) -> Duration {
    let longest = machine.store_lost_ms_max();
    Duration::from_millis(longest + longest * DRIFT_PER_MILLE / 1_000) + MARGIN
}

/// The new cluster's id: the same on all of its nodes, and no other cluster's.
/// Nodes made from different states, or by different versions, refuse each other.
fn cluster_id(header: &BackupHeader, state: u64, nodes: &Nodes, attempt: u64) -> String {
    let BackupHeader { cluster_id, revision, taken_at_ms, .. } = header;
    let nodes = formation::written(nodes);
    let told =
        format!("{cluster_id} {revision} {taken_at_ms} {state:016x} {VERSION} {attempt} {nodes}");
    let digest = Sha256::digest(told);
    let digits: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let root = cluster_id.split("-restored-").next().unwrap_or(cluster_id);
    format!("{root}-restored-{digits}")
}

/// What the snapshot covers: the first entry, which names the nodes.
fn beginning(nodes: &Nodes) -> SnapshotMetaRecord {
    let first = nodes.keys().next().copied().unwrap_or(1);
    let id = LogIdRecord { term: 1, node: first, index: 1 };
    let records = nodes.iter().map(|(id, address)| {
        let address = address.clone();
        (*id, NodeRecord { address })
    });
    let membership = MembershipRecord {
        voters: vec![nodes.keys().copied().collect()],
        nodes: records.collect(),
    };
    let membership = StoredMembershipRecord { log_id: Some(id), membership };
    SnapshotMetaRecord { last: Some(id), membership }
}

fn say(
    args: &RestoreArgs,
    header: &BackupHeader,
    cluster_id: &str,
    machine: &Machine,
    Restored { ended, open, sessions }: &Restored,
) {
    let (node, dir) = (args.node_id, args.data_dir.display());
    println!("{dir} is the folder of node {node} of the new cluster {cluster_id}");
    println!(
        "it begins with revision {} of cluster {}; revisions go on at {}, iterations jump by {}",
        header.revision,
        header.cluster_id,
        machine.revision(),
        EPOCH_ITERATIONS * args.attempt
    );
    println!("{sessions} sessions are gone, {open} runs stay open");
    for run in ended {
        println!(
            "run {} of job {} has ended, for it had agents: launch it again",
            run.run, run.job
        );
    }
    println!(
        "make the folders of the other nodes with the same backup and the same --initial-cluster, then start all of them: `holdfast-store serve --node-id {node} --data-dir {dir} --listen HOST:PORT`"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restored_cluster_has_an_id_of_its_own_and_a_short_one() {
        let header = |cluster_id: &str| BackupHeader {
            cluster_id: cluster_id.to_owned(),
            node: 1,
            version: String::new(),
            feature_level: 5,
            revision: 7,
            log_time: 8,
            taken_at_ms: 9,
        };
        let nodes = BTreeMap::from([(1, "a:1".to_owned())]);
        let first = cluster_id(&header("c"), 5, &nodes, 1);
        assert!(first.starts_with("c-restored-"), "{first}");
        let others = [
            cluster_id(&header("c"), 5, &nodes, 2),
            cluster_id(&header("c"), 6, &nodes, 1),
            cluster_id(&header("c"), 5, &BTreeMap::from([(2, "a:1".to_owned())]), 1),
            cluster_id(&header(&first), 5, &nodes, 1),
        ];
        assert!(others.iter().all(|other| *other != first && other.len() == first.len()));
        assert_eq!(cluster_id(&header("c"), 5, &nodes, 1), first);
    }
}
