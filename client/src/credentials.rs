//! What a client shows to the nodes, and which nodes it trusts.

use std::path::PathBuf;

use holdfast_net::tls::{Dialer, File, Identity, TlsError};

/// What a client shows to the nodes, and which nodes it trusts. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// File with the token that the cluster asks for.
    pub token_file: Option<PathBuf>,
    /// How connections are made with TLS; none: plain.
    pub tls: Option<Tls>,
}

/// How connections are made with TLS. The files are read again when they change.
pub type Tls = Dialer;

/// The files that make a [`Tls`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authority of the nodes' certificates.
    pub ca: Option<PathBuf>,
    /// A certificate of this client.
    pub cert: Option<PathBuf>,
    /// Private key of that certificate.
    pub key: Option<PathBuf>,
}

/// Why files make no [`Tls`].
#[derive(Debug, thiserror::Error)]
pub enum TlsFilesError {
    /// A file that another one needs was not named.
    #[error("{given} is of no use without {missing}: name that file, too")]
    Incomplete {
        /// The option that was given.
        given: &'static str,
        /// The option that has to be given with it.
        missing: &'static str,
    },
    /// One is of no use.
    #[error(transparent)]
    Files(#[from] TlsError),
}

impl TlsFiles {
    /// Reads the files; none are named: connections are plain.
    pub fn read(&self) -> Result<Option<Tls>, TlsFilesError> {
        const CA: &str = "--tls-ca";
        const CERT: &str = "--tls-cert";
        const KEY: &str = "--tls-key";
        let file = |flag, path: &Option<PathBuf>| {
            let path = path.clone().filter(|path| !path.as_os_str().is_empty());
            path.map(|path| File { flag, path })
        };
        let incomplete = |given, missing| Err(TlsFilesError::Incomplete { given, missing });
        let identity = match (file(CERT, &self.cert), file(KEY, &self.key)) {
            (Some(cert), Some(key)) => Some(Identity { cert, key }),
            (Some(_), None) => return incomplete(CERT, KEY),
            (None, Some(_)) => return incomplete(KEY, CERT),
            (None, None) => None,
        };
        match file(CA, &self.ca) {
            Some(ca) => Ok(Some(Dialer::for_clients(ca, identity)?)),
            None if identity.is_some() => incomplete(CERT, CA),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_together_and_one_that_is_missing_is_named() {
        assert!(TlsFiles::default().read().unwrap().is_none());
        let path = || Some(PathBuf::from("/nonexistent/x"));
        for (files, parts) in [
            (TlsFiles { cert: path(), ..TlsFiles::default() }, ["--tls-cert", "--tls-key"]),
            (TlsFiles { key: path(), ..TlsFiles::default() }, ["--tls-key", "--tls-cert"]),
            (TlsFiles { ca: None, cert: path(), key: path() }, ["--tls-cert", "--tls-ca"]),
            (
                TlsFiles { ca: path(), ..TlsFiles::default() },
                ["--tls-ca /nonexistent/x", "tls init"],
            ),
        ] {
            let error = files.read().unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
