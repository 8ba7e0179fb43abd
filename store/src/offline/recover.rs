//! `holdfast-store recover`: what a minority still holds, as a backup.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use holdfast_api::backup::{self, BackupHeader};
use holdfast_api::crash_point;

use crate::calendar;
use crate::node::VERSION;
use crate::storage::survey::Survey;

/// Flags of `holdfast-store recover`.
#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// Read this data folder, of a surviving node that is stopped; of several, the one with the
    /// highest last term and entry in `holdfast-store inspect`
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Write the backup to this file; `holdfast-store restore` begins a new cluster with it
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Confirm that entries reported as missing may be lost
    #[arg(long)]
    accept_loss: bool,
}

/// Writes the backup. Blocks.
pub fn run(args: &RecoverArgs) -> anyhow::Result<()> {
    let RecoverArgs { dir, file, accept_loss } = args;
    if file.try_exists().with_context(|| file.display().to_string())? {
        bail!("{} is there already; name another file; nothing was written", file.display());
    }
    let survey = Survey::of(dir)?;
    let Survey { identity, machine, .. } = &survey;
    let Some(last) = survey.last() else { bail!("{} holds nothing", dir.display()) };
    let Some(cluster_id) = machine.cluster_id() else {
        bail!("{} holds no cluster that was founded", dir.display());
    };
    let voters = survey.voters();
    let others = voters.iter().filter(|id| **id != identity.node_id).count();
    eprintln!(
        "node {} of cluster {cluster_id} holds everything up to entry {} of term {}: revision {}, log time {} ms.",
        identity.node_id,
        last.index,
        last.term,
        machine.revision(),
        machine.time()
    );
    if others > 0 {
        eprintln!(
            "The other {others} of {} voters may have acknowledged entries after that: those, and they alone, would be missing. Entries in it that were never acknowledged are kept.",
            voters.len()
        );
    }
    if others > 0 && !accept_loss {
        bail!(
            "nothing was written. Bring back {} of the voters {voters:?} if their folders can be had, or take the folder with the highest last term and entry; to go on without the others add --accept-loss",
            voters.len() / 2 + 1
        );
    }
    let header = BackupHeader {
        cluster_id: cluster_id.to_owned(),
        node: identity.node_id,
        version: VERSION.to_owned(),
        feature_level: machine.feature_level(),
        revision: machine.revision(),
        log_time: machine.time(),
        taken_at_ms: calendar::now_ms(),
    };
    // A file of that name is whole: it gets the name when it is.
    let mut draft = file.clone().into_os_string();
    draft.push(".part");
    let draft = PathBuf::from(draft);
    let writing = || -> io::Result<()> {
        let mut blocks = backup::begin(BufWriter::new(created(&draft)?), &header)?;
        machine.encode(&mut blocks)?;
        let out = blocks.finish()?.into_inner()?;
        crash_point!(before BackupSync);
        out.sync_all()?;
        crash_point!(after BackupSync);
        fs::rename(&draft, file)?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        crash_point!(before BackupName);
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        crash_point!(after BackupName);
        Ok(())
    };
    if let Err(error) = writing() {
        // A partial backup is useless.
        let _ = fs::remove_file(&draft);
        return Err(error).with_context(|| format!("writing {}", file.display()));
    }
    println!("wrote {}; go on with `holdfast-store restore {0} …`", file.display());
    Ok(())
}

/// A new file, in the place of one that an interrupted try has left. It will hold every
/// key: readable by the owner only.
fn created(draft: &Path) -> io::Result<File> {
    match fs::remove_file(draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::options().write(true).create_new(true).mode(0o600).open(draft),
    }
}
