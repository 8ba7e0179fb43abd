//! What a program may say over its connection, and for which processes. Pure.

use holdfast_api::{
    Cause, Code, Command, Incarnation, LeaseId, Name, Problem, ProcessCommand, ProcessId, Read,
    ReleaseWhy, RoundCommand, Scope, Sender, Subject,
};

/// A process in one incarnation.
pub type Participant = (ProcessId, Incarnation);

/// A command that may be handed on, by what becomes of it here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Errand {
    /// An incarnation begins, and will belong to the connection.
    Register {
        /// The registered process; `None` for a new one.
        process: Option<ProcessId>,
        /// Also in the place of one that is alive at another connection.
        takeover: bool,
    },
    /// These participants end, as the program wishes.
    End(Vec<Participant>),
    /// What it holds is released: run to its end.
    Release,
    /// It changes no ownership of processes.
    Other,
}

/// Whether a command may be handed on. `owns` answers whether an incarnation belongs to the
/// connection.
pub fn command(
    command: &Command,
    (lease, scope): (LeaseId, &Scope),
    owns: impl Fn(Participant) -> bool,
) -> Result<Errand, Problem> {
    let own_lease = |named: LeaseId| match named == lease {
        true => Ok(()),
        false => Err(foreign_lease(named, lease)),
    };
    let own = |participant: Participant| {
        if owns(participant) { Ok(()) } else { Err(foreign(participant)) }
    };
    let facts = command.facts();
    if facts.sender < Sender::Program {
        return Err(Problem::refused(
            Code::InvalidRequest,
            "the agent hands on registrations, ends, arrivals and withdrawals of this \
             connection's processes and changes of its run's keys, and nothing else; use a client of \
             the store for the rest",
        ));
    }
    match facts.subject {
        Subject::Keys(named) => keys(named, scope)?,
        Subject::Run(named) => of_job(&named.job, scope)?,
        Subject::Job(named) => of_job(named, scope)?,
        Subject::Lease(named) => own_lease(named)?,
        Subject::Nobody => {}
    }
    let participants = command.participants();
    match command {
        Command::Process(ProcessCommand::Register { process, takeover, .. }) => {
            Ok(Errand::Register { process: *process, takeover: *takeover })
        }
        Command::Process(ProcessCommand::End { ends, .. }) => {
            participants.iter().copied().try_for_each(own)?;
            ends.iter().try_for_each(|end| own_cause(&end.cause))?;
            if ends.iter().any(|end| end.exit_seen) {
                return Err(no_exits());
            }
            Ok(Errand::End(participants))
        }
        Command::Round(RoundCommand::Release { why, .. }) => {
            if *why != ReleaseWhy::Stopped {
                return Err(no_exits());
            }
            participants.into_iter().try_for_each(own)?;
            Ok(Errand::Release)
        }
        _ => participants.into_iter().try_for_each(own).map(|()| Errand::Other),
    }
}

/// Whose acts a command is: those that it names, and the one that a registration replaces.
pub fn acting(command: &Command) -> Vec<Participant> {
    match command {
        Command::Process(ProcessCommand::Register { process: Some(process), replaces, .. }) => {
            vec![(*process, *replaces)]
        }
        command => command.participants(),
    }
}

/// Whether keys are those of the agent's run.
pub fn keys(named: &Scope, own: &Scope) -> Result<(), Problem> {
    if named == own {
        return Ok(());
    }
    let text = format!("this agent serves {own}, not {named}; ask the store itself");
    Err(Problem::refused(Code::Conflict, text))
}

/// Whether a question may be handed on: those about processes, rounds and
/// events of the agent's job.
pub fn read(read: &Read, own: &Scope) -> Result<(), Problem> {
    let job = match read {
        Read::Get { scope, .. } | Read::QueueLength { scope, .. } => return keys(scope, own),
        Read::Processes { scope, .. }
        | Read::Rounds { scope, .. }
        | Read::Held { scope, .. }
        | Read::Closed { scope, .. }
        | Read::Iteration { scope, .. }
        | Read::Plan { scope, .. } => &scope.job,
        Read::Events { job, .. } => job,
        _ => {
            return Err(Problem::refused(
                Code::InvalidRequest,
                "the agent hands on questions about processes, rounds, iterations, events and single \
                 keys, and nothing else; use a client of the store for the rest",
            ));
        }
    };
    of_job(job, own)
}

