//! The accepting side: one port for clients and for nodes. The first message
//! shows which of the two connects, before anything is answered.

use std::io;
use std::sync::Arc;

use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::{
    Acceptor as FirstMessage, NoServerSessionStorage, WebPkiClientVerifier,
};
use tokio_rustls::rustls::version::TLS13;

use super::files::{Kept, looks};
use super::{File, Identity, PEER_PROTOCOL, Socket, TlsError, explained, provider};
use crate::stream::Stream;

/// The first byte of a connection with TLS: a record of its handshake.
const HANDSHAKE: u8 = 0x16;

/// ALPN protocols that HTTP clients may choose.
const CLIENT_PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The peer's identity, by its certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// Another node: it asked for the protocol of nodes, and has a certificate of their authority.
    Peer,
    /// A client with a certificate of the clients' authority.
    Certified,
    /// A client without a certificate.
    Unknown,
}

/// Why a connection was refused.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The peer does not speak TLS; its message may be shown to it.
    #[error("it does not speak TLS")]
    Plain(Stream),
    /// The handshake failed, or the connection ended before it.
    #[error("{0}")]
    Failed(#[from] io::Error),
}

/// Authority of the clients' certificates.
pub type ClientAuthority = Option<File>;

/// Files of an acceptor.
#[derive(Debug, Clone)]
pub struct AcceptorFiles {
    /// The certificate for clients.
    pub serving: Identity,
    /// Authority of the clients' certificates.
    pub clients: ClientAuthority,
    /// The certificate for nodes.
    pub peer: Identity,
    /// Authority of the nodes' certificates.
    pub peers: File,
}

/// Accepts connections with TLS. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Acceptor(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    files: AcceptorFiles,
    clients: Kept<ServerConfig>,
    peers: Kept<ServerConfig>,
}

impl AcceptorFiles {
    fn for_clients(&self) -> impl Iterator<Item = &File> {
        self.serving.files().into_iter().chain(&self.clients)
    }

    fn for_peers(&self) -> impl Iterator<Item = &File> {
        self.peer.files().into_iter().chain([&self.peers])
    }

    fn make_for_clients(&self) -> Result<ServerConfig, TlsError> {
        let mut config = make(&self.serving, self.clients.as_ref(), false)?;
        config.alpn_protocols = CLIENT_PROTOCOLS.map(<[u8]>::to_vec).into();
        Ok(config)
    }

    fn make_for_peers(&self) -> Result<ServerConfig, TlsError> {
        let mut config = make(&self.peer, Some(&self.peers), true)?;
        config.alpn_protocols = vec![PEER_PROTOCOL.to_vec()];
        Ok(config)
    }
}

impl Acceptor {
    /// An acceptor with these files.
    pub fn new(files: AcceptorFiles) -> Result<Acceptor, TlsError> {
        let clients = Kept::new(looks(files.for_clients()), files.make_for_clients()?);
        let peers = Kept::new(looks(files.for_peers()), files.make_for_peers()?);
        Ok(Acceptor(Arc::new(Inner { files, clients, peers })))
    }

    /// The files that its certificates and authorities are read from.
    pub fn files(&self) -> &AcceptorFiles {
        &self.0.files
    }

    /// Reads the files again if they changed. It reads from a disk, which may hang.
    pub fn refresh(&self) {
        let Inner { files, clients, peers } = &*self.0;
        clients.refresh(looks(files.for_clients()), || files.make_for_clients());
        peers.refresh(looks(files.for_peers()), || files.make_for_peers());
    }

    /// Performs the handshake. Has no time limit: the caller sets one. A simulated
    /// connection stays as it is and has no identity.
    pub async fn accept(&self, stream: Stream) -> Result<(Stream, Caller), AcceptError> {
        let Stream::Tcp(tcp) = stream else { return Ok((stream, Caller::Unknown)) };
        let mut first = [0];
        if tcp.peek(&mut first).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if first != [HANDSHAKE] {
            return Err(AcceptError::Plain(Stream::Tcp(tcp)));
        }
        let start = LazyConfigAcceptor::new(FirstMessage::default(), Socket::new(tcp));
        let start = start.await.map_err(explained)?;
        let is_peer = start
            .client_hello()
            .alpn()
            .is_some_and(|mut offered| offered.any(|protocol| protocol == PEER_PROTOCOL));
        let kept = if is_peer { &self.0.peers } else { &self.0.clients };
        let secured = start.into_stream(kept.get()).await.map_err(explained)?;
        let caller = match (is_peer, secured.get_ref().1.peer_certificates()) {
            (true, _) => Caller::Peer,
            (false, Some(_)) => Caller::Certified,
            (false, None) => Caller::Unknown,
        };
        Ok((Stream::Tls(Box::new(secured.into())), caller))
    }
}

fn make(
    identity: &Identity,
    authority: Option<&File>,
    mandatory: bool,
) -> Result<ServerConfig, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has TLS 1.3");
    let builder = match authority {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let roots = authority.authorities()?;
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            let verifier =
                if mandatory { verifier } else { verifier.allow_unauthenticated() }.build();
            let invalid = |error: &dyn std::fmt::Display| TlsError::Invalid {
                file: authority.to_string(),
                why: error.to_string(),
            };
            builder.with_client_cert_verifier(verifier.map_err(|error| invalid(&error))?)
        }
    };
    let (chain, key) = identity.load()?;
    let made = builder.with_single_cert(chain, key);
    let mut config = made.map_err(|error| identity.unfit(error))?;
    // Connections last long; a resumed session would outlive its certificate.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}
