//! Errors, their texts and their exit codes: the one place that decides all
//! three.

use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;

use holdfast_api::{Code, Effectiveness, Problem, Refusal};
use holdfast_client::Error;

use crate::config::{ConfigError, Settings, Source};

/// The exit codes. They are a contract with scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command did what it was asked to do.
    Ok = 0,
    /// The answer is no: refused, absent, not swapped, timed out waiting.
    Refused = 1,
    /// The command line, the environment or the configuration file is wrong.
    Usage = 2,
    /// No node, or no leader, answered in time; nothing was changed.
    Unreachable = 3,
    /// The change may have been made.
    Unknown = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Why a command did not end with [`Exit::Ok`].
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request makes no sense as it was given.
    Usage(String),
    /// The cluster answered, and the answer is no.
    Refused(Box<Problem>),
    /// The command was carried out, and its answer is no. Its effect is known,
    /// unlike that of [`Failure::Refused`].
    No(Box<Problem>),
    /// The client library gave up or was refused.
    Client(Error),
    /// No node could answer; nothing was changed.
    Unreachable(String),
    /// A node answered something that does not belong to the question.
    Mismatch {
        asked: &'static str,
        /// The beginning of the answer, in Rust's debug form.
        answer: String,
        /// Whether what was asked had an effect.
        outcome: Effectiveness,
    },
    /// Standard input could not be read.
    Input(String),
    /// This machine refused something that the command needs.
    System(String),
    /// Standard output could not be written.
    Output(io::Error),
    /// The reader of standard output went away: the end, and no error.
    PipeClosed,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Client(error)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::Usage(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Failure::PipeClosed
        } else {
            Failure::Output(error)
        }
    }
}

impl Failure {
    /// The answer is no.
    pub(crate) fn refused(problem: impl Into<Problem>) -> Failure {
        Failure::Refused(Box::new(problem.into()))
    }

    /// The answer is no, and whether something was changed.
    pub(crate) fn no(code: Code, message: String, changed: bool) -> Failure {
        let outcome = if changed { Effectiveness::Applied } else { Effectiveness::None };
        Failure::No(Box::new(Problem { outcome, ..Problem::refused(code, message) }))
    }

    /// The cluster's error code, if the cluster refused.
    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Failure::Refused(problem) => Some(problem.code),
            Failure::Client(error) => Some(error.code()),
            _ => None,
        }
    }

    /// The state machine's refusal, if it refused.
    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        match self {
            Failure::Refused(problem) | Failure::Client(Error::Refused(problem)) => {
                problem.refusal.as_ref()
            }
            _ => None,
        }
    }

    /// Whether the cluster reported that the job or the run does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self.code(), Some(Code::JobNotFound | Code::RunNotFound))
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            Failure::PipeClosed => Exit::Ok,
            Failure::Usage(_) | Failure::Input(_) => Exit::Usage,
            Failure::Refused(problem) if problem.outcome != Effectiveness::None => Exit::Unknown,
            Failure::Refused(_) | Failure::No(_) | Failure::System(_) | Failure::Output(_) => {
                Exit::Refused
            }
            Failure::Mismatch { outcome, .. } => exit_of(Code::Internal, *outcome),
            Failure::Unreachable(_) => Exit::Unreachable,
            Failure::Client(error) => exit_of(error.code(), error.outcome()),
        }
    }

    /// The error as `-o json` shows it.
    pub(crate) fn problem(&self, settings: Option<&Settings>) -> Problem {
        let message = self.message(settings);
        match self {
            Failure::Refused(problem) | Failure::No(problem) => {
                Problem { message, ..problem.as_ref().clone() }
            }
            Failure::Client(Error::Refused(problem)) => {
                Problem { message, ..problem.as_ref().clone() }
            }
            Failure::Usage(_) | Failure::Input(_) => {
                Problem::refused(Code::InvalidRequest, message)
            }
            Failure::System(_) => Problem::refused(Code::Internal, message),
            Failure::Unreachable(_) => Problem::retryable(Code::Unavailable, message),
            Failure::Client(error) => Problem {
                retryable: error.is_retryable(),
                outcome: error.outcome(),
                ..Problem::refused(error.code(), message)
            },
            Failure::Mismatch { outcome, .. } => {
                Problem { outcome: *outcome, ..Problem::refused(Code::Internal, message) }
            }
            // The command was carried out; only its answer was not shown.
            Failure::Output(_) | Failure::PipeClosed => Problem {
                outcome: Effectiveness::Applied,
                ..Problem::refused(Code::Internal, message)
            },
        }
    }

    /// The error as people read it: what happened, and what to do.
    pub(crate) fn message(&self, settings: Option<&Settings>) -> String {
        match self {
            Failure::Usage(message)
            | Failure::Input(message)
            | Failure::System(message)
            | Failure::Unreachable(message) => message.clone(),
            Failure::Refused(problem) | Failure::No(problem) => problem.message.clone(),
            Failure::Mismatch { asked, answer, .. } => format!(
                "the node answered {answer} to {asked}; compare `holdfast version` with the versions in `holdfast status`"
            ),
            Failure::Output(error) => format!(
                "the command was carried out, but its answer cannot be written to standard output: {error}"
            ),
            Failure::PipeClosed => "standard output was closed".to_owned(),
            Failure::Client(error) => client_message(error, settings),
        }
    }
}

