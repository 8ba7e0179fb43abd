//! `holdfast-store tls init`: an authority for clients, one for nodes, and their
//! certificates. For trials, and for clusters without an authority of their own.
//!
//! ```text
//! DIR/authority/     both authorities with their private keys: nowhere but here
//! DIR/node-1/        what node 1 is started with
//! DIR/client/        what agents and the CLI are given
//! ```
//!
//! Run again on the same folder it keeps the authorities and renews the
//! certificates: for more nodes, and before they expire.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use holdfast_api::NodeId;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};

use crate::calendar;
use crate::config::parse_nodes;
use crate::tls::TlsPaths;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// How long an authority is valid.
const AUTHORITY_DAYS: u32 = 3650;

/// Clocks of other hosts may be this much slow.
const CLOCKS_APART: Duration = DAY;

/// Most names of hosts beside those of the list.
const NAMES_MAX: usize = 64;

/// Flags of `holdfast-store tls init`.
#[derive(Debug, Clone, Args)]
pub struct InitArgs {
    /// Write authorities and certificates into this folder; authorities that it holds already
    /// are kept, and certificates are made anew
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Make a certificate for each of these nodes, as in --initial-cluster: 1=HOST:PORT,2=HOST:PORT,…
    #[arg(long, value_name = "LIST")]
    nodes: String,
    /// Add this name or address to the nodes' certificates, such as a load balancer's; can be
    /// repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    name: Vec<String>,
    /// Make certificates valid for this many days; authorities are for ten years
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
}

/// Which certificates an authority vouches for.
#[derive(Clone, Copy)]
enum Kind {
    /// For what clients connect to, and for clients.
    Clients,
    /// For nodes, among each other.
    Peers,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Clients => "Holdfast authority for clients",
            Kind::Peers => "Holdfast authority for nodes",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Kind::Clients => "ca",
            Kind::Peers => "peer-ca",
        }
    }
}

/// Makes the files and says how to use them.
pub fn run(args: &InitArgs) -> anyhow::Result<()> {
    let nodes = parse_nodes("--nodes", &args.nodes)?;
    if args.name.len() > NAMES_MAX {
        bail!("--name: {} names, at most {NAMES_MAX} are of use", args.name.len());
    }
    make(&args.dir, &nodes, &args.name, args.days)?;
    let dir = args.dir.display();
    println!(
        "{dir}/authority  keep it: its keys make certificates; no node and no client needs it"
    );
    for node in nodes.keys() {
        let folder = of_node(&args.dir, *node);
        println!("{}  copy it to node {node}, and start that with", folder.display());
        println!("  {}", flags(&folder).join(" "));
    }
    println!("{dir}/client  copy it to clients: HOLDFAST_TLS_CA={dir}/client/ca.crt");
    println!(
        "Clients show a token (--token-file), or with --tls-client-ca {dir}/client/ca.crt on each node the certificate {dir}/client/client.crt"
    );
    println!(
        "valid for {} days; run this again before: nodes and clients read the new files while they run",
        args.days
    );
    Ok(())
}

/// The folder of a node's certificates.
pub(crate) fn of_node(dir: &Path, node: NodeId) -> PathBuf {
    dir.join(format!("node-{node}"))
}

/// The files in a node's folder.
pub(crate) fn paths(folder: &Path) -> TlsPaths {
    TlsPaths {
        cert: Some(folder.join("tls.crt")),
        key: Some(folder.join("tls.key")),
        client_ca: None,
        peer_cert: Some(folder.join("peer.crt")),
        peer_key: Some(folder.join("peer.key")),
        peer_ca: Some(folder.join("peer-ca.crt")),
    }
}

/// Flags of a node that has this folder.
pub fn flags(folder: &Path) -> Vec<String> {
    let TlsPaths { cert, key, peer_cert, peer_key, peer_ca, .. } = paths(folder);
    let flags = [
        ("--tls-cert", cert),
        ("--tls-key", key),
        ("--peer-tls-cert", peer_cert),
        ("--peer-tls-key", peer_key),
        ("--peer-tls-ca", peer_ca),
    ];
    let words = flags.into_iter().filter_map(|(flag, path)| Some((flag.to_owned(), path?)));
    words.flat_map(|(flag, path)| [flag, path.display().to_string()]).collect()
}

/// Makes authorities where there are none, and certificates for these nodes and for clients.
pub fn make(
    dir: &Path,
    nodes: &BTreeMap<NodeId, String>,
    names: &[String],
    days: u32,
) -> anyhow::Result<()> {
    let clients = Authority::open_or_make(dir, Kind::Clients)?;
    let peers = Authority::open_or_make(dir, Kind::Peers)?;
    let (server, client) =
        (ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth);
    for (node, address) in nodes {
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
        let host = host.trim_matches(['[', ']']).to_owned();
        let own = format!("node {node}");
        let local = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let mut served: Vec<String> = [host.clone()].into_iter().chain(local).collect();
        served.extend(names.iter().cloned());
        served.dedup();
        let folder = of_node(dir, *node);
        make_folder(&folder)?;
        clients.certify(&folder.join("tls"), &own, served, std::slice::from_ref(&server), days)?;
        let both = [server.clone(), client.clone()];
        peers.certify(&folder.join("peer"), &own, vec![host], &both, days)?;
        write(&folder.join("peer-ca.crt"), &peers.certificate, false)?;
    }
    let folder = dir.join("client");
    make_folder(&folder)?;
    clients.certify(&folder.join("client"), "client", Vec::new(), &[client], days)?;
    write(&folder.join("ca.crt"), &clients.certificate, false)
}

