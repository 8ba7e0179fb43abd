//! `holdfast-chaos attach`.

use std::path::PathBuf;

use anyhow::{Context, bail};
use holdfast_chaos::cluster::containers::Breaker;
use holdfast_chaos::judge::Verdict;
use holdfast_chaos::run::attached::{Attachment, attach};
use holdfast_chaos::run::plan::{self, Plan};
use holdfast_client::{Credentials, TlsFiles, check_token_file, parse_endpoints};

use super::load::{self, Load};
use super::verdict;

/// Default operations per second: the cluster may have other work.
const RATE_DEFAULT: u32 = 100;

/// Judge an existing cluster, in a job of its own that is deleted afterwards
///
/// Harmless faults only: leadership is handed over, and clients of its own are
/// killed. With --i-own-this-cluster and --hook a program of yours breaks its
/// nodes: it is called `PROGRAM inject|verify|heal kill|pause|cut NODE` and ends
/// with 0 if it did, or saw, what it was asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Attach to the cluster of these nodes; one is enough.
    #[arg(long, value_name = "LIST", env = "HOLDFAST_STORE")]
    store: String,
    /// Show the token in this file to the nodes.
    #[arg(long, value_name = "FILE", env = "HOLDFAST_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Connect with TLS to nodes whose certificates are of this authority.
    #[arg(long, value_name = "FILE", env = "HOLDFAST_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// Use this client certificate, where the cluster accepts one instead of a token.
    #[arg(long, value_name = "FILE", env = "HOLDFAST_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Use this private key, of the certificate.
    #[arg(long, value_name = "FILE", env = "HOLDFAST_TLS_KEY")]
    tls_key: Option<PathBuf>,
    #[command(flatten)]
    load: Load,
    /// Say that nodes of this cluster may be broken; takes --hook.
    #[arg(long, requires = "hook")]
    i_own_this_cluster: bool,
    /// Break nodes with this program; takes --i-own-this-cluster.
    #[arg(long, value_name = "PROGRAM", requires = "i_own_this_cluster")]
    hook: Option<PathBuf>,
}

/// Runs it; answers the exit code.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let (workloads, left_out) = plan::workloads_without_agents(&arguments.load.workload)?;
    let plan = Plan { workloads, left_out, ..arguments.load.plan(RATE_DEFAULT)? };
    if let Some(hook) = arguments.hook.as_deref().filter(|hook| !hook.is_file()) {
        bail!("--hook {}: there is no such program", hook.display());
    }
    if let Some(file) = &arguments.token_file {
        check_token_file(file).with_context(|| format!("--token-file {}", file.display()))?;
    }
    let files = TlsFiles {
        ca: absolute(arguments.tls_ca.as_ref())?,
        cert: absolute(arguments.tls_cert.as_ref())?,
        key: absolute(arguments.tls_key.as_ref())?,
    };
    let token_file = absolute(arguments.token_file.as_ref())?;
    let credentials = Credentials { token_file, tls: files.read()? };
    let attachment = Attachment {
        list: arguments.store.clone(),
        endpoints: parse_endpoints(&arguments.store).context("--store")?,
        credentials,
        files,
        hook: absolute(arguments.hook.as_ref())?.map(Breaker::Program),
    };
    load::prepare(&plan.report)?;
    judged(&plan, &attachment, command(arguments, &plan)).map(Verdict::exit_code)
}

/// The absolute path of a file that was named: `heal` may run in another folder.
fn absolute(path: Option<&PathBuf>) -> anyhow::Result<Option<PathBuf>> {
    let path = path.filter(|path| !path.as_os_str().is_empty());
    path.map(std::path::absolute).transpose().context("where this program runs")
}

/// Does it to an existing cluster, and judges it.
pub(super) fn judged(
    plan: &Plan,
    attachment: &Attachment,
    command: String,
) -> anyhow::Result<Verdict> {
    load::say_left_out(plan);
    let description = load::describe(plan, command);
    eprintln!("seed {}, report in {}", plan.seed, plan.report.display());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(Box::pin(attach(plan, attachment, description)))?;
    drop(runtime);
    verdict::judge(&plan.report)
}

/// The command that does the same again.
fn command(arguments: &Arguments, plan: &Plan) -> String {
    let Arguments { store, token_file, tls_ca, tls_cert, tls_key, hook, .. } = arguments;
    let files = [
        ("--token-file", token_file),
        ("--tls-ca", tls_ca),
        ("--tls-cert", tls_cert),
        ("--tls-key", tls_key),
        ("--i-own-this-cluster --hook", hook),
    ];
    let named = files
        .iter()
        .filter_map(|(flag, file)| file.as_ref().map(|file| format!(" {flag} {}", file.display())));
    let named: String = named.collect();
    format!("holdfast-chaos attach --store {store} {}{named}", load::flags(plan))
}
