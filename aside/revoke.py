import os
os.chdir('.')
def sub(p, *pairs):
    s=open(p).read()
    for a,b in pairs:
        if a not in s: print("MISSING in",p,":",a[:90]); continue
        s=s.replace(a,b,1)
    open(p,'w').write(s)
sub('store/api/src/command.rs',('''    /// Notes that a node id was used and is gone for ever.
    RetireNode {
        /// Id of the node.
        node: NodeId,
    },
''','''    /// Notes that a node id was used and is gone for ever.
    RetireNode {
        /// Id of the node.
        node: NodeId,
    },
    /// A signed token does not count any more. From feature level 6 on.
    RevokeToken {
        /// Id of the token.
        token: Name,
        /// Log time for which this is kept, in milliseconds: until the token has expired.
        keep_ms: u64,
    },
'''))
sub('store/api/src/stream.rs',('''/// The node's first frame.''','''/// From this feature level on a cluster keeps which tokens were revoked.
pub const LEVEL_TOKENS: u32 = 6;

/// The node's first frame.'''))
sub('store/machine/src/cluster.rs',
('use holdfast_api::{ClusterCommand, ClusterOutcome, Limits, LogTime, NodeId, Outcome, Refusal};','use holdfast_api::{\n    ClusterCommand, ClusterOutcome, Limits, LogTime, Name, NodeId, Outcome, Refusal,\n};'),
('/// is [`PIPELINE_LEVEL`], level 5 is [`SECRET_IDS_LEVEL`].\npub const FEATURE_LEVEL: u32 = 5;','/// is [`PIPELINE_LEVEL`], level 5 is [`SECRET_IDS_LEVEL`], level 6 is [`TOKENS_LEVEL`].\npub const FEATURE_LEVEL: u32 = TOKENS_LEVEL;'),
('''/// Longest cluster id, in bytes.''','''/// From this level on revoked tokens are kept.
pub const TOKENS_LEVEL: u32 = holdfast_api::stream::LEVEL_TOKENS;

/// Most revoked tokens that are kept at a time.
pub const REVOKED_TOKENS_MAX: u64 = 10_000;

/// Longest cluster id, in bytes.'''),
('''    pub runs_age_from: LogTime,
}

impl Default''','''    pub runs_age_from: LogTime,
    /// Tokens that do not count any more, and the log time until which that is kept.
    pub revoked: OrdMap<Name, LogTime>,
}

impl Default'''),
('''            runs_age_from: 0,
''','''            runs_age_from: 0,
            revoked: OrdMap::new(),
'''),
('''        self.retired.insert(node, time);
        Ok(())
    }
''','''        self.retired.insert(node, time);
        Ok(())
    }

    /// Keeps that a token was revoked, the longest of the times that were asked for. Those
    /// whose time is over make room.
    fn revoke(&mut self, token: &Name, time: LogTime, keep_ms: u64) -> Result<(), Refusal> {
        let (level, needed) = (self.feature_level, TOKENS_LEVEL);
        if level < needed {
            return Err(Refusal::FeatureLevel { level, needed });
        }
        self.revoked.retain(|_, until| *until > time);
        let until = time.saturating_add(keep_ms);
        match self.revoked.get_mut(token) {
            Some(kept) => *kept = (*kept).max(until),
            None if self.revoked.len() as u64 >= REVOKED_TOKENS_MAX => {
                let what = "revoked_tokens_max".to_owned();
                return Err(Refusal::ClusterFull { what, limit: REVOKED_TOKENS_MAX });
            }
            None => drop(self.revoked.insert(token.clone(), until)),
        }
        Ok(())
    }
'''),
('''            ClusterCommand::RetireNode { node } => self.cluster.retire(*node, self.time)?,
''','''            ClusterCommand::RetireNode { node } => self.cluster.retire(*node, self.time)?,
            ClusterCommand::RevokeToken { token, keep_ms } => {
                self.cluster.revoke(token, self.time, *keep_ms)?;
            }
'''))
sub('store/machine/src/machine.rs',('''    /// The refusal to reuse a retired node id.''','''    /// Whether a signed token was revoked.
    pub fn is_revoked(&self, token: &Name) -> bool {
        self.cluster.revoked.contains_key(token)
    }

    /// All revoked tokens in order, and the log time until which each is kept.
    pub fn revoked_tokens(&self) -> impl Iterator<Item = (&Name, LogTime)> {
        self.cluster.revoked.iter().map(|(token, until)| (token, *until))
    }

    /// The refusal to reuse a retired node id.'''))