/// An authority that issues certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    fn open_or_make(dir: &Path, kind: Kind) -> anyhow::Result<Authority> {
        let folder = dir.join("authority");
        let at = |end: &str| folder.join(format!("{}.{end}", kind.file()));
        let (certificate, key) = (at("crt"), at("key"));
        let mut params = CertificateParams::default();
        params.distinguished_name = named(kind.name());
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        valid(&mut params, AUTHORITY_DAYS);
        match (read(&certificate)?, read(&key)?) {
            (Some(certificate), Some(text)) => {
                let key = KeyPair::from_pem(&text)
                    .with_context(|| format!("{} is not a private key", key.display()))?;
                Ok(Authority { issuer: Issuer::new(params, key), certificate })
            }
            (None, None) => {
                make_folder(&folder)?;
                let pair = KeyPair::generate()?;
                let text = params.self_signed(&pair)?.pem();
                write(&key, &pair.serialize_pem(), true)?;
                write(&certificate, &text, false)?;
                Ok(Authority { issuer: Issuer::new(params, pair), certificate: text })
            }
            (Some(_), None) => bail!(lone(&certificate, &key)),
            (None, Some(_)) => bail!(lone(&key, &certificate)),
        }
    }

    /// Writes `PATH.crt` and `PATH.key`.
    fn certify(
        &self,
        path: &Path,
        name: &str,
        hosts: Vec<String>,
        purposes: &[ExtendedKeyUsagePurpose],
        days: u32,
    ) -> anyhow::Result<()> {
        for host in &hosts {
            let name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._*".contains(&byte);
            if host.parse::<IpAddr>().is_err() && (host.is_empty() || !host.bytes().all(name)) {
                bail!(
                    "{host:?} is neither the name of a host nor an address: write it without a port"
                );
            }
        }
        let mut params = CertificateParams::new(hosts)?;
        params.distinguished_name = named(name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = purposes.to_vec();
        params.use_authority_key_identifier_extension = true;
        valid(&mut params, days);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        // Between the two writes they do not match; readers wait until they do.
        write(&path.with_extension("key"), &key.serialize_pem(), true)?;
        write(&path.with_extension("crt"), &certificate.pem(), false)
    }
}

fn lone(there: &Path, missing: &Path) -> String {
    format!(
        "{} is there, and {} is not: put that back, or name another folder for new authorities",
        there.display(),
        missing.display()
    )
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn valid(params: &mut CertificateParams, days: u32) {
    let now = date_time_ymd(1970, 1, 1) + Duration::from_millis(calendar::now_ms());
    params.not_before = now - CLOCKS_APART;
    params.not_after = now + DAY * days;
}

fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match holdfast_net::regular_file::read_regular_text(path, 64 * 1024) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn make_folder(path: &Path) -> anyhow::Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("cannot make the folder {}", path.display()))
}

/// Writes a whole file in place of the one before.
fn write(path: &Path, text: &str, private: bool) -> anyhow::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let writing = || {
        let mode = if private { 0o600 } else { 0o644 };
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    writing().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn nodes(list: &str) -> BTreeMap<NodeId, String> {
        parse_nodes("--nodes", list).unwrap()
    }

    #[test]
    fn a_second_run_keeps_the_authorities_and_makes_certificates_anew() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        make(dir, &nodes("1=n1:1,2=[::1]:2"), &["store.example".to_owned()], 30).unwrap();
        let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap();
        let (ca, leaf) = (read("client/ca.crt"), read("node-1/tls.crt"));
        make(dir, &nodes("1=n1:1,3=n3:1"), &[], 30).unwrap();
        assert_eq!(read("client/ca.crt"), ca);
        assert_ne!(read("node-1/tls.crt"), leaf);
        for node in [1, 2, 3] {
            let tls = paths(&of_node(dir, node)).read().unwrap();
            assert!(tls.acceptor().is_some() && tls.warning().is_none(), "{node}");
        }
        for private in ["authority/ca.key", "authority/peer-ca.key", "node-1/tls.key"] {
            let mode = fs::metadata(dir.join(private)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{private}");
        }
        fs::remove_file(dir.join("authority/ca.key")).unwrap();
        let error = make(dir, &nodes("1=n1:1"), &[], 30).unwrap_err().to_string();
        assert!(error.contains("ca.key is not") && error.contains("another folder"), "{error}");
    }
}
