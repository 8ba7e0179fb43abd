//! What the folder of a development cluster holds. A cluster keeps the nodes and
//! the addresses that it was founded with; started with others, its nodes would
//! not find each other.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use holdfast_api::NodeId;
use holdfast_net::regular_file::read_regular_text;
use serde::{Deserialize, Serialize};

use super::NODES_MAX;
use crate::storage::identity;

/// Name of the file that records how the cluster was founded.
const FILE: &str = "dev.json";

/// Longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4 * 1024;

/// Default number of nodes.
const NODES_DEFAULT: u16 = 3;

/// Default base port: the nodes' ports follow it.
const BASE_PORT_DEFAULT: u16 = 21_000;

/// The nodes of a development cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Number of nodes; ids start at 1.
    pub nodes: u16,
    /// Each listens on this port plus its id.
    pub(crate) base_port: u16,
}

impl Shape {
    /// Where a node listens.
    pub(crate) fn address(&self, id: u16) -> String {
        format!("127.0.0.1:{}", self.base_port + id)
    }
}

/// The cluster that a folder holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    /// The id that all of its nodes have written down.
    pub cluster_id: String,
    nodes: u16,
    /// None if the folder does not say.
    base_port: Option<u16>,
}

/// The folder of a node.
pub(crate) fn of_node(dir: &Path, id: u16) -> PathBuf {
    dir.join(format!("node-{id}"))
}

/// The cluster that this folder holds; none if it holds none yet.
pub(crate) fn held(dir: &Path) -> anyhow::Result<Option<Held>> {
    let mut found: Option<(u16, String)> = None;
    for id in 1..=NODES_MAX {
        let Some(identity) = identity::read(&of_node(dir, id))? else { continue };
        let theirs = identity.cluster_id;
        if let Some((other, cluster_id)) = found.filter(|(_, cluster_id)| *cluster_id != theirs) {
            bail!(
                "{} holds nodes of two clusters: node {other} is of cluster {cluster_id}, node {id} of cluster {theirs}; use an empty folder",
                dir.display()
            );
        }
        found = Some((id, theirs));
    }
    let shape = noted(dir)?;
    let Some((nodes, cluster_id)) = found else { return Ok(None) };
    let nodes = shape.map_or(nodes, |shape| shape.nodes);
    Ok(Some(Held { cluster_id, nodes, base_port: shape.map(|shape| shape.base_port) }))
}

/// What the file says. Its checksum shows whether another program made or changed
/// it; files of earlier versions have none.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    nodes: u16,
    base_port: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
}

impl Written {
    fn of(shape: Shape) -> Written {
        let Shape { nodes, base_port } = shape;
        let checksum = crc32c::crc32c(format!("{nodes} {base_port}").as_bytes());
        Written { nodes, base_port, checksum: Some(format!("{checksum:08x}")) }
    }

    fn shape(self) -> Result<Shape, &'static str> {
        let shape = Shape { nodes: self.nodes, base_port: self.base_port };
        if self.checksum.is_some() && self.checksum != Written::of(shape).checksum {
            return Err("its checksum is wrong: somebody changed it");
        }
        let fits =
            (1..=NODES_MAX).contains(&shape.nodes) && shape.base_port <= u16::MAX - NODES_MAX;
        if fits { Ok(shape) } else { Err("it names no cluster that could be") }
    }
}

/// The recorded start of the cluster in this folder; none if there is no record.
pub(crate) fn noted(dir: &Path) -> anyhow::Result<Option<Shape>> {
    let path = dir.join(FILE);
    let read = match read_regular_text(&path, FILE_BYTES_MAX) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(error.to_string()),
        Ok(text) => serde_json::from_str(&text)
            .map_err(|error| error.to_string())
            .and_then(|written: Written| written.shape().map_err(str::to_owned)),
    };
    read.map(Some).map_err(|why| {
        anyhow::anyhow!(
            "{path} is not what `holdfast-store dev` writes there: {why}; move it away, and give --nodes and --base-port as the cluster in {dir} was founded, or use an empty folder",
            path = path.display(),
            dir = dir.display()
        )
    })
}