fn no_exits() -> Problem {
    let text = "a program says only that it has stopped; exits are its agent's to report";
    Problem::refused(Code::InvalidRequest, text)
}

fn of_job(job: &Name, own: &Scope) -> Result<(), Problem> {
    if *job == own.job {
        return Ok(());
    }
    let text = format!("this agent serves job {}, not job {job}; ask the store itself", own.job);
    Err(Problem::refused(Code::Conflict, text))
}

/// Checks that a program can know this cause: it may not report decisions of others.
fn own_cause(cause: &Cause) -> Result<(), Problem> {
    match cause {
        Cause::Left
        | Cause::Raised { .. }
        | Cause::Exited { .. }
        | Cause::Signaled { .. }
        | Cause::Gone
        | Cause::Unresponsive { .. } => Ok(()),
        Cause::LeaseExpired
        | Cause::LeaseRevoked
        | Cause::Superseded { .. }
        | Cause::Evicted { .. }
        | Cause::Removed { .. }
        | Cause::NotStopped { .. }
        | Cause::RunEnded => Err(Problem::refused(
            Code::InvalidRequest,
            "a program cannot end its processes for a reason that the cluster or an operator \
             decides; name left, raised, exited, signaled, gone or unresponsive",
        )),
    }
}

fn foreign_lease(named: LeaseId, own: LeaseId) -> Problem {
    let text = format!(
        "lease {named} is not that of this host's agent, which is {own}; name the lease of its welcome"
    );
    Problem::refused(Code::Conflict, text)
}

fn foreign((process, incarnation): Participant) -> Problem {
    let text = format!(
        "process {process} (incarnation {incarnation}) was not registered on this connection; \
         a program speaks for its own processes alone"
    );
    Problem::refused(Code::Conflict, text)
}

#[cfg(test)]
mod tests {
    use holdfast_api::{
        Arrival, CallId, KvOp, LeaseCommand, Nonce, ProcessEnd, Role, RunCommand, Terms,
    };

    use super::*;

    const LEASE: LeaseId = LeaseId::from_u128(7);
    const OWN: Participant = (3, 30);

    fn check(wanted: &Command) -> Result<Errand, Problem> {
        let scope = Scope { run: Some("r1".parse().unwrap()), ..Scope::default() };
        command(wanted, (LEASE, &scope), |participant| participant == OWN)
    }

    fn register(lease: LeaseId) -> Command {
        Command::Process(ProcessCommand::Register {
            lease,
            process: None,
            nonce: Nonce(1, 2),
            replaces: 0,
            takeover: false,
            role: Role::Active,
            labels: Default::default(),
            policy: Default::default(),
        })
    }

    fn end(lease: LeaseId, participants: &[Participant]) -> Command {
        end_for(lease, participants, &Cause::Left)
    }

    fn end_for(lease: LeaseId, participants: &[Participant], cause: &Cause) -> Command {
        let end = |&(process, incarnation)| ProcessEnd {
            process,
            incarnation,
            cause: cause.clone(),
            exit_seen: false,
        };
        let ends = participants.iter().map(end).collect();
        Command::Process(ProcessCommand::End { lease, ends })
    }

    fn arrive(lease: LeaseId, participants: &[Participant]) -> Command {
        let arrival = |&(process, incarnation)| Arrival {
            process,
            incarnation,
            call: 1,
            ack: 0,
            payload: "".into(),
            holds: 0,
        };
        let arrivals = participants.iter().map(arrival).collect();
        let terms = Box::new(Terms::default());
        Command::Round(RoundCommand::Arrive { lease, round: "r".into(), terms, arrivals })
    }

    fn calls((process, incarnation): Participant) -> Vec<CallId> {
        vec![CallId { process, incarnation, call: 1 }]
    }

    #[test]
    fn a_connection_speaks_for_its_own_processes() {
        let new = Errand::Register { process: None, takeover: false };
        assert_eq!(check(&register(LEASE)), Ok(new));
        assert_eq!(check(&end(LEASE, &[OWN])), Ok(Errand::End(vec![OWN])));
        assert_eq!(check(&arrive(LEASE, &[OWN])), Ok(Errand::Other));
        let withdraw = RoundCommand::Withdraw { lease: LEASE, calls: calls(OWN) };
        assert_eq!(check(&Command::Round(withdraw)), Ok(Errand::Other));
    }

