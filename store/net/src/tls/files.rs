//! Certificates and keys as files. A changed file is loaded; an invalid one, such
//! as half of a copy, changes nothing and is reported once.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::regular_file::open_regular;

/// Longest file that is read: room for a system's list of authorities.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Most certificates in one file.
const CERTIFICATES_MAX: usize = 1024;

/// A file, and the flag that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// The flag that names the file, such as `--tls-cert`.
    pub flag: &'static str,
    /// The path that the flag was given.
    pub path: PathBuf,
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.flag, self.path.display())
    }
}

/// A certificate, its intermediates, and its private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate and its intermediates, PEM.
    pub cert: File,
    /// Its private key, PEM.
    pub key: File,
}

/// Why files are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{file}: {why}; `holdfast-store tls init DIR --nodes LIST` makes such files")]
    Unreadable {
        /// Flag and path of the file.
        file: String,
        /// The operating system's error.
        why: String,
    },
    /// A file has the wrong content.
    #[error("{file}: {why}; it must be PEM, as `holdfast-store tls init` writes it")]
    Invalid {
        /// Flag and path of the file.
        file: String,
        /// What is wrong with its content.
        why: String,
    },
    /// A certificate and a key that do not match.
    #[error(
        "{cert} and {key} cannot be used together: {why}; give the key that the certificate was made for"
    )]
    Unfit {
        /// Flag and path of the certificate.
        cert: String,
        /// Flag and path of the key.
        key: String,
        /// The TLS library's error.
        why: String,
    },
}

impl File {
    fn invalid(&self, why: impl fmt::Display) -> TlsError {
        TlsError::Invalid { file: self.to_string(), why: why.to_string() }
    }

    fn bytes(&self) -> Result<Vec<u8>, TlsError> {
        let unreadable =
            |why: io::Error| TlsError::Unreadable { file: self.to_string(), why: why.to_string() };
        let bytes = read(&self.path).map_err(unreadable)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(self.invalid(format!("it is longer than {FILE_BYTES_MAX} bytes")));
        }
        Ok(bytes)
    }

    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let bytes = self.bytes()?;
        let found: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(&bytes).take(CERTIFICATES_MAX).collect();
        match found {
            Ok(found) if found.is_empty() => Err(self.invalid("there is no certificate in it")),
            Ok(found) => Ok(found),
            Err(error) => Err(self.invalid(format!("it is damaged or cut off: {error}"))),
        }
    }

    pub(super) fn authorities(&self) -> Result<Arc<RootCertStore>, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| self.invalid(error))?;
        }
        Ok(Arc::new(roots))
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let key = PrivateKeyDer::from_pem_slice(&self.bytes()?);
        key.map_err(|error| self.invalid(format!("there is no private key in it: {error}")))
    }
}

/// The file's bytes, and one more than allowed.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(super) type Loaded = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Identity {
    pub(super) fn load(&self) -> Result<Loaded, TlsError> {
        Ok((self.cert.certificates()?, self.key.key()?))
    }

    pub(super) fn unfit(&self, why: impl fmt::Display) -> TlsError {
        let (cert, key) = (self.cert.to_string(), self.key.to_string());
        TlsError::Unfit { cert, key, why: why.to_string() }
    }

    pub(super) fn files(&self) -> [&File; 2] {
        [&self.cert, &self.key]
    }

    /// Permissions of the private key's file.
    pub fn key_mode(&self) -> Option<u32> {
        Some(std::fs::metadata(&self.key.path).ok()?.mode())
    }
}

/// File metadata that shows a change.
type Look = Option<(i64, i64, u64, u64)>;

/// The present metadata of these files.
pub fn looks<'a>(files: impl IntoIterator<Item = &'a File>) -> Vec<Look> {
    let look = |file: &File| {
        let data = std::fs::metadata(&file.path).ok()?;
        Some((data.mtime(), data.mtime_nsec(), data.len(), data.ino()))
    };
    files.into_iter().map(look).collect()
}

/// A value made from files, and made again when they change.
#[derive(Debug)]
pub(super) struct Kept<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    looks: Vec<Look>,
    made: Arc<T>,
    complaint: Option<TlsError>,
}

impl<T> Kept<T> {
    pub(super) fn new(looks: Vec<Look>, made: T) -> Kept<T> {
        Kept { state: Mutex::new(State { looks, made: Arc::new(made), complaint: None }) }
    }

    pub(super) fn get(&self) -> Arc<T> {
        self.state.lock().made.clone()
    }

    /// Makes it again if the files have changed. They may be half copied: a failure
    /// is retried each time until it succeeds.
    pub(super) fn refresh(&self, now: Vec<Look>, make: impl FnOnce() -> Result<T, TlsError>) {
        {
            let state = self.state.lock();
            if state.looks == now && state.complaint.is_none() {
                return;
            }
        }
        let made = make();
        let mut state = self.state.lock();
        match made {
            Ok(made) => {
                tracing::info!("read new certificates");
                *state = State { looks: now, made: Arc::new(made), complaint: None };
            }
            Err(error) => {
                if state.complaint.as_ref() != Some(&error) {
                    tracing::warn!("{error}; the certificates read before stay in use");
                }
                state.complaint = Some(error);
            }
        }
    }
}