/// The exit code of an error with this code and effect. The effect goes first:
/// a change that may have been made is what the caller must know above all.
pub(crate) fn exit_of(code: Code, outcome: Effectiveness) -> Exit {
    match (outcome, code) {
        (Effectiveness::Unknown | Effectiveness::Applied, _) => Exit::Unknown,
        (Effectiveness::None, Code::NotLeader | Code::Unavailable | Code::Timeout) => {
            Exit::Unreachable
        }
        (Effectiveness::None, _) => Exit::Refused,
    }
}

/// The client library's error, and the next step.
fn client_message(error: &Error, settings: Option<&Settings>) -> String {
    if let (Error::Unreachable { tried }, Some(settings)) = (error, settings) {
        return unreachable_message(tried, settings);
    }
    if let (Error::Refused(problem), Some(settings)) = (error, settings)
        && problem.code == Code::Unauthorized
        // Else the node itself says what it wants, or what is wrong with a signed token.
        && problem.message.contains("--token-file")
        && !problem.message.contains("--tls-")
    {
        return unauthorized_message(settings);
    }
    let text = error.to_string();
    // A step that the text already names is not repeated.
    if NEXT_STEPS.iter().any(|step| text.contains(step)) {
        return text;
    }
    let next = match exit_of(error.code(), error.outcome()) {
        Exit::Unknown => Some(
            "look at the state (`holdfast kv get`, `holdfast status`) before you repeat the command",
        ),
        Exit::Unreachable => Some("`holdfast status` shows which nodes answer and who leads"),
        _ => advice(error.code()),
    };
    match next {
        Some(next) => format!("{text}\n{next}"),
        None => text,
    }
}

/// How an error names the next step in its own words.
const NEXT_STEPS: [&str; 2] = ["`holdfast ", "before repeating it"];

/// Each node tried and why it was of no use, where the list came from, and how
/// to name a better one.
fn unreachable_message(tried: &[(String, String)], settings: &Settings) -> String {
    let mut message = format!(
        "no store node could serve this within {}; nothing was changed",
        settings.timeout.value
    );
    for (endpoint, reason) in tried {
        let _ = write!(message, "\n  {endpoint}: {reason}");
    }
    let source = &settings.store.source;
    let _ = write!(message, "\nthe nodes tried come from: {source}; {}", other_nodes(source));
    message
}

/// What to do where no node answers. If nodes were named, there is a cluster.
pub(crate) fn other_nodes(source: &Source) -> &'static str {
    match source {
        Source::Default => {
            "name yours with --store HOST:PORT,… or HOLDFAST_STORE, or start a cluster here: `holdfast-store dev --nodes 3 --data-dir DIR --base-port 21000`"
        }
        _ => {
            "if these are the right ones, see on their hosts whether they run and what they log; else name others with --store HOST:PORT,… or HOLDFAST_STORE"
        }
    }
}

