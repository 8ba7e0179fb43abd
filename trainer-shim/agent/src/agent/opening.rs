//! The run that an agent serves: opened, or joined.

use std::time::Duration;

use holdfast_api::{
    AgentStatus, Agents, Code, Command, LeaseCommand, LeaseId, Name, Refusal, RunChoice, RunHeld,
    Scope, routes,
};
use holdfast_client::{Client, Deadline, fetch};
use holdfast_trainer_shim::{HostOptions, Lease, Met};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::{Error, Options};
use crate::door::process;
use crate::outage;

/// How often to ask again for a run whose holder may be gone.
const ASK_AGAIN_INTERVAL: Duration = Duration::from_millis(500);
/// Longest time to wait until the lease of a silent holder ends.
const SILENT_HOLDER_TIME_MAX: Duration = Duration::from_secs(10);
/// Time limit for finding out which clients are connected in a held run.
const LOOK_TIME_MAX: Duration = Duration::from_secs(1);

/// Which run an agent serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// The one that is chosen, opened if need be.
    Chosen(RunChoice),
    /// The held run, on a host whose last agent was killed: its holders have to show that they are
    /// alive. A new run if none does.
    AfterKilled,
    /// The run of this name if it is open, and no other: for an agent that
    /// replaces another. Its run may have ended or been deleted since, and
    /// opening it would end the run after it.
    Joined {
        /// Name of the run, unique within its job.
        run: Name,
        /// Lease of the agent before, which is no longer renewed.
        lease: Option<LeaseId>,
    },
}

/// Opens or joins the run; answers how it was met, and the lease in it.
pub(super) async fn run(
    client: &Client,
    options: &Options,
    of_lease: &process::Options,
) -> Result<(Met, Lease), Error> {
    let of_lease = HostOptions { patience: options.connect_deadline, ..of_lease.of_lease() };
    let job = options.job.clone();
    let choice = match &options.run {
        Wanted::Chosen(choice) => Some(choice.clone()),
        Wanted::AfterKilled => None,
        Wanted::Joined { run, lease } => {
            return again(client, options, of_lease, run, *lease).await;
        }
    };
    let (lease, met) = match choice {
        Some(choice) => join(client, options, &of_lease, choice).await?,
        None => join_after_killed(client, options, &of_lease).await?,
    };
    let run = &met.run;
    match met.others {
        _ if met.opened => info!("run {run} of job {job} is new"),
        0 => warn!(
            "joined run {run} of job {job}, which was open and has no other agent: the keys that \
             are in it stay; a launch that is to meet none says `--run new`"
        ),
        1 => info!("joined run {run} of job {job}; 1 other agent is in it"),
        others => info!("joined run {run} of job {job}; {others} other agents are in it"),
    }
    if let Some(ended) = &met.ended {
        info!("this ended run {ended} of job {job}: its agents and clients can no longer write");
    }
    Ok((met, lease))
}

/// Joins the chosen run. Before its next renewal is due, a holder that was just
/// killed looks like a live one: the holder gets that time, and is waited for
/// while it is silent.
async fn join(
    client: &Client,
    options: &Options,
    of_lease: &HostOptions,
    choice: RunChoice,
) -> Result<(Lease, Met), Error> {
    let (job, takeover) = (&options.job, options.takeover);
    let (mut refused_at, mut heard_ms) = (None, None);
    loop {
        let of_lease = of_lease.clone();
        let joining = Lease::join(client.clone(), job.clone(), choice.clone(), takeover, of_lease);
        let error = match patiently(client, options, joining).await {
            Ok(joined) => return Ok(joined),
            Err(error) => error,
        };
        let Some(held) = held(&error) else { return Err(not_joined(options, error).await) };
        let waited = refused_at.get_or_insert_with(Instant::now).elapsed();
        let renewed = heard_ms.replace(held.heard_ms).is_some_and(|before| held.heard_ms < before);
        let patience = (options.lease_ttl * 2).min(SILENT_HOLDER_TIME_MAX);
        if renewed || waited >= patience {
            return Err(not_joined(options, error).await);
        }
        if waited < ASK_AGAIN_INTERVAL {
            info!(
                "job {job} is in use: {held}; checking for {} s at most whether they are still there",
                patience.as_secs()
            );
        }
        sleep(ASK_AGAIN_INTERVAL).await;
    }
}

