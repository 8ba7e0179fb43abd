use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::{Listener, Stream};

const SERVER: &[ExtendedKeyUsagePurpose] = &[ExtendedKeyUsagePurpose::ServerAuth];
const CLIENT: &[ExtendedKeyUsagePurpose] = &[ExtendedKeyUsagePurpose::ClientAuth];
const BOTH: &[ExtendedKeyUsagePurpose] =
    &[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];

/// An authority, and a folder with its certificates.
struct Authority<'a> {
    name: String,
    folder: &'a Path,
    issuer: Issuer<'static, KeyPair>,
}

impl<'a> Authority<'a> {
    fn new(folder: &'a Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.join(format!("{name}.crt")), certificate.pem()).unwrap();
        Authority { name: name.to_owned(), folder, issuer: Issuer::new(params, key) }
    }

    fn ca(&self) -> File {
        file("--ca", self.folder.join(format!("{}.crt", self.name)))
    }

    fn certify(
        &self,
        name: &str,
        host: &str,
        use_: &[ExtendedKeyUsagePurpose],
        years: (i32, i32),
    ) -> Identity {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.extended_key_usages = use_.to_vec();
        params.not_before = date_time_ymd(years.0, 1, 1);
        params.not_after = date_time_ymd(years.1, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let at = |end: &str| self.folder.join(format!("{}-{name}.{end}", self.name));
        std::fs::write(at("crt"), certificate.pem()).unwrap();
        std::fs::write(at("key"), key.serialize_pem()).unwrap();
        Identity { cert: file("--cert", at("crt")), key: file("--key", at("key")) }
    }
}

fn file(flag: &'static str, path: PathBuf) -> File {
    File { flag, path }
}

const NOW: (i32, i32) = (2020, 4000);

struct Stage<'a> {
    serving: Authority<'a>,
    peers: Authority<'a>,
    acceptor: Acceptor,
}

fn stage(folder: &Path) -> Stage<'_> {
    let (serving, peers) = (Authority::new(folder, "serving"), Authority::new(folder, "peers"));
    let acceptor = Acceptor::new(AcceptorFiles {
        serving: serving.certify("node", "127.0.0.1", SERVER, NOW),
        clients: Some(serving.ca()),
        peer: peers.certify("node", "127.0.0.1", BOTH, NOW),
        peers: peers.ca(),
    });
    Stage { acceptor: acceptor.unwrap(), serving, peers }
}

type Shaken = (io::Result<Stream>, Result<(Stream, Caller), AcceptError>);

/// Both ends of a connection by that dialer, or their errors.
async fn shake(acceptor: &Acceptor, dialer: &Dialer) -> Shaken {
    let listener = Listener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = async { acceptor.accept(listener.accept().await.unwrap()).await };
    tokio::join!(connect(dialer, address), accepting)
}

async fn connect(dialer: &Dialer, address: SocketAddr) -> io::Result<Stream> {
    let stream = Stream::connect_any(&[address]).await?;
    dialer.secure(stream, &address.to_string()).await
}

#[tokio::test]
async fn a_connection_goes_from_runtime_to_runtime_and_comes_apart() {
    let folder = tempfile::tempdir().unwrap();
    let stage = stage(folder.path());
    let dialer = Dialer::for_clients(stage.serving.ca(), None).unwrap();
    let (here, there) = shake(&stage.acceptor, &dialer).await;
    let (mut here, (there, caller)) = (here.unwrap(), there.unwrap());
    assert_eq!(caller, Caller::Unknown);
    here.set_user_timeout(std::time::Duration::from_secs(9)).unwrap();
    here.set_nodelay(true).unwrap();
    assert!(here.as_tcp().is_some() && here.peer_addr().is_ok());
    here.write_all(b"over").await.unwrap();
    here.flush().await.unwrap();
    let there = Stream::attach(there.detach().unwrap()).unwrap();
    let (mut read, mut write) = there.into_split();
    let long = vec![7; 3_000_000];
    let answering = async {
        let mut told = [0; 4];
        read.read_exact(&mut told).await.unwrap();
        assert_eq!(&told, b"over");
        write.write_all(&long).await.unwrap();
        write.flush().await.unwrap();
    };
    let mut heard = vec![0; long.len()];
    let (_, ()) = tokio::join!(here.read_exact(&mut heard), answering);
    assert!(heard == long);
    // A connection cut off without TLS's close message has ended.
    drop((read, write));
    assert_eq!(here.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn what_is_between_nodes_takes_a_certificate_of_their_authority_alone() {
    let folder = tempfile::tempdir().unwrap();
    let stage = stage(folder.path());
    let Stage { serving, peers, acceptor } = &stage;
    let peer = peers.certify("other", "127.0.0.1", BOTH, NOW);
    let dialer = Dialer::for_peers(peers.ca(), peer.clone()).unwrap();
    let (here, there) = shake(acceptor, &dialer).await;
    assert_eq!((here.is_ok(), there.unwrap().1), (true, Caller::Peer));

    let client = serving.certify("client", "client", CLIENT, NOW);
    let dialer = Dialer::for_clients(serving.ca(), Some(client.clone())).unwrap();
    let (here, there) = shake(acceptor, &dialer).await;
    assert_eq!((here.is_ok(), there.unwrap().1), (true, Caller::Certified));

    // A client that claims to be a node; and a node's certificate is not a client's.
    let liar = Dialer::for_peers(peers.ca(), client).unwrap();
    let (here, there) = shake(acceptor, &liar).await;
    let refused = there.unwrap_err().to_string();
    assert!(refused.contains("authority that is not trusted"), "{refused}");
    let told = here.unwrap().read(&mut [0]).await.unwrap_err().to_string();
    assert!(told.contains("--peer-tls-ca"), "{told}");
    let stray = Dialer::for_clients(serving.ca(), Some(peer)).unwrap();
    assert!(shake(acceptor, &stray).await.1.is_err());
}

#[tokio::test]
async fn what_is_wrong_with_a_certificate_is_said_with_both_times_and_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let stage = stage(folder.path());
    let other = Authority::new(folder.path(), "other");
    let certify = |name, host, years| stage.serving.certify(name, host, SERVER, years);
    for (serving, parts) in [
        (
            certify("old", "127.0.0.1", (2001, 2002)),
            vec!["expired at 2002-01-01", "here it is 20", "clock"],
        ),
        (
            certify("new", "127.0.0.1", (3001, 3002)),
            vec!["before 3001-01-01", "here it is 20", "clock"],
        ),
        (certify("name", "node7", NOW), vec!["not for 127.0.0.1", "node7", "--nodes"]),
        (other.certify("alien", "127.0.0.1", SERVER, NOW), vec!["not trusted", "--tls-ca"]),
        (stage.serving.certify("use", "127.0.0.1", CLIENT, NOW), vec!["another purpose"]),
    ] {
        let files = AcceptorFiles { serving, ..stage.acceptor.files().clone() };
        let dialer = Dialer::for_clients(stage.serving.ca(), None).unwrap();
        let (here, _) = shake(&Acceptor::new(files).unwrap(), &dialer).await;
        let error = here.unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{part:?} is missing in: {error}");
        }
    }
}

