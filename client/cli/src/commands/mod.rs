//! The commands: one file per family.

mod activity;
pub(crate) mod agents;
pub(crate) mod backup;
pub(crate) mod comm;
pub(crate) mod config;
mod delete;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod fence;
mod heartbeats;
mod holders;
pub(crate) mod iterations;
pub(crate) mod job;
mod known;
pub(crate) mod kv;
pub(crate) mod leader;
pub(crate) mod list;
pub(crate) mod node;
pub(crate) mod plan;
pub(crate) mod process;
pub(crate) mod processes;
pub(crate) mod replace;
pub(crate) mod rounds;
pub(crate) mod run;
pub(crate) mod status;
pub(crate) mod token;
mod txn;
pub(crate) mod wait;
pub(crate) mod waits;
mod waits_for;
pub(crate) mod watch;
pub(crate) mod why;

use std::fmt;
use std::time::Duration;

use holdfast_api::{
    Answer, Command, Effectiveness, Outcome, Read, ReadAnswer, ReadOutcome, Revision, Scope,
};
use holdfast_client::{Client, Consistency, Deadline, Options, TlsFiles, check_token_file};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{AgentCommand, ClusterCommand};
use crate::config::{Settings, Source, Timeout};
use crate::exit::Failure;
use crate::log_time::LogNow;
use crate::output::{self, Document, Form, Output};

/// What a command works with: the settings, and a client made of them.
pub(crate) struct Context {
    pub(crate) settings: Settings,
    form: Form,
    pub(crate) client: Client,
}

impl Context {
    /// Must be called inside a tokio runtime. Connects when first used.
    pub(crate) fn new(settings: Settings, form: Form) -> Result<Context, Failure> {
        let mut options = Options::new(settings.store.value.0.clone());
        options.token_file = settings.token_file.value.clone();
        let checked = options.token_file.as_deref().map(check_token_file).transpose();
        // If it was set elsewhere, the error names that place.
        let place = match &settings.token_file.source {
            Source::Environment => "HOLDFAST_TOKEN_FILE".to_owned(),
            Source::File(path) => format!("token_file of {}:", path.display()),
            Source::Flag | Source::Default => "--token-file".to_owned(),
        };
        let placed = |text: String| text.replacen("--token-file", &place, 1);
        let checked = checked.map_err(|error| Failure::Usage(placed(error.to_string())))?;
        if let Some(warning) = checked.flatten() {
            output::talk(format!("{} {}", form.colours.warning(), placed(warning)));
        }
        let files = TlsFiles {
            ca: settings.tls_ca.value.clone(),
            cert: settings.tls_cert.value.clone(),
            key: settings.tls_key.value.clone(),
        };
        options.tls = files.read().map_err(|error| Failure::Usage(error.to_string()))?;
        options.call_timeout = match settings.timeout.value {
            Timeout::After(duration) => duration,
            Timeout::Never => Duration::MAX,
        };
        Ok(Context { settings, form, client: Client::new(options) })
    }

    /// Carries a command out.
    pub(crate) async fn run(&self, command: ClusterCommand) -> Result<(), Failure> {
        match self.carry_out(command).await {
            Err(failure) if failure.is_not_found() => Err(known::explain(self, failure).await),
            result => result,
        }
    }

    async fn carry_out(&self, command: ClusterCommand) -> Result<(), Failure> {
        match command {
            ClusterCommand::Token(command) => token::run(self, command).await,
            ClusterCommand::Status => status::run(self).await,
            ClusterCommand::Node(command) => node::run(self, command).await,
            ClusterCommand::Leader(command) => leader::run(self, command).await,
            ClusterCommand::Backup(arguments) => backup::run(self, arguments).await,
            ClusterCommand::Agent(AgentCommand::List) => agents::list(self).await,
            ClusterCommand::Doctor { python } => doctor::run(self, python).await,
            ClusterCommand::Waits => waits::run(self).await,
            ClusterCommand::Why { follow } => why::run(self, follow).await,
            ClusterCommand::Processes => processes::run(self).await,
            ClusterCommand::Process(command) => process::run(self, command).await,
            ClusterCommand::Fence(command) => fence::run(self, command).await,
            ClusterCommand::Rounds => rounds::run(self).await,
            ClusterCommand::Comm(command) => comm::run(self, command).await,
            ClusterCommand::Iterations => iterations::run(self).await,
            ClusterCommand::Events { after, follow } => events::run(self, after, follow).await,
            ClusterCommand::Job(command) => job::run(self, command).await,
            ClusterCommand::Run(command) => run::run(self, command).await,
            ClusterCommand::Kv(command) => kv::run(self, command).await,
        }
    }

