//! Access to this node: a client or node needs one of the tokens in its file.
//! This node presents the first of them to the others, unless nodes have a file
//! of their own: then only nodes with a token of that file may use the paths
//! between nodes.
//!
//! A file is read again while the node runs, so that a token can be replaced
//! without a restart.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use holdfast_api::routes::{LIVEZ, METRICS, READYZ};
use holdfast_api::token::{self, FILE_BYTES_MAX, TokenError, Tokens};
use http::{HeaderMap, HeaderValue, header};
use parking_lot::RwLock;
use subtle::{Choice, ConstantTimeEq};

use crate::regular_file::open_regular;
use crate::tls::Tls;

/// How often the file is read again.
const READ_EVERY: Duration = Duration::from_secs(2);

/// Paths that need no token: probes and metrics scrapers have none, and metrics
/// hold sizes and counts, no stored data.
const OPEN_PATHS: [&str; 3] = [LIVEZ, READYZ, METRICS];

/// What is between nodes.
pub(crate) const PEER_PATHS: &str = "/raft/";

/// Why a token file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The token file cannot be read.
    #[error(
        "{flag} {path}: {why}; make one: `(umask 077; openssl rand -hex 32 > {path})`, the same for all that use it"
    )]
    Unreadable {
        /// The flag that names it.
        flag: &'static str,
        /// Path of the token file.
        path: PathBuf,
        /// The operating system's error.
        why: std::io::Error,
    },
    /// The file holds no valid tokens.
    #[error("{flag} {path}: {why}")]
    Invalid {
        /// The flag that names it.
        flag: &'static str,
        /// Path of the token file.
        path: PathBuf,
        /// What is wrong.
        why: TokenError,
    },
}

/// The tokens, if there are any. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Access {
    guarded: Option<Arc<Guarded>>,
    /// Tokens of the nodes alone.
    peers: Option<Arc<Guarded>>,
    /// Certificates for accepted and opened connections.
    tls: Tls,
}

#[derive(Debug)]
struct Guarded {
    flag: &'static str,
    path: PathBuf,
    /// The file's permissions when it was first read.
    mode: u32,
    tokens: RwLock<Tokens>,
}

impl Access {
    /// No token: every request is accepted.
    pub fn open() -> Access {
        Access::default()
    }

    /// The tokens of a file.
    pub fn from_file(path: &Path) -> Result<Access, AccessError> {
        let guarded = Some(Guarded::read("--token-file", path)?);
        Ok(Access { guarded, ..Access::default() })
    }

    /// The same, with another file's tokens for requests between nodes.
    pub fn with_peers(self, path: &Path) -> Result<Access, AccessError> {
        let peers = Some(Guarded::read("--peer-token-file", path)?);
        Ok(Access { peers, ..self })
    }

    /// The same, with these certificates.
    pub fn with_tls(self, tls: Tls) -> Access {
        Access { tls, ..self }
    }

    /// TLS certificates of this node.
    pub fn tls(&self) -> &Tls {
        &self.tls
    }

    /// Whether there is a token at all.
    pub fn is_guarded(&self) -> bool {
        self.guarded.is_some()
    }

    /// Whether access is restricted, by a token or by certificates.
    pub fn is_restricted(&self) -> bool {
        self.is_guarded() || self.tls.wants_certificates()
    }

    /// Warnings about the file for the operator.
    pub fn warning(&self) -> Option<String> {
        let of_tokens = self.files().find_map(|guarded| {
            let Guarded { flag, path, mode, .. } = guarded.as_ref();
            let (advice, path) = (token::exposed(*mode)?, path.display());
            Some(format!("{flag} {path}: {advice} {path}"))
        });
        of_tokens.or_else(|| self.tls.warning())
    }

    /// Whether a request with these headers may use this path. Its duration reveals
    /// nothing about the tokens but their number and lengths.
    pub fn admits(&self, path: &str, headers: &HeaderMap) -> bool {
        let Some(guarded) = &self.guarded else { return true };
        if Access::is_open_path(path) {
            return true;
        }
        let guarded = match &self.peers {
            Some(peers) if path.starts_with(PEER_PATHS) => peers,
            _ => guarded,
        };
        let given = headers.get(header::AUTHORIZATION);
        let Some(given) = given.and_then(|value| token::bearer(value.as_bytes())) else {
            return false;
        };
        let tokens = guarded.tokens.read();
        let verdicts = tokens.iter().map(|token| token.as_str().as_bytes().ct_eq(given));
        verdicts.fold(Choice::from(0), |any, this| any | this).into()
    }

    /// Whether this path never needs a token.
    pub fn is_open_path(path: &str) -> bool {
        OPEN_PATHS.contains(&path)
    }

    /// Headers that this node's own requests to other nodes carry.
    pub fn headers(&self) -> HeaderMap {
        Access::headers_of(self.peers.as_ref().or(self.guarded.as_ref()))
    }

    /// Headers of a client's request that this node passes on.
    pub fn client_headers(&self) -> HeaderMap {
        Access::headers_of(self.guarded.as_ref())
    }

    fn headers_of(guarded: Option<&Arc<Guarded>>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(guarded) = guarded {
            let value = HeaderValue::try_from(guarded.tokens.read().first().authorization());
            let mut value = value.expect("a token is made of visible ASCII");
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        headers
    }

    fn files(&self) -> impl Iterator<Item = &Arc<Guarded>> {
        self.guarded.iter().chain(&self.peers)
    }

    /// Follows changes of the files. An invalid file changes nothing. Runs until it
    /// is dropped.
    pub async fn follow_file(self) {
        let tokens = join_all(self.files().map(|guarded| guarded.clone().follow()));
        tokio::join!(tokens, self.tls.clone().follow_files());
    }
}

impl Guarded {
    fn read(flag: &'static str, path: &Path) -> Result<Arc<Guarded>, AccessError> {
        let (tokens, mode) = read(flag, path)?;
        let tokens = RwLock::new(tokens);
        Ok(Arc::new(Guarded { flag, path: path.to_owned(), mode, tokens }))
    }