/// Which token was of no use, if there was one, and how to name a better one.
fn unauthorized_message(settings: &Settings) -> String {
    match &settings.token_file.value {
        None => "the cluster requires a token; name the file that holds it with --token-file FILE or HOLDFAST_TOKEN_FILE".to_owned(),
        Some(path) => format!(
            "the cluster does not accept the token in {} (from: {}); copy the file that its nodes were started with, and name it with --token-file FILE or HOLDFAST_TOKEN_FILE",
            path.display(),
            settings.token_file.source
        ),
    }
}

/// The next command for refusals whose own text does not name one.
fn advice(code: Code) -> Option<&'static str> {
    match code {
        Code::Compacted => Some(
            "changes that old are no longer kept: read the present state with `holdfast -o json kv list` and watch from its revision + 1",
        ),
        Code::NotANumber => Some("`holdfast kv get` shows what is there"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Layer, merge};

    #[test]
    fn an_effect_that_is_not_known_outweighs_every_code() {
        for code in [Code::Unavailable, Code::Timeout, Code::SessionExpired, Code::Fenced] {
            assert_eq!(exit_of(code, Effectiveness::Unknown), Exit::Unknown);
        }
    }

    #[test]
    fn without_effect_silence_is_unreachable_and_everything_else_is_a_refusal() {
        for code in [Code::NotLeader, Code::Unavailable, Code::Timeout] {
            assert_eq!(exit_of(code, Effectiveness::None), Exit::Unreachable);
        }
        for code in [
            Code::InvalidRequest,
            Code::Unauthorized,
            Code::LimitExceeded,
            Code::QuotaExceeded,
            Code::Overloaded,
            Code::JobNotFound,
            Code::RunNotFound,
            Code::Fenced,
            Code::Conflict,
            Code::NotANumber,
            Code::Compacted,
            Code::NodeNotFound,
            Code::QuorumWouldBeLost,
            Code::WrongCluster,
            Code::FeatureLevel,
            Code::Internal,
        ] {
            assert_eq!(exit_of(code, Effectiveness::None), Exit::Refused, "{code}");
        }
    }

    #[test]
    fn the_codes_are_the_documented_numbers() {
        let all = [Exit::Ok, Exit::Refused, Exit::Usage, Exit::Unreachable, Exit::Unknown];
        assert_eq!(all.map(|exit| exit as u8), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_refusal_of_the_cluster_keeps_its_document() {
        let fenced = Problem::refused(Code::Fenced, "run r1 of job a ended at revision 7");
        let failure = Failure::from(Error::Refused(Box::new(fenced.clone())));
        assert_eq!(failure.exit(), Exit::Refused);
        assert_eq!(failure.problem(None), fenced);
    }

    #[test]
    fn a_refusal_without_advice_of_its_own_gets_the_next_command() {
        let compacted = Problem::refused(Code::Compacted, "revision 3 is no longer kept");
        let message = Failure::from(Error::Refused(Box::new(compacted))).message(None);
        assert!(message.starts_with("revision 3 is no longer kept"), "{message}");
        assert!(message.contains("kv list"), "{message}");
    }

    #[test]
    fn a_next_step_is_told_once() {
        let told = |code, outcome, text: &str| {
            let problem = Problem { outcome, ..Problem::refused(code, text) };
            Failure::from(Error::Refused(Box::new(problem))).message(None)
        };
        for (code, outcome, text) in [
            (
                Code::NodeNotFound,
                Effectiveness::None,
                "there is no node 9 (`holdfast node list` shows all)",
            ),
            (
                Code::QuorumWouldBeLost,
                Effectiveness::None,
                "2 are needed and only 1 answer; bring the others back first (`holdfast node list`)",
            ),
            (
                Code::Unavailable,
                Effectiveness::Unknown,
                "the change may or may not have been made; look at `holdfast status` before repeating it",
            ),
            (Code::Unavailable, Effectiveness::None, "no leader; see `holdfast status`"),
        ] {
            assert_eq!(told(code, outcome, text), text);
        }
        let expired = Failure::from(Error::SessionExpired { session: 3.into() }).message(None);
        assert_eq!(expired.matches("repeat").count(), 1, "{expired}");
        let lost = told(Code::Unavailable, Effectiveness::None, "there is no leader at present");
        assert_eq!(lost.lines().count(), 2, "{lost}");
    }

    #[test]
    fn an_unreachable_cluster_is_told_node_by_node_with_the_fix() {
        let flags = Layer { store: Some("a:1,b:2".parse().unwrap()), ..Layer::default() };
        let settings = merge(flags, Layer::default(), None);
        let tried = vec![
            ("a:1".to_owned(), "connection refused".to_owned()),
            ("b:2".to_owned(), "there is no leader at present; retry".to_owned()),
        ];
        let failure = Failure::from(Error::Unreachable { tried });
        assert_eq!(failure.exit(), Exit::Unreachable);
        let message = failure.message(Some(&settings));
        for part in [
            "within 10s; nothing was changed\n",
            "  a:1: connection refused\n",
            "  b:2: there is no leader at present; retry\n",
            "come from: flag;",
            "--store",
            "HOLDFAST_STORE",
            "whether they run",
        ] {
            assert!(message.contains(part), "{part:?} in {message}");
        }
        assert!(
            !message.contains("holdfast-store dev"),
            "nodes were named, so there is a cluster: {message}"
        );
        let nobody_named = merge(Layer::default(), Layer::default(), None);
        let message = failure.message(Some(&nobody_named));
        assert!(message.contains("holdfast-store dev"), "{message}");
        let problem = failure.problem(Some(&settings));
        assert_eq!(problem.outcome, Effectiveness::None);
        assert!(problem.retryable);
    }

    #[test]
    fn who_is_not_let_in_is_told_which_token_was_sent_and_how_to_name_another() {
        let failure = |token_file: Option<&str>| {
            let flags = Layer { token_file: token_file.map(Into::into), ..Layer::default() };
            let settings = merge(flags, Layer::default(), None);
            let asks = "name its file with --token-file FILE";
            let problem = Problem::refused(Code::Unauthorized, asks);
            let failure = Failure::from(Error::Refused(Box::new(problem)));
            assert_eq!(failure.exit(), Exit::Refused);
            assert_eq!(failure.problem(Some(&settings)).code, Code::Unauthorized);
            failure.message(Some(&settings))
        };
        let (none, wrong) = (failure(None), failure(Some("/etc/token")));
        assert!(none.contains("--token-file") && none.contains("HOLDFAST_TOKEN_FILE"), "{none}");
        assert!(wrong.contains("/etc/token (from: flag)"), "{wrong}");
    }

    #[test]
    fn an_unknown_outcome_says_to_look_first() {
        let failure = Failure::from(Error::Timeout {
            outcome: Effectiveness::Unknown,
            reason: "the connection was lost".to_owned(),
        });
        assert_eq!(failure.exit(), Exit::Unknown);
        assert!(failure.message(None).contains("before you repeat"));
        assert_eq!(failure.problem(None).outcome, Effectiveness::Unknown);
    }

    #[test]
    fn a_wait_that_timed_out_was_answered_and_is_not_unreachable() {
        let timed_out = Failure::refused(Problem::retryable(Code::Timeout, "still missing: a"));
        assert_eq!(timed_out.exit(), Exit::Refused);
    }

    #[test]
    fn an_expired_session_is_an_unknown_outcome_however_it_is_told() {
        let told = Failure::refused(Refusal::SessionExpired { session: 3.into() });
        assert_eq!(told.exit(), Exit::Unknown);
        let found = Failure::from(Error::SessionExpired { session: 3.into() });
        assert_eq!(found.exit(), Exit::Unknown);
    }

    #[test]
    fn a_strange_answer_is_unknown_to_a_command_and_an_error_to_a_question() {
        let strange = |outcome| Failure::Mismatch { asked: "add", answer: "Kept".into(), outcome };
        assert_eq!(strange(Effectiveness::Unknown).exit(), Exit::Unknown);
        assert_eq!(strange(Effectiveness::None).exit(), Exit::Refused);
    }

    #[test]
    fn an_answer_that_is_no_is_a_refusal_whatever_was_changed() {
        for changed in [true, false] {
            let no = Failure::no(Code::Conflict, "no".to_owned(), changed);
            assert_eq!((no.exit(), no.message(None)), (Exit::Refused, "no".to_owned()));
            assert_eq!(no.problem(None).outcome == Effectiveness::Applied, changed);
        }
    }

    #[test]
    fn a_reader_that_went_away_is_not_an_error() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(failure.exit(), Exit::Ok);
        let full = Failure::from(io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.exit(), Exit::Refused);
    }
}