    #[test]
    fn a_registration_is_an_act_of_the_one_that_it_replaces() {
        assert_eq!(acting(&register(LEASE)), []);
        let again = Command::Process(ProcessCommand::Register {
            lease: LEASE,
            process: Some(OWN.0),
            nonce: Nonce(1, 3),
            replaces: OWN.1,
            takeover: false,
            role: Role::Active,
            labels: Default::default(),
            policy: Default::default(),
        });
        assert_eq!(acting(&again), [OWN]);
        assert_eq!(acting(&end(LEASE, &[OWN])), [OWN]);
    }

    #[test]
    fn what_is_somebody_elses_is_refused_by_name() {
        let scope = Scope::default();
        for (bad, words) in [
            (register(8.into()), "lease 8 is not that of this host's agent, which is 7"),
            (end(8.into(), &[OWN]), "lease 8"),
            (arrive(8.into(), &[OWN]), "lease 8"),
            (end(LEASE, &[OWN, (4, 40)]), "process 4 (incarnation 40) was not registered on this"),
            (arrive(LEASE, &[OWN, (3, 31)]), "process 3 (incarnation 31)"),
            (
                Command::Round(RoundCommand::Withdraw { lease: LEASE, calls: calls((9, 1)) }),
                "process 9",
            ),
            (Command::Lease(LeaseCommand::Revoke { lease: LEASE }), "and nothing else"),
            (
                Command::Run(RunCommand::Open {
                    job: scope.job.clone(),
                    run: None,
                    takeover: false,
                }),
                "and nothing else",
            ),
            (Command::Kv { scope, op: KvOp::Delete { key: "k".into() } }, "ask the store itself"),
        ] {
            let refused = check(&bad).unwrap_err();
            assert!(refused.message.contains(words), "{bad:?}: {refused}");
        }
    }

    #[test]
    fn a_program_tells_what_it_knows_and_not_what_others_decide() {
        for known in [
            Cause::Left,
            Cause::Raised { error: "OSError: disk full".to_owned() },
            Cause::Exited { code: 3 },
            Cause::Signaled { signal: 9 },
            Cause::Gone,
            Cause::Unresponsive { silent_ms: 1 },
        ] {
            let wanted = end_for(LEASE, &[OWN], &known);
            assert_eq!(check(&wanted), Ok(Errand::End(vec![OWN])), "{known:?}");
        }
        for forged in [
            Cause::LeaseExpired,
            Cause::LeaseRevoked,
            Cause::Superseded { by: 31 },
            Cause::Evicted { round: "r".into(), generation: 1 },
            Cause::Removed { reason: "an operator's words".to_owned() },
            Cause::RunEnded,
        ] {
            let refused = check(&end_for(LEASE, &[OWN], &forged)).unwrap_err();
            assert_eq!(refused.code, Code::InvalidRequest, "{forged:?}: {refused}");
            assert!(refused.message.contains("name left, raised,"), "{forged:?}: {refused}");
        }
    }

    #[test]
    fn questions_are_those_about_the_job() {
        let own = Scope { job: "train".parse().unwrap(), run: Some("r1".parse().unwrap()) };
        let other = Scope::default();
        assert_eq!(read(&Read::rounds(own.clone()), &own), Ok(()));
        assert_eq!(read(&Read::Events { job: own.job.clone(), after: 0, limit: 0 }, &own), Ok(()));
        let refused = read(&Read::rounds(other.clone()), &own).unwrap_err();
        assert!(refused.message.contains("serves job train, not job default"), "{refused}");
        assert_eq!(read(&Read::Get { scope: own.clone(), key: "k".into() }, &own), Ok(()));
        let refused = read(&Read::Get { scope: other, key: "k".into() }, &own).unwrap_err();
        assert!(refused.message.contains("ask the store itself"), "{refused}");
        for bad in [Read::Jobs, Read::Feed { lease: LEASE, since: 0, have: Vec::new() }] {
            assert!(read(&bad, &own).unwrap_err().message.contains("and nothing else"), "{bad:?}");
        }
    }
}
