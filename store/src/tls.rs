//! TLS of a node: its certificates for clients and nodes, the authorities it
//! trusts, and what a certificate allows.
//!
//! Without certificates everything is plain, and tokens alone decide who is let in.

use std::path::PathBuf;
use std::time::Duration;

use holdfast_api::{routes, token};
use holdfast_net::tls::{Acceptor, AcceptorFiles, Caller, Dialer, File, Identity, TlsError};

/// Paths of what is between nodes.
pub(crate) const PEER_PATHS: &str = "/raft/";

/// How often the files are checked for changes.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The certificates, if there are any. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    acceptor: Option<Acceptor>,
    dialer: Option<Dialer>,
}

/// The files named by flags; all of them, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsPaths {
    pub(crate) cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// `--tls-client-ca`: may be missing.
    pub(crate) client_ca: Option<PathBuf>,
    pub(crate) peer_cert: Option<PathBuf>,
    pub(crate) peer_key: Option<PathBuf>,
    pub(crate) peer_ca: Option<PathBuf>,
}

/// Why a node has no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsSetupError {
    /// Some files are named, and others are not.
    #[error(
        "{given} is of no use without {missing}: `holdfast-store tls init DIR --nodes LIST` makes all of them"
    )]
    Incomplete {
        /// A flag and its file.
        given: String,
        /// The flags that belong to it.
        missing: String,
    },
    /// The files are invalid.
    #[error(transparent)]
    Files(#[from] TlsError),
}

/// What a connection's certificate means for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admittance {
    /// It may do what the shared token allows, and needs none.
    LetIn,
    AskToken,
    /// Only nodes may send this.
    NotPeer,
}

impl TlsPaths {
    pub(crate) fn read(self) -> Result<Tls, TlsSetupError> {
        const CERT: &str = "--tls-cert";
        const KEY: &str = "--tls-key";
        const CLIENT_CA: &str = "--tls-client-ca";
        const PEER_CERT: &str = "--peer-tls-cert";
        const PEER_KEY: &str = "--peer-tls-key";
        const PEER_CA: &str = "--peer-tls-ca";
        let file = |flag, path: Option<PathBuf>| {
            let path = path.filter(|path| !path.as_os_str().is_empty());
            path.map(|path| File { flag, path })
        };
        let clients = file(CLIENT_CA, self.client_ca);
        let needed = [
            (CERT, file(CERT, self.cert)),
            (KEY, file(KEY, self.key)),
            (PEER_CERT, file(PEER_CERT, self.peer_cert)),
            (PEER_KEY, file(PEER_KEY, self.peer_key)),
            (PEER_CA, file(PEER_CA, self.peer_ca)),
        ];
        let mut given = needed.iter().filter_map(|(_, file)| file.as_ref()).chain(&clients);
        let Some(given) = given.next().map(ToString::to_string) else { return Ok(Tls::default()) };
        let missing: Vec<&str> =
            needed.iter().filter(|(_, file)| file.is_none()).map(|(flag, _)| *flag).collect();
        let [
            (_, Some(cert)),
            (_, Some(key)),
            (_, Some(peer_cert)),
            (_, Some(peer_key)),
            (_, Some(peers)),
        ] = needed
        else {
            return Err(TlsSetupError::Incomplete { given, missing: missing.join(", ") });
        };
        let serving = Identity { cert, key };
        let peer = Identity { cert: peer_cert, key: peer_key };
        let dialer = Dialer::for_peers(peers.clone(), peer.clone())?;
        let acceptor = Acceptor::new(AcceptorFiles { serving, clients, peer, peers })?;
        Ok(Tls { acceptor: Some(acceptor), dialer: Some(dialer) })
    }
}

impl Tls {
    /// For a client, which accepts no connections.
    pub fn of_client(dialer: Dialer) -> Tls {
        Tls { acceptor: None, dialer: Some(dialer) }
    }

    /// How connections are accepted; none: plain.
    pub fn acceptor(&self) -> Option<&Acceptor> {
        self.acceptor.as_ref()
    }

    /// How connections are made; none: plain.
    pub fn dialer(&self) -> Option<&Dialer> {
        self.dialer.as_ref()
    }

    /// Whether clients without a certificate are refused where there is no token.
    pub(crate) fn wants_certificates(&self) -> bool {
        self.acceptor.as_ref().is_some_and(|acceptor| acceptor.files().clients.is_some())
    }

    /// What a connection of this caller may request; none: it was accepted plain.
    pub(crate) fn admittance(&self, path: &str, caller: Option<Caller>) -> Admittance {
        match caller {
            _ if self.acceptor.is_none() => Admittance::AskToken,
            // The nodes' token, if there is one, is required as well.
            Some(Caller::Peer) if path.starts_with(PEER_PATHS) => Admittance::AskToken,
            _ if path.starts_with(PEER_PATHS) => Admittance::NotPeer,
            Some(Caller::Peer | Caller::Certified) => Admittance::LetIn,
            Some(Caller::Unknown) | None => Admittance::AskToken,
        }
    }

    /// Whether a client without a certificate may not use a path, where there is no
    /// token.
    pub(crate) fn keeps_out(&self, path: &str, caller: Option<Caller>) -> bool {
        self.wants_certificates() && caller != Some(Caller::Peer) && !routes::OPEN.contains(&path)
    }

    /// Warnings about the files for the operator.
    pub(crate) fn warning(&self) -> Option<String> {
        let files = self.acceptor.as_ref()?.files();
        [&files.serving, &files.peer].into_iter().find_map(|identity| {
            let advice = token::exposed(identity.key_mode()?)?;
            Some(format!("{}: {advice} {}", identity.key, identity.key.path.display()))
        })
    }

    /// Follows changes of the files. Invalid files change nothing. Runs until it is
    /// dropped.
    pub(crate) async fn follow_files(self) {
        let Tls { acceptor: Some(acceptor), dialer: Some(dialer) } = self else { return };
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let (acceptor, dialer) = (acceptor.clone(), dialer.clone());
            let looking = tokio::task::spawn_blocking(move || {
                acceptor.refresh();
                dialer.refresh();
            });
            if let Err(error) = looking.await {
                tracing::warn!(%error, "cannot look at the certificates");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_together_or_not_at_all() {
        assert!(TlsPaths::default().read().unwrap().acceptor().is_none());
        let path = || Some(PathBuf::from("x"));
        for (given, named, missing) in [
            (TlsPaths { cert: path(), ..Default::default() }, "--tls-cert", "--tls-key"),
            (TlsPaths { client_ca: path(), ..Default::default() }, "--tls-client-ca", "--tls-cert"),
            (
                TlsPaths { cert: path(), key: path(), ..Default::default() },
                "--tls-cert",
                "--peer-tls-cert, --peer-tls-key, --peer-tls-ca",
            ),
        ] {
            let error = given.read().unwrap_err().to_string();
            assert!(error.contains(named) && error.contains(missing), "{error}");
            assert!(error.contains("tls init"), "{error}");
        }
    }
}