    async fn follow(self: Arc<Self>) {
        let guarded = self;
        let mut complaint = String::new();
        loop {
            tokio::time::sleep(READ_EVERY).await;
            let (flag, path) = (guarded.flag, guarded.path.clone());
            let said = match tokio::task::spawn_blocking(move || read(flag, &path)).await {
                Ok(Ok((tokens, _))) => {
                    guarded.take_over(tokens);
                    String::new()
                }
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            if said != complaint && !said.is_empty() {
                tracing::warn!("{said}; the tokens read before stay in force");
            }
            complaint = said;
        }
    }

    fn take_over(&self, tokens: Tokens) {
        if *self.tokens.read() != tokens {
            let count = tokens.iter().count();
            tracing::info!(file = %self.path.display(), accepted = count, "read new tokens");
            *self.tokens.write() = tokens;
        }
    }
}

/// The tokens in a file, and the file's permissions.
fn read(flag: &'static str, path: &Path) -> Result<(Tokens, u32), AccessError> {
    let unreadable = |why| AccessError::Unreadable { flag, path: path.to_owned(), why };
    let file = open_regular(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.mode();
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(unreadable)?;
    let invalid = |why| AccessError::Invalid { flag, path: path.to_owned(), why };
    Ok((Tokens::parse(&text).map_err(invalid)?, mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "the-old-token-0123456789";
    const NEW: &str = "the-new-token-0123456789";

    fn access(text: &str) -> Access {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Access::from_file(file.path()).unwrap()
    }

    fn carrying(authorization: &str) -> HeaderMap {
        let value = HeaderValue::from_str(authorization).unwrap();
        HeaderMap::from_iter([(header::AUTHORIZATION, value)])
    }

    #[test]
    fn each_token_of_the_file_is_accepted_and_nothing_else() {
        let access = access(&format!("{OLD}\n{NEW}\n"));
        for (authorization, admitted) in [
            (format!("Bearer {OLD}"), true),
            (format!("bearer {NEW}"), true),
            (format!("Bearer {OLD}{NEW}"), false),
            (format!("Bearer {}", &OLD[..OLD.len() - 1]), false),
            (format!("Basic {OLD}"), false),
            ("Bearer ".to_owned(), false),
        ] {
            let headers = carrying(&authorization);
            assert_eq!(access.admits("/v1/status", &headers), admitted, "{authorization}");
        }
        assert!(!access.admits("/v1/status", &HeaderMap::new()));
        assert_eq!(access.headers(), carrying(&format!("Bearer {OLD}")));
    }

    #[test]
    fn probes_and_scrapers_need_no_token() {
        let access = access(OLD);
        for path in ["/livez", "/readyz", "/metrics"] {
            assert!(access.admits(path, &HeaderMap::new()), "{path}");
        }
        for path in ["/", "/livez/", "/v1/stream", "/raft/v1/identity", "/openapi.json"] {
            assert!(!access.admits(path, &HeaderMap::new()), "{path}");
        }
    }

    #[test]
    fn what_is_between_nodes_takes_their_own_token_alone() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), NEW).unwrap();
        let access = access(OLD).with_peers(file.path()).unwrap();
        let (job, peer) = (carrying(&format!("Bearer {OLD}")), carrying(&format!("Bearer {NEW}")));
        for (path, of_job, of_peer) in [
            ("/raft/v1/channel/append", false, true),
            ("/raft/v1/identity", false, true),
            ("/v1/stream", true, false),
            ("/v1/kv/put", true, false),
        ] {
            let admitted = [&job, &peer].map(|headers| access.admits(path, headers));
            assert_eq!(admitted, [of_job, of_peer], "{path}");
        }
        assert_eq!((access.headers(), access.client_headers()), (peer, job));
    }

    #[test]
    fn without_a_file_everybody_is_let_in() {
        let access = Access::open();
        assert!(access.admits("/v1/status", &HeaderMap::new()));
        assert!(access.headers().is_empty());
    }

    #[test]
    fn a_file_that_is_missing_or_holds_no_token_is_named_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let missing = Access::from_file(&path).unwrap_err().to_string();
        assert!(missing.contains("openssl rand") && missing.contains("token"), "{missing}");
        let folder = Access::from_file(folder.path()).unwrap_err().to_string();
        assert!(folder.contains("not a regular file"), "{folder}");
        std::fs::write(&path, "short\n").unwrap();
        let short = Access::from_file(&path).unwrap_err().to_string();
        assert!(short.contains("line 1") && !short.contains("short\n"), "{short}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_changes_is_followed_and_a_bad_one_is_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), OLD).unwrap();
        let access = Access::from_file(file.path()).unwrap();
        let admits = |token: &str| access.admits("/", &carrying(&format!("Bearer {token}")));
        let following = access.clone().follow_file();
        tokio::pin!(following);
        for (text, old, new) in [
            (format!("{OLD}\n{NEW}"), true, true),
            ("no token".to_owned(), true, true),
            (NEW.to_owned(), false, true),
        ] {
            std::fs::write(file.path(), &text).unwrap();
            let _ = tokio::time::timeout(READ_EVERY * 3, &mut following).await;
            assert_eq!((admits(OLD), admits(NEW)), (old, new), "{text}");
        }
    }
}