/// Joins the held run if one of its holders renews its lease from now on. Leases of agents that
/// were killed are only waited for: their launch is over, and a program that entered its run would
/// read its keys.
async fn join_after_killed(
    client: &Client,
    options: &Options,
    of_lease: &HostOptions,
) -> Result<(Lease, Met), Error> {
    let job = &options.job;
    let began = Instant::now();
    let patience = options.lease_ttl.saturating_add(SILENT_HOLDER_TIME_MAX);
    let mut before: Option<RunHeld> = None;
    loop {
        let of_lease = of_lease.clone();
        // Not opened as long as any host holds the other one.
        let joining = Lease::join(client.clone(), job.clone(), RunChoice::New, false, of_lease);
        let error = match patiently(client, options, joining).await {
            Ok(joined) => return Ok(joined),
            Err(error) => error,
        };
        let Some(held) = held(&error) else { return Err(not_joined(options, error).await) };
        let participants =
            |before: &RunHeld| held.run != before.run || held.heard_ms < before.heard_ms;
        if before.as_ref().is_some_and(participants) || began.elapsed() >= patience {
            break;
        }
        if before.replace(held.clone()).is_none() {
            info!(
                "the previous agent of this job on this host was killed; checking for {} s at most \
                 whether others still hold its run {}",
                patience.as_secs(),
                held.run
            );
        }
        sleep(ASK_AGAIN_INTERVAL).await;
    }
    join(client, options, of_lease, RunChoice::Held).await
}

/// Holders of the job's open run, if that is why the run was not joined.
fn held(error: &holdfast_trainer_shim::Error) -> Option<&RunHeld> {
    let holdfast_trainer_shim::Error::Client(holdfast_client::Error::Refused(problem)) = error
    else {
        return None;
    };
    match &problem.refusal {
        Some(Refusal::RunHeld { held }) => Some(held),
        _ => None,
    }
}

/// Joins the run of the agent before, and then gives back its lease. Writes into
/// a run that is not open are always refused: only opening it by name makes it anew.
async fn again(
    client: &Client,
    options: &Options,
    of_lease: HostOptions,
    run: &Name,
    before: Option<LeaseId>,
) -> Result<(Met, Lease), Error> {
    let job = &options.job;
    let not_open = |ended| Error::NotOpen { job: job.clone(), run: run.clone(), ended };
    let scope = Scope { job: job.clone(), run: Some(run.clone()) };
    let granting = Lease::grant(client.clone(), scope, of_lease);
    let lease = patiently(client, options, granting).await.map_err(|error| match error.code() {
        Code::Fenced => not_open(true),
        Code::JobNotFound | Code::RunNotFound => not_open(false),
        _ => not_opened(options, error),
    })?;
    if let Some(before) = before {
        let revoke = Command::Lease(LeaseCommand::Revoke { lease: before });
        if let Err(error) = client.propose(revoke, Deadline::after(options.connect_deadline)).await
        {
            warn!(
                %error,
                "the lease of the previous agent was not revoked; run {run} of job {job} stays \
                 held until it expires"
            );
        }
    }
    info!("joined run {run} of job {job} again");
    Ok((Met { run: run.clone(), opened: false, ended: None, others: 0 }, lease))
}

/// Why the run was not joined, with what else is known of its holders.
async fn not_joined(options: &Options, error: holdfast_trainer_shim::Error) -> Error {
    if let Some(held) = held(&error) {
        let connected = timeout(LOOK_TIME_MAX, connected(options, held)).await;
        return Error::InUse {
            held: Box::new(held.clone()),
            connected: connected.unwrap_or_default(),
        };
    }
    match &error {
        holdfast_trainer_shim::Error::Client(holdfast_client::Error::Refused(problem)) => {
            match &problem.refusal {
                Some(refusal @ Refusal::RunOver { .. }) => {
                    Error::RunOver { refusal: Box::new(refusal.clone()) }
                }
                _ => not_opened(options, error),
            }
        }
        _ => not_opened(options, error),
    }
}

