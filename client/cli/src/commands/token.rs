//! `token`: keys that sign tokens, and tokens.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_api::grant::{Claims, Grant, Role, SignedToken, SigningKey, token_id};
use holdfast_api::token::{FILE_BYTES_MAX, Tokens};
use holdfast_api::{ClusterCommand, Command, JobPattern, Name, NodeId, Problem};
use holdfast_client::{Error, fetch};
use serde::{Deserialize, Serialize};

use super::Context;
use crate::cli::{ClusterTokenCommand, CreateTokenArgs};
use crate::document::Written;
use crate::exit::Failure;
use crate::output::{self, Document, Form};

/// Longest time for which a token is valid.
const EXPIRES_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// Longest time for a node to list its tokens.
const NODE_TIME_MAX: Duration = Duration::from_secs(10);

/// Carries out a command that asks the cluster.
pub(crate) async fn run(context: &Context, command: ClusterTokenCommand) -> Result<(), Failure> {
    match command {
        ClusterTokenCommand::List => context.emit(&list(context).await?),
        ClusterTokenCommand::Revoke { token, keep } => {
            let keep_ms = milliseconds(keep.unwrap_or(EXPIRES_MAX));
            let command = ClusterCommand::RevokeToken { token, keep_ms };
            let (_, revision) = context.propose(Command::Cluster(command)).await?;
            context.emit(&Written { revision })
        }
    }
}

/// The answer of `token list`.
#[derive(Debug, Serialize, Deserialize)]
struct Listed {
    node: NodeId,
    keys: Vec<Name>,
    revoked: Vec<Revoked>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Revoked {
    token: Name,
    until_ms: u64,
}

impl Document for Listed {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let keys: Vec<&str> = self.keys.iter().map(Name::as_str).collect();
        let keys = if keys.is_empty() { "none".to_owned() } else { keys.join(", ") };
        writeln!(out, "node {} takes tokens of the keys: {keys}", self.node)?;
        self.revoked.iter().try_for_each(|revoked| writeln!(out, "revoked: {}", revoked.token))
    }
}

async fn list(context: &Context) -> Result<Listed, Failure> {
    let credentials = context.client.credentials();
    let mut tried = Vec::new();
    for address in &context.settings.store.value.0 {
        let why = match fetch(address, "/v1/tokens", credentials, NODE_TIME_MAX).await {
            Ok(answer) if answer.status.is_success() => {
                match serde_json::from_slice(&answer.body) {
                    Ok(listed) => return Ok(listed),
                    Err(error) => format!("its answer cannot be read: {error}"),
                }
            }
            Ok(answer) => match serde_json::from_slice::<Problem>(&answer.body) {
                Ok(problem) if !problem.retryable => return Err(Failure::refused(problem)),
                Ok(problem) => problem.message,
                Err(_) => format!("it answered {}", answer.status),
            },
            Err(error) => error.to_string(),
        };
        tried.push((address.clone(), why));
    }
    Err(Failure::Client(Error::Unreachable { tried }))
}

fn print(document: &impl Document, form: Form) -> Result<(), Failure> {
    Ok(output::print(&output::render_as(document, form)?)?)
}

/// The answer of `token keygen`.
#[derive(Debug, Serialize)]
struct Made {
    key: String,
    file: PathBuf,
    public: PathBuf,
}

impl Document for Made {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let Made { key, file, public } = self;
        let (file, public) = (file.display(), public.display());
        writeln!(out, "key {key}: keep {file}; give {public} to every node with --token-keys")
    }
}

/// The answer of `token create`.
#[derive(Debug, Serialize)]
struct Created {
    token: String,
    #[serde(flatten)]
    said: Said,
}

impl Document for Created {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "{}", self.token)
    }
}

/// The answer of `token show`.
#[derive(Debug, Serialize)]
struct Said {
    id: String,
    name: String,
    role: String,
    jobs: Vec<JobPattern>,
    made_at_ms: u64,
    expires_at_ms: u64,
    key: String,
}