    /// The scope of keys.
    pub(crate) fn scope(&self) -> Scope {
        self.settings.scope()
    }

    /// The deadline of a request that starts now.
    pub(crate) fn deadline(&self) -> Deadline {
        self.settings.timeout.value.deadline()
    }

    /// The form of answers.
    pub(crate) fn output(&self) -> Output {
        self.form.output
    }

    /// The form of everything that is printed.
    pub(crate) fn form(&self) -> Form {
        self.form
    }

    pub(crate) fn emit(&self, document: &impl Document) -> Result<(), Failure> {
        Ok(output::print(&output::render_as(document, self.form)?)?)
    }

    /// Prints a line for people only: a program has the document.
    pub(crate) fn talk(&self, text: impl fmt::Display) {
        if self.output() == Output::Table {
            output::talk(text);
        }
    }

    /// Proposes a command; a refusal is an error.
    async fn propose(&self, command: Command) -> Result<(Outcome, Revision), Failure> {
        let Answer { revision, outcome, replayed: _ } =
            self.client.propose(command, self.deadline()).await?;
        match outcome {
            Outcome::Refused(refusal) => Err(Failure::refused(refusal)),
            outcome => Ok((outcome, revision)),
        }
    }

    /// The cluster's present log time, if it reports it.
    async fn log_now(&self) -> Result<Option<LogNow>, Failure> {
        let nothing = Read::Check { scope: self.scope(), keys: Vec::new() };
        let answer = self.client.read(nothing, Consistency::Linearizable, self.deadline()).await?;
        Ok((answer.time_ms > 0).then(|| LogNow::exactly(answer.time_ms)))
    }

    /// Asks a question; a refusal is an error.
    async fn read(&self, read: Read, stale: bool) -> Result<(ReadOutcome, Revision), Failure> {
        self.read_until(read, stale, self.deadline()).await
    }

    async fn read_until(
        &self,
        read: Read,
        stale: bool,
        deadline: Deadline,
    ) -> Result<(ReadOutcome, Revision), Failure> {
        let consistency = if stale { Consistency::Stale } else { Consistency::Linearizable };
        let ReadAnswer { revision, outcome, .. } =
            self.client.read(read, consistency, deadline).await?;
        match outcome {
            ReadOutcome::Refused(refusal) => Err(Failure::refused(refusal)),
            outcome => Ok((outcome, revision)),
        }
    }
}

/// Explains durations, where that is needed.
fn talk_of_time(context: &Context, now: LogNow) {
    if !now.is_exact() {
        context.talk(
            "durations end at the newest known event: an older node answered, which does not report the current log time",
        );
    }
}

/// An outcome that does not belong to the command: its effect is not known.
fn unexpected_outcome(asked: &'static str, outcome: &impl fmt::Debug) -> Failure {
    Failure::Mismatch { asked, answer: beginning(outcome), outcome: Effectiveness::Unknown }
}

/// Runs this until it ends or is interrupted, which is success.
async fn until_interrupted(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let handled = |error| Failure::System(format!("cannot handle signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(handled)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(handled)?;
    tokio::select! {
        biased;
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
        end = work => end,
    }
}

/// An answer that does not belong to the question.
fn unexpected_answer(asked: &'static str, answer: &impl fmt::Debug) -> Failure {
    Failure::Mismatch { asked, answer: beginning(answer), outcome: Effectiveness::None }
}

/// Enough of an answer to recognise it by.
fn beginning(answer: &impl fmt::Debug) -> String {
    const CHARS_MAX: usize = 200;
    format!("{answer:?}").chars().take(CHARS_MAX).collect()
}

/// `job J`, or `job J, run R` where one was named.
pub(crate) fn place(scope: &Scope) -> String {
    match &scope.run {
        Some(run) => format!("job {}, run {run}", scope.job),
        None => format!("job {}", scope.job),
    }
}
