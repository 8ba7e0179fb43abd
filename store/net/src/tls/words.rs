//! Texts for handshake errors, and what to do about them.

use std::io;
use std::time::{Duration, UNIX_EPOCH};

use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error};

/// The same error in plain words, if it is one of TLS.
pub(crate) fn explained(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match inner.and_then(words) {
        Some(words) => io::Error::new(error.kind(), words),
        None => error,
    }
}

fn words(error: &Error) -> Option<String> {
    match error {
        Error::InvalidCertificate(error) => of_certificate(error),
        Error::AlertReceived(alert) => Some(of_alert(*alert)),
        Error::NoCertificatesPresented => {
            Some("it showed no certificate, and one is needed here".to_owned())
        }
        Error::InvalidMessage(_) => Some(
            "it does not speak TLS, or something on the way does not: if the node was started without --tls-cert, leave out --tls-ca".to_owned(),
        ),
        Error::PeerIncompatible(why) => {
            Some(format!("the two sides have no version or method of TLS in common: {why:?}"))
        }
        _ => None,
    }
}

fn of_certificate(error: &CertificateError) -> Option<String> {
    Some(match error {
        CertificateError::ExpiredContext { time, not_after } => format!(
            "its certificate expired at {}, and here it is {}: replace the certificate (it is read again while the node runs), or set the clock that is wrong",
            written(*not_after),
            written(*time)
        ),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "its certificate is not valid before {}, and here it is {}: set the clock that is wrong, or replace the certificate",
            written(*not_before),
            written(*time)
        ),
        CertificateError::UnknownIssuer => "its certificate is of an authority that is not trusted here: give the authority's certificate that belongs to it (--tls-ca for clients, --peer-tls-ca between nodes, --tls-client-ca for certificates of clients)".to_owned(),
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "its certificate is not for {}, but for {}: connect by such a name, or make a certificate for this one (`holdfast-store tls init --nodes`)",
            expected.to_str(),
            presented.join(", ")
        ),
        CertificateError::InvalidPurposeContext { .. } | CertificateError::InvalidPurpose => {
            "its certificate was made for another purpose: a node needs one for servers (between nodes for clients as well), a client one for clients".to_owned()
        }
        CertificateError::BadEncoding => "its certificate is damaged".to_owned(),
        _ => return None,
    })
}

fn of_alert(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => "it asks for a certificate: give --tls-cert and --tls-key (between nodes --peer-tls-cert and --peer-tls-key)".to_owned(),
        AlertDescription::CertificateExpired => "it says that the certificate of this side expired or is not valid yet: replace it, or set the clock that is wrong".to_owned(),
        AlertDescription::UnknownCA => "it does not trust the authority of this side's certificate: use one of the authority that the node was given (--tls-client-ca, between nodes --peer-tls-ca)".to_owned(),
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::DecryptError => {
            format!("it does not accept the certificate of this side ({alert:?})")
        }
        AlertDescription::NoApplicationProtocol => "it expects no other node on this connection: start every node with --peer-tls-cert, --peer-tls-key and --peer-tls-ca".to_owned(),
        AlertDescription::ProtocolVersion => "it does not speak TLS 1.3".to_owned(),
        other => format!("it refused the connection ({other:?})"),
    }
}

/// The last second that the formatter supports: of the year 9999.
const WRITTEN_MAX: u64 = 253_402_300_799;

fn written(time: UnixTime) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(time.as_secs().min(WRITTEN_MAX));
    humantime::format_rfc3339_seconds(time).to_string()
}
