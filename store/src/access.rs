//! Access to this node: a client or node needs one of the tokens in its file.
//! This node presents the first of them to the others, unless nodes have a file
//! of their own: then only nodes with a token of that file may use the paths
//! between nodes.
//!
//! Signed tokens are taken by the public keys in another file; each says what its
//! holder may do.
//!
//! A file is read again while the node runs, so that a token or a key can be replaced
//! without a restart.

mod followed;
mod signed;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::join_all;
use holdfast_api::grant::{self, PublicKeys};
use holdfast_api::routes;
use holdfast_api::token::{self, Tokens};
use holdfast_api::{Name, Problem};
use http::{HeaderMap, HeaderValue, header};
use subtle::{Choice, ConstantTimeEq};

use self::followed::Followed;
use crate::calendar;
use crate::principal::{HeldToken, Principal};
use crate::tls::{PEER_PATHS, Tls};

/// Why a file of tokens or keys is invalid.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The file cannot be read.
    #[error("{flag} {path}: {why}; {}", made(flag, path))]
    Unreadable {
        /// The flag that names it.
        flag: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        why: std::io::Error,
    },
    /// The file holds something else.
    #[error("{flag} {path}: {why}")]
    Invalid {
        /// The flag that names it.
        flag: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
}

const TOKEN_FILE: &str = "--token-file";
const PEER_TOKEN_FILE: &str = "--peer-token-file";
const TOKEN_KEYS: &str = "--token-keys";

/// How the file that a flag names is made.
fn made(flag: &str, path: &Path) -> String {
    let path = path.display();
    match flag {
        TOKEN_KEYS => {
            "make a key: `holdfast token keygen KEY`, which writes KEY.pub for the nodes".to_owned()
        }
        _ => format!(
            "make one: `(umask 077; openssl rand -hex 32 > {path})`, the same for all that use it"
        ),
    }
}

/// The tokens and keys, if there are any. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Access {
    guarded: Option<Arc<Followed<Tokens>>>,
    /// Tokens of the nodes alone.
    peers: Option<Arc<Followed<Tokens>>>,
    /// Keys of signed tokens.
    keys: Option<Arc<Followed<PublicKeys>>>,
    /// Certificates for accepted and opened connections.
    tls: Tls,
}

impl Access {
    /// No token: every request is accepted.
    pub fn open() -> Access {
        Access::default()
    }

    /// The tokens of a file.
    pub(crate) fn from_file(path: &Path) -> Result<Access, AccessError> {
        let guarded = Some(read_tokens(TOKEN_FILE, path)?);
        Ok(Access { guarded, ..Access::default() })
    }

    /// The same, with another file's tokens for requests between nodes.
    pub(crate) fn with_peers(self, path: &Path) -> Result<Access, AccessError> {
        let peers = Some(read_tokens(PEER_TOKEN_FILE, path)?);
        Ok(Access { peers, ..self })
    }

    /// The same, with the public keys of a file: tokens that they signed are taken, too.
    pub(crate) fn with_keys(self, path: &Path) -> Result<Access, AccessError> {
        let parse = |file: &[u8]| PublicKeys::parse(file).map_err(|error| error.to_string());
        let keys = Some(Followed::read(TOKEN_KEYS, path, "token keys", parse)?);
        Ok(Access { keys, ..self })
    }

    /// The same, with these certificates.
    pub(crate) fn with_tls(self, tls: Tls) -> Access {
        Access { tls, ..self }
    }

    /// TLS certificates of this node.
    pub fn tls(&self) -> &Tls {
        &self.tls
    }

    /// Whether there is a token at all.
    pub(crate) fn is_guarded(&self) -> bool {
        self.guarded.is_some()
    }

    /// Whether access is restricted, by a token or by certificates.
    pub(crate) fn is_restricted(&self) -> bool {
        self.is_guarded() || self.tls.wants_certificates()
    }

    /// Warnings about the file for the operator.
    pub(crate) fn warning(&self) -> Option<String> {
        let of_tokens = self.files().find_map(|guarded| {
            let (advice, path) = (token::exposed(guarded.mode())?, guarded.path().display());
            Some(format!("{} {path}: {advice} {path}", guarded.flag()))
        });
        of_tokens.or_else(|| self.tls.warning())
    }

