//! The connecting side.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::files::{Kept, looks};
use super::{File, Identity, PEER_PROTOCOL, Socket, TlsError, explained, provider};
use crate::stream::Stream;

/// Opens connections to hosts that an authority vouches for. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Dialer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ca: File,
    identity: Option<Identity>,
    peers: bool,
    kept: Kept<ClientConfig>,
}

impl Dialer {
    /// For clients: trusts this authority, and shows this certificate if one is asked for.
    pub fn for_clients(ca: File, identity: Option<Identity>) -> Result<Dialer, TlsError> {
        Dialer::new(ca, identity, false)
    }

    /// For nodes that connect to each other.
    pub fn for_peers(ca: File, identity: Identity) -> Result<Dialer, TlsError> {
        Dialer::new(ca, Some(identity), true)
    }

    fn new(ca: File, identity: Option<Identity>, peers: bool) -> Result<Dialer, TlsError> {
        let now = looks(files(&ca, identity.as_ref()));
        let kept = Kept::new(now, make(&ca, identity.as_ref(), peers)?);
        Ok(Dialer(Arc::new(Inner { ca, identity, peers, kept })))
    }

    /// The certificate that it shows; none if it has none, as a client may.
    pub fn identity(&self) -> Option<&Identity> {
        self.0.identity.as_ref()
    }

    /// Reads the files again if they changed. It reads from a disk, which may hang.
    pub fn refresh(&self) {
        let Inner { ca, identity, peers, kept } = &*self.0;
        let now = looks(files(ca, identity.as_ref()));
        kept.refresh(now, || make(ca, identity.as_ref(), *peers));
    }

    /// The same on a thread that may wait for a disk.
    pub async fn refreshed(&self) {
        let dialer = self.clone();
        let _ = tokio::task::spawn_blocking(move || dialer.refresh()).await;
    }

    /// Performs the handshake on a connection to `host:port`. A simulated one stays
    /// as it is.
    pub async fn secure(&self, stream: Stream, address: &str) -> io::Result<Stream> {
        let Stream::Tcp(tcp) = stream else { return Ok(stream) };
        let name = server_name(address)?;
        let connector = TlsConnector::from(self.0.kept.get());
        let shaken = connector.connect(name, Socket::new(tcp)).await;
        let secured = shaken.map_err(explained)?;
        Ok(Stream::Tls(Box::new(secured.into())))
    }
}

fn files<'a>(ca: &'a File, identity: Option<&'a Identity>) -> impl Iterator<Item = &'a File> {
    std::iter::once(ca).chain(identity.into_iter().flat_map(Identity::files))
}

fn make(ca: &File, identity: Option<&Identity>, peers: bool) -> Result<ClientConfig, TlsError> {
    let roots: Arc<RootCertStore> = ca.authorities()?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has TLS 1.3")
        .with_root_certificates(roots);
    let mut config = match identity {
        Some(identity) => {
            let (chain, key) = identity.load()?;
            let made = builder.with_client_auth_cert(chain, key);
            made.map_err(|error| identity.unfit(error))?
        }
        None => builder.with_no_client_auth(),
    };
    if peers {
        config.alpn_protocols = vec![PEER_PROTOCOL.to_vec()];
    }
    // Connections last long; a resumed session would outlive its certificate.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn server_name(address: &str) -> io::Result<ServerName<'static>> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_matches(['[', ']']);
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(ServerName::IpAddress(ip.into()));
    }
    let wrong = |_| {
        let why = format!("{host:?} is not a name that a certificate can have");
        io::Error::new(io::ErrorKind::InvalidInput, why)
    };
    ServerName::try_from(host.to_owned()).map_err(wrong)
}