#[tokio::test]
async fn one_side_without_tls_is_noticed_on_either_side() {
    let folder = tempfile::tempdir().unwrap();
    let stage = stage(folder.path());
    let listener = Listener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut plain = Stream::connect_any(&[address]).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let accepted = stage.acceptor.accept(listener.accept().await.unwrap()).await;
    assert!(matches!(accepted, Err(AcceptError::Plain(_))), "{accepted:?}");

    let dialer = Dialer::for_clients(stage.serving.ca(), None).unwrap();
    let answering = async {
        let mut there = listener.accept().await.unwrap();
        let mut first = [0; 1024];
        assert!(there.read(&mut first).await.unwrap() > 0);
        there.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    };
    let (here, ()) = tokio::join!(connect(&dialer, address), answering);
    let error = here.unwrap_err().to_string();
    assert!(error.contains("does not speak TLS") && error.contains("--tls-ca"), "{error}");
}

#[tokio::test]
async fn files_that_change_are_taken_over_once_they_fit() {
    let folder = tempfile::tempdir().unwrap();
    let stage = stage(folder.path());
    let Stage { serving, acceptor, .. } = &stage;
    let dialer = Dialer::for_clients(serving.ca(), None).unwrap();
    let shown = async || {
        let (here, _) = shake(acceptor, &dialer).await;
        let Stream::Tls(secured) = here.unwrap() else { panic!("it is not secured") };
        secured.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    let first = shown().await;
    let Identity { cert, key } = &acceptor.files().serving;
    let next = serving.certify("next", "127.0.0.1", SERVER, NOW);
    let text = std::fs::read_to_string(&next.cert.path).unwrap();
    // Truncated; complete, but without its key; empty.
    for bad in [&text[..text.len() / 2], &text, ""] {
        std::fs::write(&cert.path, bad).unwrap();
        acceptor.refresh();
        assert_eq!(shown().await, first);
    }
    std::fs::write(&cert.path, &text).unwrap();
    std::fs::copy(&next.key.path, &key.path).unwrap();
    acceptor.refresh();
    assert_ne!(shown().await, first);
}

#[test]
fn files_that_are_of_no_use_are_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let stage = stage(folder.path());
    let Identity { cert, key } = stage.acceptor.files().serving.clone();
    let other = stage.serving.certify("other", "a", SERVER, NOW);
    let nowhere = file("--ca", "/nonexistent/ca.crt".into());
    let swapped = Identity { cert: key.clone(), key: cert.clone() };
    for (ca, identity, parts) in [
        (nowhere, None, ["--ca /nonexistent/ca.crt", "tls init"]),
        (key.clone(), None, ["--key ", "no certificate"]),
        (file("--ca", folder.path().into()), None, ["--ca ", "regular file"]),
        (stage.serving.ca(), Some(swapped), ["--key ", "no certificate"]),
        (
            stage.serving.ca(),
            Some(Identity { cert, key: other.key }),
            ["--cert ", "cannot be used together"],
        ),
    ] {
        let error = Dialer::for_clients(ca, identity).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{part:?} is missing in: {error}");
        }
    }
}
