//! Backups: the state of the cluster in a file, with its own checksums.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use holdfast_api::backup::{self, BackupHeader};
use holdfast_api::blocks::FormatError;
use holdfast_api::{Problem, Read as Question, Status};
use holdfast_client::{Consistency, FetchError, download};
use serde::Serialize;

use super::{Context, status};
use crate::cli::{BackupArgs, BackupCommand};
use crate::exit::Failure;
use crate::output::Document;

/// Longest silence of a node that makes a backup.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Makes a backup, or reads one.
pub(crate) async fn run(context: &Context, arguments: BackupArgs) -> Result<(), Failure> {
    let BackupArgs { command, file, force, stale } = arguments;
    match (command, file) {
        (Some(BackupCommand::Verify { file }), _) => context.emit(&verify(&file)?),
        (None, Some(file)) if is_dash(&file) => to_stdout(context, stale).await,
        (None, Some(file)) => context.emit(&to_file(context, &file, force, stale).await?),
        (None, None) => Err(Failure::Usage("which file? `holdfast backup FILE`".to_owned())),
    }
}

fn is_dash(file: &Path) -> bool {
    file.as_os_str() == "-"
}

async fn to_stdout(context: &Context, stale: bool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if out.is_terminal() {
        let why =
            "a backup is bytes: name a file, or send them on, `holdfast backup - | zstd > FILE`";
        return Err(Failure::Usage(why.to_owned()));
    }
    take(context, stale, &mut out).await?;
    out.flush()?;
    Ok(())
}

async fn to_file(
    context: &Context,
    file: &Path,
    force: bool,
    stale: bool,
) -> Result<Backup, Failure> {
    if !force && file.try_exists().unwrap_or(true) {
        let why =
            format!("{} is there already: choose another name, or add --force", file.display());
        return Err(Failure::Usage(why));
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let cannot = |what: &str, error: io::Error| {
        Failure::System(format!("{} cannot be {what}: {error}", file.display()))
    };
    // It holds every key: only its owner may read it. If this fails, it is removed.
    let mut draft = tempfile::Builder::new();
    let draft = draft.prefix(".holdfast-backup-").suffix(".part").tempfile_in(folder);
    let mut draft = draft.map_err(|error| cannot("made", error))?;
    take(context, stale, draft.as_file_mut()).await.map_err(|failure| match failure {
        Failure::Output(error) => cannot("written", error),
        failure => failure,
    })?;
    draft.as_file().sync_all().map_err(|error| cannot("written", error))?;
    let backup = Backup { file: file.to_owned(), ..verify(draft.path())? };
    let named = match force {
        true => draft.persist(file),
        // It does not replace a file made there since.
        false => draft.persist_noclobber(file),
    };
    named.map_err(|error| cannot("named", error.error))?;
    // The name has to be durable, too.
    let folder = File::open(folder).and_then(|folder| folder.sync_all());
    folder.map_err(|error| cannot("kept", error))?;
    Ok(backup)
}

/// Has a node make a backup: one that does not lead, if possible.
async fn take(context: &Context, stale: bool, out: &mut impl Write) -> Result<(), Failure> {
    let revision = match stale {
        true => 0,
        false => {
            let asked =
                context.client.read(Question::Jobs, Consistency::Linearizable, context.deadline());
            asked.await?.revision
        }
    };
    let status = status::ask(context).await?;
    let mut why = String::from("no node of the cluster answers");
    for address in sources(&status) {
        let mut bytes = 0;
        let path = format!("/v1/backup?revision={revision}");
        let token = context.client.credentials();
        let keep = |piece: bytes::Bytes| {
            bytes += piece.len();
            out.write_all(&piece)
        };
        match download(&address, &path, token, SILENCE_MAX, keep).await {
            Ok(answer) if answer.status.is_success() => return Ok(()),
            Ok(answer) => {
                let problem = serde_json::from_slice::<Problem>(&answer.body);
                why = problem.map_or_else(|_| answer.status.to_string(), |problem| problem.message);
            }
            Err(FetchError::Kept(error)) => return Err(error.into()),
            Err(error) if bytes > 0 => {
                return Err(Failure::Unreachable(format!(
                    "{address} broke off: {error}; try again"
                )));
            }
            Err(error) => why = error.to_string(),
        }
        why = format!("{address}: {why}");
    }
    Err(Failure::Unreachable(format!("no node made a backup; {why}")))
}

/// Addresses of the nodes, the least busy ones first.
fn sources(status: &Status) -> Vec<String> {
    let mut nodes: Vec<_> = status.nodes.iter().collect();
    nodes.sort_by_key(|node| Some(node.id) == status.leader);
    nodes.into_iter().map(|node| node.address.clone()).collect()
}

/// Reads all of a backup.
fn verify(file: &Path) -> Result<Backup, Failure> {
    let named = file.display();
    let cannot = |error: io::Error| Failure::Input(format!("{named} cannot be read: {error}"));
    let input: Box<dyn Read> = match is_dash(file) {
        true => Box::new(io::stdin().lock()),
        false => Box::new(File::open(file).map_err(cannot)?),
    };
    let wrong = |error: FormatError| match error {
        FormatError::Io(error) => cannot(error),
        FormatError::Version(found) => Failure::Input(format!(
            "{named} is a backup of format {found}, this program reads {}: use a newer one",
            backup::VERSION
        )),
        error => Failure::Input(format!("{named} is not a whole backup: {error}")),
    };
    let mut counted = Counted { input: BufReader::new(input), bytes: 0 };
    let (header, blocks) = backup::open(&mut counted).map_err(wrong)?;
    blocks.verify().map_err(wrong)?;
    Ok(Backup { file: file.to_owned(), bytes: counted.bytes, header })
}

struct Counted<R> {
    input: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(out)?;
        self.bytes += count as u64;
        Ok(count)
    }
}

/// A backup that is whole.
#[derive(Debug, Serialize)]
struct Backup {
    file: PathBuf,
    bytes: u64,
    #[serde(flatten)]
    header: BackupHeader,
}

impl Document for Backup {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let Backup { file, bytes, header } = self;
        let BackupHeader { cluster_id, node, version, revision, .. } = header;
        writeln!(
            out,
            "{}: {}, whole; revision {revision} of cluster {cluster_id}, made by node {node} (version {version})",
            file.display(),
            ByteSize(*bytes).display().iec(),
        )
    }
}