sub('store/machine/src/image.rs',
('use crate::cluster::{COORDINATION_LEVEL, RUNS_LEVEL};','use crate::cluster::{COORDINATION_LEVEL, RUNS_LEVEL, TOKENS_LEVEL};'),
('pub const IMAGE_VERSION: u32 = COORDINATION_VERSION;\n','pub const IMAGE_VERSION: u32 = TOKENS_VERSION;\n\n/// Version with revoked tokens.\nconst TOKENS_VERSION: u32 = 4;\n'),
('            _ => COORDINATION_VERSION,','            COORDINATION_LEVEL..TOKENS_LEVEL => COORDINATION_VERSION,\n            _ => TOKENS_VERSION,'))
sub('store/machine/src/image/encode.rs',
('let Cluster { id, feature_level, limits, retired, runs_age_from } = cluster;','let Cluster { id, feature_level, limits, retired, runs_age_from, revoked } = cluster;'),
('''        out.u64(*runs_age_from)?;
    }
    Ok(())''','''        out.u64(*runs_age_from)?;
    }
    if version >= TOKENS_VERSION {
        out.length(revoked.len())?;
        for (token, until) in revoked {
            out.bytes(token.as_str().as_bytes())?;
            out.u64(*until)?;
        }
    }
    Ok(())'''))
sub('store/machine/src/image/decode.rs',
('''    Ok(Cluster { id, feature_level, limits: Arc::new(limits), retired, runs_age_from })''','''    let mut revoked = OrdMap::new();
    if version >= TOKENS_VERSION {
        for _ in 0..input.u64()? {
            ascending(&mut revoked, name(input)?, input.u64()?, "revoked tokens")?;
        }
    }
    let limits = Arc::new(limits);
    Ok(Cluster { id, feature_level, limits, retired, runs_age_from, revoked })'''))
sub('store/machine/src/lib.rs',('PIPELINE_LEVEL, RETIRED_NODES_MAX,','PIPELINE_LEVEL, RETIRED_NODES_MAX,\n    REVOKED_TOKENS_MAX, TOKENS_LEVEL,'))
# golden
sub('store/machine/tests/golden/parse.rs',
('''        "retire" => Command::Cluster''','''        "revoke-token" => {
            let (token, keep_ms) = (words.name(), words.number());
            Command::Cluster(ClusterCommand::RevokeToken { token, keep_ms })
        }
        "retire" => Command::Cluster'''),
('''        "is-retired" => Ask::''','''        "revoked" => Ask::Revoked,
        "is-retired" => Ask::'''),
('''    Retired(''','''    Revoked,
    Retired('''))
sub('store/machine/tests/golden/show.rs',('''        Ask::Retired(node) => {''','''        Ask::Revoked => {
            let kept = machine.revoked_tokens().map(|(token, until)| format!("{token} until {until}"));
            let kept: Vec<String> = kept.collect();
            if kept.is_empty() { "none".to_owned() } else { kept.join(", ") }
        }
        Ask::Retired(node) => {'''))
