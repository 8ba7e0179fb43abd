//! Identity of a data folder: written once, checked at every start.
//!
//! The identity is stored twice: in `identity.json`, which people can read
//! without the database, and in the database, so that a log moved or restored
//! alone does not pass for another node's.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use holdfast_api::{NodeId, crash_point};
use holdfast_net::regular_file::read_regular;
use serde::{Deserialize, Serialize};

use super::error::{Advice, StorageError};

/// Version of `identity.json` and of the layout of the data folder.
pub(crate) const FORMAT: u32 = 1;
/// Name of the file.
pub const FILE: &str = "identity.json";
/// Longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Identity of a data folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Version of the layout.
    pub format: u32,
    /// The cluster; a node never changes it.
    pub cluster_id: String,
    /// The node; an id is used by one disk, once.
    pub node_id: NodeId,
    /// A random number that differs between all folders ever made for the same node
    /// id.
    pub generation: u64,
    /// Whether the node has taken part in its cluster. From then on an empty
    /// log means that the log was lost.
    pub formed: bool,
}

impl Identity {
    /// A new folder's identity.
    pub fn new(cluster_id: String, node_id: NodeId, generation: u64) -> Identity {
        Identity { format: FORMAT, cluster_id, node_id, generation, formed: false }
    }

    /// Whether both are equal in all that does not change while a folder is in use.
    pub(crate) fn is_same_folder(&self, other: &Identity) -> bool {
        let Identity { format, cluster_id, node_id, generation, formed: _ } = self;
        *format == other.format
            && *cluster_id == other.cluster_id
            && *node_id == other.node_id
            && *generation == other.generation
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { cluster_id, node_id, generation, .. } = self;
        write!(f, "node {node_id} of cluster {cluster_id}, disk {generation:016x}")
    }
}

/// Only the version, to report a later one before failing on its fields.
#[derive(Deserialize)]
struct Versioned {
    format: u32,
}

/// Reads the file; none if there is none.
pub fn read(dir: &Path) -> Result<Option<Identity>, StorageError> {
    let path = dir.join(FILE);
    let damaged = |what: String| StorageError::Damaged {
        file: path.clone(),
        what,
        advice: Advice::RestoreFile,
    };
    let length = match fs::metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(StorageError::io(&path, "reading it"))?.len(),
    };
    if length > FILE_BYTES_MAX {
        return Err(damaged(format!("it has {length} bytes")));
    }
    let text =
        read_regular(&path, FILE_BYTES_MAX).map_err(StorageError::io(&path, "reading it"))?;
    let Versioned { format } =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    if format > FORMAT {
        return Err(StorageError::UnknownFormat { file: path, found: format, known: FORMAT });
    }
    serde_json::from_slice(&text).map(Some).map_err(|error| damaged(error.to_string()))
}

/// Writes the file atomically: a crash leaves the old or the new one.
pub fn write(dir: &Path, identity: &Identity) -> Result<(), StorageError> {
    let path = dir.join(FILE);
    let replace = || -> io::Result<()> {
        let fresh = dir.join("identity.json.new");
        let mut file = File::create(&fresh)?;
        serde_json::to_writer_pretty(&mut file, identity)?;
        file.write_all(b"\n")?;
        crash_point!(before IdentitySync);
        file.sync_all()?;
        crash_point!(after IdentitySync);
        fs::rename(&fresh, &path)?;
        crash_point!(before IdentityName);
        sync_dir(dir)?;
        crash_point!(after IdentityName);
        Ok(())
    };
    replace().map_err(StorageError::io(&path, "writing it"))
}

/// Makes new names in a folder durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        let identity = Identity::new("c1".into(), 3, u64::MAX);
        write(dir.path(), &identity).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(identity));
    }

    #[test]
    fn garbage_is_damage_and_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{", "[]", "{\"format\": 1}", "{\"format\": 1, \"node_id\": \"x\"}"] {
            fs::write(dir.path().join(FILE), text).unwrap();
            let error = read(dir.path()).unwrap_err();
            assert!(matches!(error, StorageError::Damaged { .. }), "{text:?}: {error}");
            assert!(error.to_string().contains("identity.json"), "{error}");
        }
    }

    #[test]
    fn a_later_format_is_named_even_with_unknown_fields() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "{\"format\": 9, \"colour\": \"red\"}").unwrap();
        let error = read(dir.path()).unwrap_err();
        assert!(matches!(error, StorageError::UnknownFormat { found: 9, known: 1, .. }));
    }
}