impl Said {
    fn of(claims: Claims, key: &str) -> Said {
        let Claims { id, name, role, jobs, made_at_ms, expires_at_ms } = claims;
        let (id, name, key) = (id.to_string(), name.to_string(), key.to_owned());
        Said { id, name, role, jobs, made_at_ms, expires_at_ms, key }
    }
}

impl Document for Said {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let Said { id, name, role, jobs, expires_at_ms, key, .. } = self;
        let jobs: Vec<&str> = jobs.iter().map(JobPattern::as_str).collect();
        let of = if jobs.is_empty() { String::new() } else { format!(" for {}", jobs.join(", ")) };
        let until = written(*expires_at_ms);
        writeln!(out, "token {id} ({name}), role {role}{of}, until {until}, signed by key {key}")
    }
}

/// Makes a signing key and its public half.
pub(crate) fn keygen(file: &Path, form: Form) -> Result<(), Failure> {
    let key = SigningKey::generate().map_err(|error| Failure::System(error.to_string()))?;
    let mut public = file.as_os_str().to_owned();
    public.push(".pub");
    let public = PathBuf::from(public);
    write_new(&public, 0o644, &key.public().to_line())?;
    write_new(file, 0o600, &key.to_text())?;
    print(&Made { key: key.public().id().to_string(), file: file.to_owned(), public }, form)
}

/// Prints a new token.
pub(crate) fn create(arguments: CreateTokenArgs, form: Form) -> Result<(), Failure> {
    let CreateTokenArgs { key: file, role, patterns, expires, name } = arguments;
    let Grant { role, jobs } = Grant::new(role, patterns).map_err(|error| {
        let hint = if role == Role::Job { " (--jobs)" } else { "" };
        Failure::Usage(format!("--role {role}: {error}{hint}"))
    })?;
    if expires.is_zero() || expires > EXPIRES_MAX {
        return Err(Failure::Usage("--expires is more than 0 and at most 10 years".to_owned()));
    }
    let wrong = |why: String| Failure::Usage(format!("--key {}: {why}", file.display()));
    let key = SigningKey::parse(&read(&file).map_err(wrong)?);
    let key = key.map_err(|error| wrong(error.to_string()))?;
    let made_at_ms = now_ms();
    let claims = Claims {
        id: token_id().map_err(|error| Failure::System(error.to_string()))?,
        name,
        role: role.as_str().to_owned(),
        jobs,
        made_at_ms,
        expires_at_ms: made_at_ms.saturating_add(milliseconds(expires)),
    };
    let token = key.sign(&claims).map_err(|error| wrong(error.to_string()))?;
    print(&Created { token, said: Said::of(claims, key.public().id().as_str()) }, form)
}

/// Shows what a token says.
pub(crate) fn show(file: &Path, form: Form) -> Result<(), Failure> {
    let wrong = |why: String| Failure::Usage(format!("{}: {why}", file.display()));
    let text = read(file).map_err(wrong)?;
    let tokens = Tokens::parse(text.as_bytes()).map_err(|error| wrong(error.to_string()))?;
    let unsigned = || wrong("it holds no signed token: a shared one says nothing".to_owned());
    let token = SignedToken::read(tokens.first().as_str()).ok_or_else(unsigned)?;
    let claims = token.claims().ok_or_else(unsigned)?;
    print(&Said::of(claims, token.key().as_str()), form)
}

fn read(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let opened = File::open(file).map_err(|error| error.to_string())?;
    let read = opened.take(FILE_BYTES_MAX).read_to_string(&mut text);
    read.map(|_| text).map_err(|error| error.to_string())
}

/// Writes a file that must not exist yet: a key that is in use is not lost by a slip.
fn write_new(file: &Path, mode: u32, text: &str) -> Result<(), Failure> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(file);
    let written = opened.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::Usage(format!("{} exists already: name another file", file.display()))
        }
        _ => Failure::System(format!("cannot write {}: {error}", file.display())),
    })
}

fn now_ms() -> u64 {
    milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The last millisecond that the formatter supports: of the year 9999.
const WRITTEN_MAX_MS: u64 = 253_402_300_799_000;

fn written(ms: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_millis(ms.min(WRITTEN_MAX_MS));
    humantime::format_rfc3339_seconds(time).to_string()
}