/// Records how the cluster of this folder is started, if there is no record.
pub(crate) fn note(dir: &Path, shape: Shape) -> anyhow::Result<()> {
    if noted(dir)? == Some(shape) {
        return Ok(());
    }
    let path = dir.join(FILE);
    let text = serde_json::to_string(&Written::of(shape))? + "\n";
    fs::create_dir_all(dir)
        .and_then(|()| fs::write(&path, text))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// How to start the cluster, given the nodes and the base port of the command
/// line; or how the folder differs, and what to do.
pub(crate) fn decide(
    dir: &Path,
    held: Option<&Held>,
    (nodes, base_port): (Option<u16>, Option<u16>),
) -> Result<Shape, String> {
    let Some(held) = held else {
        let (nodes, base_port) =
            (nodes.unwrap_or(NODES_DEFAULT), base_port.unwrap_or(BASE_PORT_DEFAULT));
        return Ok(Shape { nodes, base_port });
    };
    let other = |asked: Option<u16>, held: u16| asked.is_some_and(|asked| asked != held);
    if other(nodes, held.nodes) || held.base_port.is_some_and(|held| other(base_port, held)) {
        return Err(otherwise(dir, held));
    }
    let base_port = held.base_port.or(base_port).unwrap_or(BASE_PORT_DEFAULT);
    Ok(Shape { nodes: held.nodes, base_port })
}

fn otherwise(dir: &Path, held: &Held) -> String {
    let Held { cluster_id, nodes, base_port } = held;
    let dir = dir.display();
    let (ports, flag) = match base_port {
        Some(base) => {
            (format!(" on ports {}–{}", base + 1, base + nodes), format!(" --base-port {base}"))
        }
        None => (String::new(), String::new()),
    };
    let count = if *nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") };
    format!(
        "{dir} holds a cluster of {count}{ports} (cluster {cluster_id}): start it with `holdfast-store dev --nodes {nodes} --data-dir {dir}{flag}`, or use an empty folder"
    )
}

/// What is wrong with the given ports: the addresses of the founded cluster's
/// members, and how to start it.
pub(crate) fn misplaced(
    dir: &Path,
    shape: Shape,
    members: &BTreeMap<NodeId, String>,
) -> Option<String> {
    let (id, at) = (1..=shape.nodes).find_map(|id| {
        Some((id, members.get(&id.into())?)).filter(|(_, at)| **at != shape.address(id))
    })?;
    let port = at.strip_prefix("127.0.0.1:").and_then(|port| port.parse::<u16>().ok());
    let base = port.and_then(|port| port.checked_sub(id));
    let next = base.map_or_else(
        || "an empty folder is the way out".to_owned(),
        |base| {
            let (nodes, dir) = (shape.nodes, dir.display());
            format!("start it with `holdfast-store dev --nodes {nodes} --data-dir {dir} --base-port {base}`")
        },
    );
    Some(format!(
        "node {id} of the cluster in {} was founded at {at}, and was started at {}, where the others do not look for it: {next}",
        dir.display(),
        shape.address(id)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::identity::Identity;

    const DIR: &str = "/tmp/holdfast";

    fn three(base_port: Option<u16>) -> Held {
        Held { cluster_id: "c1".to_owned(), nodes: 3, base_port }
    }

    fn decided(
        held: Option<&Held>,
        nodes: Option<u16>,
        base_port: Option<u16>,
    ) -> Result<(u16, u16), String> {
        let shape = decide(Path::new(DIR), held, (nodes, base_port))?;
        Ok((shape.nodes, shape.base_port))
    }

    #[test]
    fn an_empty_folder_takes_what_is_asked() {
        assert_eq!(decided(None, None, None), Ok((3, 21_000)));
        assert_eq!(decided(None, Some(5), Some(4_000)), Ok((5, 4_000)));
    }

    #[test]
    fn a_cluster_is_started_as_it_was_founded() {
        let held = three(Some(4_000));
        for (nodes, base_port) in
            [(None, None), (Some(3), None), (None, Some(4_000)), (Some(3), Some(4_000))]
        {
            assert_eq!(decided(Some(&held), nodes, base_port), Ok((3, 4_000)));
        }
        let wanted = "/tmp/holdfast holds a cluster of 3 nodes on ports 4001–4003 (cluster c1): start it with `holdfast-store dev --nodes 3 --data-dir /tmp/holdfast --base-port 4000`, or use an empty folder";
        for (nodes, base_port) in [(Some(5), None), (None, Some(21_000)), (Some(1), Some(4_000))] {
            assert_eq!(decided(Some(&held), nodes, base_port), Err(wanted.to_owned()));
        }
    }

    #[test]
    fn a_folder_that_does_not_tell_its_ports_tells_its_nodes() {
        assert_eq!(decided(Some(&three(None)), None, Some(4_000)), Ok((3, 4_000)));
        let refused = decided(Some(&three(None)), Some(1), None).unwrap_err();
        assert!(refused.contains("of 3 nodes (cluster c1)"), "{refused}");
    }

    #[test]
    fn a_folder_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(held(dir.path()).unwrap(), None);
        note(dir.path(), Shape { nodes: 3, base_port: 4_000 }).unwrap();
        assert_eq!(held(dir.path()).unwrap(), None, "no node has a place in a cluster");
        let found = |id: u16, cluster: &str| {
            let folder = of_node(dir.path(), id);
            fs::create_dir_all(&folder).unwrap();
            identity::write(&folder, &Identity::new(cluster.to_owned(), id.into(), 1)).unwrap();
        };
        found(2, "c1");
        assert_eq!(held(dir.path()).unwrap(), Some(three(Some(4_000))), "1 and 3 lost their disks");
        fs::remove_file(dir.path().join(FILE)).unwrap();
        let Held { nodes, base_port, .. } = held(dir.path()).unwrap().unwrap();
        assert_eq!((nodes, base_port), (2, None));
        found(3, "c2");
        let two = held(dir.path()).unwrap_err().to_string();
        assert!(two.contains("two clusters") && two.contains("node 3 of cluster c2"), "{two}");
    }

    #[test]
    fn a_file_that_is_not_ours_is_named_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let shape = Shape { nodes: 3, base_port: 4_000 };
        note(dir.path(), shape).unwrap();
        let edited = fs::read_to_string(&path).unwrap().replace("4000", "5000");
        for text in [
            "",
            "{",
            r#"{"scripts":{"dev":"vite"}}"#,
            r#"{"nodes":3,"base_port":1,"x":1}"#,
            r#"{"nodes":0,"base_port":1}"#,
            r#"{"nodes":3,"base_port":65530}"#,
            &edited,
        ] {
            fs::write(&path, text).unwrap();
            for error in [held(dir.path()).unwrap_err(), note(dir.path(), shape).unwrap_err()] {
                let error = error.to_string();
                assert!(error.contains(FILE) && error.contains("--base-port"), "{text}: {error}");
            }
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        // The format of earlier versions.
        fs::write(&path, "{\"nodes\":3,\"base_port\":4000}\n").unwrap();
        assert_eq!(noted(dir.path()).unwrap(), Some(shape));
    }

    #[test]
    fn ports_at_which_nobody_looks_for_the_nodes_are_named() {
        let dir = Path::new(DIR);
        let members = |base: u16| {
            (1..=3_u16).map(|id| (NodeId::from(id), format!("127.0.0.1:{}", base + id))).collect()
        };
        let shape = Shape { nodes: 3, base_port: 4_000 };
        assert_eq!(misplaced(dir, shape, &members(4_000)), None);
        assert_eq!(misplaced(dir, shape, &BTreeMap::new()), None, "it is not founded yet");
        let said = misplaced(dir, shape, &members(5_000)).unwrap();
        assert!(said.ends_with("--data-dir /tmp/holdfast --base-port 5000`"), "{said}");
    }
}