open('store/machine/tests/scripts/tokens.txt','w').write('''# Revoked tokens are kept from feature level 6 on, until they have expired.
> t=1000 revoke-token t1 500
> feature-level 6
> t=1000 revoke-token t1 500
> revoked

# Revoking again keeps the later time.
> t=1100 revoke-token t1 100 ; revoke-token t2 10000
> revoked
> t=1200 revoke-token t1 900
> revoked

# Time alone changes nothing; the next revocation drops those that are over.
> t=2100 tick
> revoked
> t=2100 revoke-token t3 1
> revoked
> state
''')
# store
sub('store/src/node/mod.rs',
('use holdfast_machine::{COORDINATION_LEVEL, Machine, PIPELINE_LEVEL, RUNS_LEVEL};','use holdfast_machine::{COORDINATION_LEVEL, Machine, PIPELINE_LEVEL, RUNS_LEVEL, TOKENS_LEVEL};'),
('''            _ => return Ok(()),
        };
        let level''','''            Command::Cluster(ClusterCommand::RevokeToken { .. }) => TOKENS_LEVEL,
            _ => return Ok(()),
        };
        let level'''))
sub('store/src/node/sanity.rs',('''        Command::Cluster(_) => Err(only_for_the_leader()),''','''        Command::Cluster(ClusterCommand::RevokeToken { .. }) => Ok(()),
        Command::Cluster(_) => Err(only_for_the_leader()),'''))
sub('store/src/permit.rs',
('''    Backup: "make a backup" => Everything,''','''    RevokeToken: "revoke a token" => Everything,
    SeeTokens: "list revoked tokens" => Everything,
    Backup: "make a backup" => Everything,'''),
('''            ClusterCommand::LeaderStarted { .. }
''','''            ClusterCommand::RevokeToken { .. } => (Operation::RevokeToken, Whose::All),
            ClusterCommand::LeaderStarted { .. }
'''),
('const BODIES: [&str; 38] = [','const BODIES: [&str; 39] = ['),
('    "/v1/runs",\n','    "/v1/runs",\n    "/v1/token/revoke",\n'),
('        "/v1/backup" => Operation::Backup,','        "/v1/backup" => Operation::Backup,\n        "/v1/tokens" => Operation::SeeTokens,'))
sub('store/src/permit/tests.rs',('"round": "r", "arrivals"','"token": "t1", "keep_ms": 1, "round": "r", "arrivals"'))
sub('store/src/http/forward.rs',('''    (Method::POST, "/v1/limits", Class::Change),
''','''    (Method::POST, "/v1/limits", Class::Change),
    (Method::GET, "/v1/tokens", Class::Local),
    (Method::POST, "/v1/token/revoke", Class::Change),
'''))
sub('store/src/http/mod.rs',('//! | [`agents`] | what agents report |','//! | [`tokens`] | revoked tokens |\n//! | [`agents`] | what agents report |'),('pub mod strict;\n','pub mod strict;\npub mod tokens;\n'))
sub('store/src/http/openapi.rs',('    strict,\n};','    strict, tokens,\n};'),('        .routes(routes!(backup::backup))','        .routes(routes!(tokens::tokens))\n        .routes(routes!(tokens::revoke))\n        .routes(routes!(backup::backup))'))
open('store/src/http/tokens.rs','w').write('''//! Signed tokens as JSON: which keys a node takes, and which tokens were revoked.

use axum::Json;
use axum::extract::State;
use holdfast_api::{ClusterCommand, Command, Name, NodeId, Outcome};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::cluster::Answered;
use super::kv::change::WrittenAnswer;
use super::kv::{Mark, commit};
use super::problem::extract::{Body, InSession, SessionHeaders};
use super::problem::{ChangeProblems, ReadProblems};
use crate::principal::Principal;

/// A revoked token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RevokedToken {
    /// Its id.
    pub token: Name,
    /// Log time until which this is kept, in milliseconds.
    pub until_ms: u64,
}

/// What a node knows about signed tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokensAnswer {
    /// The node that answers.
    pub node: NodeId,
    /// The keys whose tokens it takes.
    pub keys: Vec<Name>,
    /// Revoked tokens, as far as it has applied the log.
    pub revoked: Vec<RevokedToken>,
}

/// The keys that the answering node takes, and the tokens that were revoked.
#[utoipa::path(
    get, path = "/v1/tokens", operation_id = "tokens", tag = "cluster",
    responses((status = 200, description = "Keys and revoked tokens", body = TokensAnswer), ReadProblems)
)]
pub async fn tokens(State(app): State<App>) -> Answered<TokensAnswer> {
    let node = app.node()?;
    let machine = node.machine();
    let revoked = machine.revoked_tokens();
    let revoked = revoked.map(|(token, until_ms)| RevokedToken { token: token.clone(), until_ms });
    let (revoked, keys) = (revoked.collect(), app.inner.access.key_ids());
    Ok(Json(TokensAnswer { node: node.id(), keys, revoked }))
}

/// A token to revoke.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RevokeTokenRequest {
    /// Its id.
    pub token: Name,
    /// Log time for which this is kept, in milliseconds: until the token has expired.
    pub keep_ms: u64,
}

/// Revokes a signed token: it does not count any more.
#[utoipa::path(
    post, path = "/v1/token/revoke", operation_id = "token_revoke", tag = "cluster",
    params(SessionHeaders),
    request_body(content = RevokeTokenRequest, example = json!({"token": "t0123456789abcdef", "keep_ms": 2592000000u64})),
    responses((status = 200, description = "It is revoked", body = WrittenAnswer), ChangeProblems)
)]
pub async fn revoke(
    State(app): State<App>,
    caller: Principal,
    InSession(session): InSession,
    Body(RevokeTokenRequest { token, keep_ms }): Body<RevokeTokenRequest>,
) -> Answered<WrittenAnswer> {
    let command = Command::Cluster(ClusterCommand::RevokeToken { token, keep_ms });
    let fitting = |outcome: &Outcome, mark: Mark| {
        matches!(outcome, Outcome::Cluster(_)).then_some(WrittenAnswer { mark })
    };
    commit(&app, &caller, session, command, fitting).await
}
''')
sub('store/src/access.rs',('''    /// Who holds a signed token; the error''','''    /// Ids of the keys whose tokens are taken.
    pub fn key_ids(&self) -> Vec<Name> {
        let keys = self.keys.iter();
        keys.flat_map(|keys| keys.get().iter().map(|key| key.id().clone()).collect::<Vec<_>>()).collect()
    }

    /// Who holds a signed token; the error'''),('use holdfast_api::Problem;\n','use holdfast_api::{Name, Problem};\n'))