fn not_opened(options: &Options, reason: holdfast_trainer_shim::Error) -> Error {
    Error::Open { job: options.job.clone(), reason: Box::new(reason) }
}

/// Clients connected to the agents of a run, in words; empty if no node knows.
async fn connected(options: &Options, held: &RunHeld) -> String {
    let path = format!("{}?job={}&run={}", routes::AGENTS, held.job, held.run);
    let credentials = options.store.credentials();
    for address in &options.store.endpoints {
        if let Ok(answer) = fetch(address, &path, &credentials, LOOK_TIME_MAX).await
            && let Ok(agents) = serde_json::from_slice::<Agents>(&answer.body)
        {
            return in_words(&agents.agents);
        }
    }
    String::new()
}

fn in_words(agents: &[AgentStatus]) -> String {
    let clients = agents.iter().flat_map(|agent| &agent.report.clients);
    let mut ranks: Vec<u64> = clients.filter_map(|client| client.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let processes = agents.iter().map(|agent| &agent.report);
    let processes = processes
        .map(|report| {
            let named = (report.clients.len() + report.processes.len()) as u64;
            report.clients_left_out.saturating_add(named)
        })
        .fold(0, u64::saturating_add);
    match (ranks.len(), processes) {
        (0, 0) => "no trainer is connected".to_owned(),
        (0, 1) => "1 process is connected".to_owned(),
        (0, n) => format!("{n} processes are connected"),
        (1, _) => format!("rank {} is connected", ranks[0]),
        (n, _) => format!("{n} ranks are connected, {} to {}", ranks[0], ranks[n - 1]),
    }
}

/// Says as long as it lasts that the store does not answer.
async fn patiently<T>(client: &Client, options: &Options, asking: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let most = options.connect_deadline.as_secs();
    let trying = || format!("trying for {} s of {most} s", began.elapsed().as_secs());
    outage::during(client, trying, asking).await
}

#[cfg(test)]
mod tests {
    use holdfast_api::{AgentClient, AgentProcess, AgentReport, Health};

    use super::*;
    use crate::roster;

    fn agent(clients: &[(Option<u32>, Option<u64>)]) -> AgentStatus {
        let client = |&(pid, rank): &(Option<u32>, Option<u64>)| AgentClient {
            pid,
            rank,
            from: "127.0.0.1".to_owned(),
            connections: 1,
            quiet: None,
            activity: None,
        };
        let clients = clients.iter().map(client).collect();
        let report = AgentReport { clients, ..roster::tests::report() };
        AgentStatus { report, node: 1, told_ms_ago: 0 }
    }

    #[test]
    fn ranks_count_once_and_others_where_there_is_none() {
        let rank = |pid, rank| (Some(pid), Some(rank));
        let two = [agent(&[rank(1, 0), rank(2, 1), (Some(3), None)]), agent(&[rank(4, 1)])];
        assert_eq!(in_words(&two), "2 ranks are connected, 0 to 1");
        assert_eq!(in_words(&two[1..]), "rank 1 is connected");
        assert_eq!(
            in_words(&[agent(&[(None, None), (Some(7), None)])]),
            "2 processes are connected"
        );
        assert_eq!(in_words(&[agent(&[])]), "no trainer is connected");
        let joined = |process| AgentProcess {
            process,
            incarnation: 1,
            pid: None,
            last_call: String::new(),
            called_ms_ago: 0,
            waiting: false,
            progress: None,
            silent_ms: 0,
            health: Health::default(),
            main_thread_silent_ms: None,
            activity: None,
        };
        let mut library = agent(&[]);
        library.report.processes = vec![joined(0), joined(1)];
        assert_eq!(in_words(&[library]), "2 processes are connected");
        assert_eq!(in_words(&[]), "no trainer is connected");
    }
}