    /// Whether a request with these headers may use this path. Its duration reveals
    /// nothing about the tokens but their number and lengths.
    pub(crate) fn admits(&self, path: &str, headers: &HeaderMap) -> bool {
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
        let tokens = guarded.get();
        let verdicts = tokens.iter().map(|token| token.as_str().as_bytes().ct_eq(given));
        verdicts.fold(Choice::from(0), |any, this| any | this).into()
    }

    /// The signed token in these headers, if there is one.
    pub(crate) fn signed_token(headers: &HeaderMap) -> Option<&str> {
        let given = token::bearer(headers.get(header::AUTHORIZATION)?.as_bytes())?;
        let given = Some(given).filter(|given| grant::is_signed(given))?;
        std::str::from_utf8(given).ok()
    }

    /// Whether signed tokens are taken here.
    pub(crate) fn takes_signed_tokens(&self) -> bool {
        self.keys.is_some()
    }

    /// Ids of the keys whose tokens are taken.
    pub(crate) fn key_ids(&self) -> Vec<Name> {
        let keys = self.keys.iter();
        keys.flat_map(|keys| keys.get().iter().map(|key| key.id().clone()).collect::<Vec<_>>())
            .collect()
    }

    /// Who holds a signed token; the error says why nobody.
    pub(crate) fn verify(&self, token: &str) -> Result<Principal, Problem> {
        let keys = self.keys.as_ref().ok_or_else(no_keys)?;
        signed::verify(&keys.get(), token, calendar::now_ms())
    }

    /// Whether a signed token that was valid once still is.
    pub(crate) fn is_current(&self, token: &HeldToken) -> Result<(), Problem> {
        let keys = self.keys.as_ref().ok_or_else(no_keys)?;
        signed::is_current(token, &keys.get(), calendar::now_ms())
    }

    /// Whether this path never needs a token.
    pub(crate) fn is_open_path(path: &str) -> bool {
        routes::OPEN.contains(&path)
    }

    /// Headers that this node's own requests to other nodes carry.
    pub fn headers(&self) -> HeaderMap {
        Access::headers_of(self.peers.as_ref().or(self.guarded.as_ref()))
    }

    /// Headers of a caller's request that this node passes on: a signed token itself, so
    /// that the right stays the caller's.
    pub(crate) fn headers_for(&self, caller: &Principal) -> HeaderMap {
        match caller.token() {
            Some(token) => {
                HeaderMap::from_iter([(header::AUTHORIZATION, token.authorization.clone())])
            }
            None => Access::headers_of(self.guarded.as_ref()),
        }
    }

    fn headers_of(guarded: Option<&Arc<Followed<Tokens>>>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(guarded) = guarded {
            let value = HeaderValue::try_from(guarded.get().first().authorization());
            let mut value = value.expect("a token is made of visible ASCII");
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        headers
    }

    fn files(&self) -> impl Iterator<Item = &Arc<Followed<Tokens>>> {
        self.guarded.iter().chain(&self.peers)
    }

    /// Follows changes of the files. An invalid file changes nothing. Runs until it
    /// is dropped.
    pub(crate) async fn follow_file(self) {
        let tokens = join_all(self.files().map(|guarded| guarded.clone().follow()));
        let keys = join_all(self.keys.iter().map(|keys| keys.clone().follow()));
        tokio::join!(tokens, keys, self.tls.clone().follow_files());
    }
}

fn read_tokens(flag: &'static str, path: &Path) -> Result<Arc<Followed<Tokens>>, AccessError> {
    let parse = |file: &[u8]| Tokens::parse(file).map_err(|error| error.to_string());
    Followed::read(flag, path, "tokens", parse)
}

/// A signed token, and no keys to look at it with.
fn no_keys() -> Problem {
    let message = "this node takes no signed tokens: start it with --token-keys FILE, which `holdfast token keygen` makes";
    Problem::refused(holdfast_api::Code::Unauthorized, message)
}

#[cfg(test)]
mod tests {
    use super::followed::READ_EVERY;
    use super::*;
    use crate::principal::Proof;

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
        let shared = Principal::admin(Proof::SharedToken);
        assert_eq!((access.headers(), access.headers_for(&shared)), (peer, job));
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