sub('store/src/http/admission.rs',
('''        let principal = access.verify(token)?;
        return Ok(principal.at(from));''','''        let principal = access.verify(token)?.at(from);
        app.is_current(&principal)?;
        return Ok(principal);'''),
('''impl App {
    /// Returns once''','''impl App {
    /// Whether the signed token of a caller still counts, as far as this node knows.
    fn is_current(&self, principal: &Principal) -> Result<(), Problem> {
        let Some(token) = principal.token() else { return Ok(()) };
        self.inner.access.is_current(token)?;
        match self.node() {
            Ok(node) if node.machine().is_revoked(&token.id) => {
                let message = format!(
                    "the token {} ({}) was revoked: ask whoever gave it to you for another",
                    token.id, token.name
                );
                Err(Problem::refused(Code::Unauthorized, message))
            }
            _ => Ok(()),
        }
    }

    /// Returns once'''),
('''        let Some(token) = principal.token() else { return std::future::pending().await };
        loop {
            if let Err(problem) = self.inner.access.is_current(token) {''','''        if principal.token().is_none() {
            return std::future::pending().await;
        }
        loop {
            if let Err(problem) = self.is_current(principal) {'''))
# CLI
sub('client/cli/src/cli/token.rs',
('''    /// Show what a token says; only nodes know whether they take it
    Show {
        /// A file with the token
        file: PathBuf,
    },
}
''','''    /// Show what a token says; only nodes know whether they take it
    Show {
        /// A file with the token
        file: PathBuf,
    },
    /// What the cluster is asked for.
    #[command(flatten)]
    Cluster(ClusterTokenCommand),
}

/// Commands on signed tokens that ask the cluster.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterTokenCommand {
    /// List the keys that the answering node takes, and the tokens that were revoked
    #[command(visible_alias = "ls")]
    List,
    /// End a token before it expires: every node refuses it, and its streams end
    Revoke {
        /// Its id, as `holdfast token show` and the nodes' logs tell it
        token: Name,
        /// Keep this for so long: until the token has expired [default: 3660days, the longest that
        /// one is valid]
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        keep: Option<Duration>,
    },
}
'''))
sub('client/cli/src/cli.rs',
('pub(crate) use self::token::{CreateTokenArgs, TokenCommand};','pub(crate) use self::token::{ClusterTokenCommand, CreateTokenArgs, TokenCommand};'),
('/// Make the keys and tokens by which a cluster knows who may do what; asks no node','/// Make, list and revoke the tokens by which a cluster knows who may do what'),
('''pub(crate) enum ClusterCommand {
''','''pub(crate) enum ClusterCommand {
    /// Typed as a part of `token`.
    #[command(skip)]
    Token(ClusterTokenCommand),
'''))
sub('client/cli/src/lib.rs',
('''        Command::Token(command) => {
            with(load(), colours, form, |_, form| commands::token::run(command, form))
        }
''','''        Command::Token(command) => with(load(), colours, form, |settings, form| match command {
            TokenCommand::Cluster(command) => {
                start_log(environment)?;
                ask_cluster(settings.clone(), form, ClusterCommand::Token(command))
            }
            TokenCommand::Keygen { file } => commands::token::keygen(&file, form),
            TokenCommand::Create(arguments) => commands::token::create(arguments, form),
            TokenCommand::Show { file } => commands::token::show(&file, form),
        }),
'''),
('use crate::cli::{ClusterCommand, Command, UsageError};','use crate::cli::{ClusterCommand, Command, TokenCommand, UsageError};'),
('[--jobs PATTERN,…] | show FILE','[--jobs PATTERN,…] | show FILE | list | revoke ID [--keep TIME]'),
('//! | `config` | for each key','//! | `token list` | `{"node", "keys": [id], "revoked": [{"token", "until_ms": log time}]}` |\n//! | `token revoke` | `{"revision"}` |\n//! | `config` | for each key'))
sub('client/cli/src/commands/token.rs',
('''/// Carries a command out.
pub(crate) fn run(command: TokenCommand, form: Form) -> Result<(), Failure> {
    match command {
        TokenCommand::Keygen { file } => print(&keygen(&file)?, form),
        TokenCommand::Create(arguments) => print(&create(arguments)?, form),
        TokenCommand::Show { file } => print(&show(&file)?, form),
    }
}
''','''/// Longest time for a node to list its tokens.
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

/// `token list`.
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
'''),
('fn keygen(file: &Path) -> Result<Made, Failure> {','/// Makes a signing key and its public half.\npub(crate) fn keygen(file: &Path, form: Form) -> Result<(), Failure> {'),
('    Ok(Made { key: key.public().id().to_string(), file: file.to_owned(), public })','    print(&Made { key: key.public().id().to_string(), file: file.to_owned(), public }, form)'),
('fn create(arguments: CreateTokenArgs) -> Result<Created, Failure> {','/// Prints a new token.\npub(crate) fn create(arguments: CreateTokenArgs, form: Form) -> Result<(), Failure> {'),
('    Ok(Created { token, said: Said::of(claims, key.public().id().as_str()) })','    print(&Created { token, said: Said::of(claims, key.public().id().as_str()) }, form)'),
('fn show(file: &Path) -> Result<Said, Failure> {','/// Shows what a token says.\npub(crate) fn show(file: &Path, form: Form) -> Result<(), Failure> {'),
('    Ok(Said::of(claims, token.key().as_str()))','    print(&Said::of(claims, token.key().as_str()), form)'),
('use holdfast_api::JobPattern;\nuse holdfast_api::grant::{Claims, Grant, Role, SignedToken, SigningKey, token_id};','use holdfast_api::grant::{Claims, Grant, Role, SignedToken, SigningKey, token_id};\nuse holdfast_api::{ClusterCommand, Command, JobPattern, Name, NodeId, Problem};\nuse holdfast_client::{Error, fetch};'),
('use serde::Serialize;','use serde::{Deserialize, Serialize};'),
('use crate::cli::{CreateTokenArgs, TokenCommand};\n','use super::Context;\nuse crate::cli::{ClusterTokenCommand, CreateTokenArgs};\nuse crate::document::Written;\n'))
sub('client/cli/src/commands/mod.rs',('            ClusterCommand::Status => status::run(self).await,','            ClusterCommand::Token(command) => token::run(self, command).await,\n            ClusterCommand::Status => status::run(self).await,'))
sub('client/cli/src/cli/help.rs',('    ("token show", &','    ("token list", &["holdfast token list"]),\n    ("token revoke", &["holdfast token revoke t0123456789abcdef --keep 30d"]),\n    ("token show", &'))
sub('client/cli/src/cli/tests.rs',('        "token show t",\n','        "token show t",\n        "token list",\n        "token revoke t1",\n        "token revoke t1 --keep 30d",\n'))
sub('store/machine/src/image/encode.rs',('use super::{COORDINATION_VERSION, FIRST_VERSION, coordination};','use super::{COORDINATION_VERSION, FIRST_VERSION, TOKENS_VERSION, coordination};'))
sub('store/machine/src/image/decode.rs',('use super::{COORDINATION_VERSION, FIRST_VERSION, coordination, held};','use super::{COORDINATION_VERSION, FIRST_VERSION, TOKENS_VERSION, coordination, held};'))
sub('store/docs/secure.md',('''So a token that got lost ends with its key: give each team, or each kind of token, a key of its own (a node takes up to 16).
''','''### A token that got lost

Revoke it by its id, which `holdfast token show` and the nodes' logs tell:

```sh
holdfast token create --key /etc/holdfast/tokens.key --role job --jobs 'llm-*' --name lost --expires 1h > lost.token
ID=$(holdfast -o json token show lost.token | python3 -c 'import json, sys; print(json.load(sys.stdin)["id"])')
holdfast token revoke $ID
holdfast token list
```

Each node refuses it as soon as it has applied that, and its streams end within a second; a node that is cut off from the others does not know yet. The cluster
keeps up to 10 000 revocations, each for 10 years or for `--keep`, in log time. It needs feature level 6: every node is upgraded first.
'''),
('| `there is no role','| `was revoked` | somebody ended it by `holdfast token revoke` | make another |\n| `there is no role'))
s=open('store/docs/secure.md').read()
i=s.index("### Roles"); j=s.index("* \"Own jobs\"")
import re
p=open('store/src/permit.rs').read()
ops=re.findall(r'^    (\w+): "([^"]+)" => (\w+),',p,re.M)
ext={'Any':('yes','yes','yes','no'),'Use':('own jobs','no','yes','no'),'See':('own jobs','yes','yes','no'),'End':('own jobs','yes','yes','no'),'Operate':('no','yes','yes','no'),'Everything':('no','no','yes','no'),'Peer':('no','no','no','yes'),'Leader':('no',)*4}
table="| | job | operator | admin | node |\n|---|---|---|---|---|\n"+"".join("| %s | %s |\n"%(w," | ".join(ext[r])) for _,w,r in ops)
open('store/docs/secure.md','w').write(s[:i]+"### Roles\n\n"+table+"\n"+s[j:])
sub('store/docs/contributing.md',('`FEATURE_LEVEL`, now 5','`FEATURE_LEVEL`, now 6'),('`IMAGE_VERSION`, 3 |','`IMAGE_VERSION`, 4 |'))
sub('store/docs/changelog.md',('nodes take them by `--token-keys`,','nodes take them by `--token-keys`, `holdfast token revoke` ends one,'))
