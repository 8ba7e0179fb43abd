//! The whole state as a stream: what `holdfast backup` writes into a file.
//!
//! Any node makes one, of what it has applied, while it serves: the state is a
//! copy that shares everything, and the thread that encodes it has a lower
//! priority than all others and rests most of the time: its reader, the network and
//! the processors' caches would keep others waiting as well. A reader that takes nothing
//! for too long is cut off.

use std::io::{self, Write};
use std::time::Duration;

use axum::body::{Body as StreamBody, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use holdfast_api::backup::{self, BackupHeader};
use holdfast_api::{Code, Problem, Revision};
use holdfast_machine::Machine;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use super::App;
use super::problem::extract::Params;
use super::problem::{Failure, ReadProblems};
use crate::calendar;
use crate::node::VERSION;
use crate::storage::offload::Offload;

/// Concurrent backups on one node.
pub(crate) const BACKUPS_MAX: usize = 2;

/// Pieces that wait to be read, and the bytes of one.
const PIECES_MAX: usize = 4;
const PIECE_BYTES: usize = 128 * 1024;

/// For each moment in which a piece is made, so many pass until the next one is begun; in the
/// first half of the time that there is.
const REST_FACTOR: u32 = 3;
const REST_TIME_MAX: Duration = Duration::from_millis(50);

/// Longest time for a reader to take a piece.
const PIECE_TIME_MAX: Duration = Duration::from_secs(30);

/// Longest time for all of it: until then a copy of the state is kept.
const BACKUP_TIME_MAX: Duration = Duration::from_secs(3600);

/// How long a node that lags may take to apply what the backup is to hold.
const CATCH_UP_TIME_MAX: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Which state is wanted.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AtLeast {
    /// A revision that it must hold; a node that lags waits until it has it.
    #[serde(default)]
    #[param(required = false, example = 0)]
    pub revision: Revision,
}

/// A backup of the whole state, as the answering node has applied it.
#[utoipa::path(
    get, path = "/v1/backup", operation_id = "backup", tag = "operations", params(AtLeast),
    responses(
        (status = 200, description = "The backup, which carries its own checksums", content_type = "application/octet-stream"),
        ReadProblems
    )
)]
pub(crate) async fn backup(
    State(app): State<App>,
    Params(AtLeast { revision }): Params<AtLeast>,
) -> Result<Response, Failure> {
    let node = app.node()?;
    let Ok(place) = app.inner.backups.clone().try_acquire_owned() else {
        let message =
            "this node has reached its limit of backups at a time; ask another node, or retry";
        return Err(Problem::overloaded(message).into());
    };
    let until = Instant::now() + CATCH_UP_TIME_MAX;
    let machine = loop {
        let machine = node.machine().clone();
        if machine.revision() >= revision && machine.cluster_id().is_some() {
            break machine;
        }
        if Instant::now() > until {
            let message = format!(
                "this node has applied revision {}, not {revision} yet; ask another node, or retry",
                machine.revision()
            );
            return Err(Problem::retryable(Code::Unavailable, message).into());
        }
        drop(machine);
        tokio::time::sleep(LOOK_EVERY).await;
    };
    let header = BackupHeader {
        cluster_id: node.cluster_id().to_owned(),
        node: node.id(),
        version: VERSION.to_owned(),
        feature_level: machine.feature_level(),
        revision: machine.revision(),
        log_time: machine.time(),
        taken_at_ms: calendar::now_ms(),
    };
    let (give, pieces) = mpsc::channel::<Piece>(PIECES_MAX);
    let (runtime, begun) = (tokio::runtime::Handle::current(), Instant::now());
    let out = Pieces { give, piece: Vec::new(), runtime, begun, piece_begun: begun };
    let making = move || {
        if let Err(error) = make(&header, &machine, out, place) {
            tracing::warn!(%error, "a backup was not completed");
        }
    };
    app.inner.tasks.spawn(async move { drop(Offload::Threads.run_slowly(making).await) });
    let kind = HeaderValue::from_static("application/octet-stream");
    let next = async |mut pieces: mpsc::Receiver<Piece>| match pieces.recv().await {
        Some(Piece::Bytes(bytes)) => Ok(Some((bytes, pieces))),
        Some(Piece::End) => Ok(None),
        // The reader must not take this for the end of the stream.
        None => Err(io::Error::other("the backup was not made to its end")),
    };
    let body = StreamBody::from_stream(stream::try_unfold(pieces, next));
    Ok(([(header::CONTENT_TYPE, kind)], body).into_response())
}

fn make(
    header: &BackupHeader,
    machine: &Machine,
    out: Pieces,
    _place: OwnedSemaphorePermit,
) -> io::Result<()> {
    let mut blocks = backup::begin(out, header)?;
    machine.encode(&mut blocks)?;
    blocks.finish()?.end()
}

enum Piece {
    Bytes(Bytes),
    End,
}

/// A writer that sends what is written to it in pieces.
struct Pieces {
    give: mpsc::Sender<Piece>,
    piece: Vec<u8>,
    runtime: tokio::runtime::Handle,
    begun: Instant,
    /// When the piece in the making was begun.
    piece_begun: Instant,
}

impl Pieces {
    fn end(mut self) -> io::Result<()> {
        self.hand_on()?;
        self.give(Piece::End)
    }

    fn hand_on(&mut self) -> io::Result<()> {
        let rest = match self.begun.elapsed() < BACKUP_TIME_MAX / 2 {
            true => (self.piece_begun.elapsed() * REST_FACTOR).min(REST_TIME_MAX),
            false => Duration::ZERO,
        };
        let piece = Bytes::from(std::mem::take(&mut self.piece));
        self.give(Piece::Bytes(piece))?;
        // A timer is made inside of its runtime.
        match holdfast_api::planted!(TimerOutside) {
            true => self.runtime.block_on(tokio::time::sleep(rest)),
            false => self.runtime.block_on(async { tokio::time::sleep(rest).await }),
        }
        self.piece_begun = Instant::now();
        Ok(())
    }

    fn give(&self, piece: Piece) -> io::Result<()> {
        if self.begun.elapsed() > BACKUP_TIME_MAX {
            return Err(io::Error::other(format!("it took longer than {BACKUP_TIME_MAX:?}")));
        }
        let given = self.runtime.block_on(self.give.send_timeout(piece, PIECE_TIME_MAX));
        given.map_err(|_| io::Error::other("its reader takes nothing any more"))
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE_BYTES {
            self.hand_on()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
