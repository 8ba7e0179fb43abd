//! Flags of every run: which clients work for how long, and where the report goes.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use holdfast_chaos::nemesis::group::Group;
use holdfast_chaos::run::plan::Plan;
use holdfast_chaos::run::{Description, LeftOut};

/// Default duration of a run.
const DURATION_DEFAULT: Duration = Duration::from_secs(60);
/// The program of a node.
const STORE: &str = "holdfast-store";
/// Most clients of one workload.
const CLIENTS_MAX: usize = 64;

/// Flags of every run.
#[derive(Debug, clap::Args)]
pub(crate) struct Load {
    /// Run these workloads, or all (see `list`).
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "all")]
    pub(super) workload: Vec<String>,
    /// Go on for so long, such as 60s or 5min, and until each fault that was asked
    /// for by name was injected once [default: 60s].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "ops")]
    duration: Option<Duration>,
    /// Go on until so many operations were made.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) ops: Option<u64>,
    /// End it with the first violation: what was recorded is judged every two seconds.
    #[arg(long)]
    until_failure: bool,
    /// Draw all random choices from this number, to repeat a run [default: a random one].
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Write the history, report.json and report.html into this folder, which must
    /// be new or empty [default: chaos-report-SEED].
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Start so many clients for each workload; every other one is bound to one node
    /// where the workload allows it.
    #[arg(long, value_name = "N", default_value_t = 4)]
    clients: usize,
    /// Make at most so many operations a second, all clients together [default: 300,
    /// on an existing cluster 100].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
}

impl Load {
    /// A plan of what they say.
    pub(super) fn plan(&self, rate_default: u32) -> anyhow::Result<Plan> {
        if self.clients == 0 || self.clients > CLIENTS_MAX {
            bail!("--clients is 1 to {CLIENTS_MAX}");
        }
        let seed = self.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
        let report = self.report.clone();
        Ok(Plan {
            duration: match (self.duration, self.ops) {
                (None, None) => Some(DURATION_DEFAULT),
                (duration, _) => duration,
            },
            operations: self.ops,
            until_failure: self.until_failure,
            seed,
            report: report.unwrap_or_else(|| PathBuf::from(format!("chaos-report-{seed}"))),
            clients: self.clients,
            rate: self.rate.unwrap_or(rate_default),
            ..Plan::default()
        })
    }
}

/// The flags that make the same load again.
pub(super) fn flags(plan: &Plan) -> String {
    format!(
        "--workload {} {}{} --seed {} --clients {} --rate {}",
        plan.workload_names().join(","),
        plan.end_flag(),
        if plan.until_failure { " --until-failure" } else { "" },
        plan.seed,
        plan.clients,
        plan.rate
    )
}

/// The folder must not hold an older run.
pub(super) fn prepare(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    if entries.next().is_some() {
        bail!("{} is not empty; name a new folder with --report", folder.display());
    }
    Ok(())
}

/// Says what is not done, and why.
pub(super) fn say_left_out(plan: &Plan) {
    for LeftOut { name, why } in &plan.left_out {
        eprintln!("left out: {name}: {why}");
    }
}

/// A run that is to be made, by this command.
pub(super) fn describe(plan: &Plan, command: String) -> Description {
    let names = |is: fn(&&(Group, bool)) -> bool| {
        plan.nemeses.iter().filter(is).map(|(group, _)| group.to_string()).collect()
    };
    let (commit, commit_doubts) = commit(plan).unzip();
    Description {
        seed: plan.seed,
        command,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit,
        commit_doubts: commit_doubts.unwrap_or_default(),
        workloads: plan.workloads.iter().map(|it| it.as_str().to_owned()).collect(),
        nemeses: names(|(_, by_name)| *by_name),
        planned: names(|_| true),
        left_out: plan.left_out.clone(),
        ..Description::default()
    }
}

/// The commit of the checkout that the binaries lie in, if they lie in one, and why they may be of
/// another state.
fn commit(plan: &Plan) -> Option<(String, Vec<String>)> {
    let own = std::env::current_exe().ok()?;
    let folder = plan.binaries.as_deref().or(own.parent())?;
    let git = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        let output = command.arg("-C").arg(folder).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let head = git(&["show", "--no-patch", "--format=%H %ct", "HEAD"])?;
    let (commit, seconds) = head.split_once(' ')?;
    let committed = UNIX_EPOCH + Duration::from_secs(seconds.parse().ok()?);
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
    let is_clean = changed.is_some_and(|changed| changed.is_empty());
    let built = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    let built = [built(&own), built(&folder.join(STORE))].into_iter().flatten().min();
    Some((commit.to_owned(), doubts(is_clean, built, committed)))
}

/// Why programs of which the first was built at that time may not be those of a commit.
fn doubts(is_clean: bool, built: Option<SystemTime>, committed: SystemTime) -> Vec<String> {
    let changed = (!is_clean).then_some("the checkout has changes that are not committed");
    let is_older = built.is_some_and(|built| built < committed);
    let older = is_older.then_some("the programs were built before that commit was made");
    changed.into_iter().chain(older).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_another_state_than_the_commit_are_doubted() {
        let committed = UNIX_EPOCH + Duration::from_secs(100);
        let (before, after) = (committed - Duration::from_secs(1), committed);
        assert_eq!(doubts(true, Some(after), committed), [""; 0]);
        assert!(doubts(false, Some(after), committed)[0].contains("not committed"));
        assert!(doubts(true, Some(before), committed)[0].contains("built before"));
        assert_eq!(doubts(false, Some(before), committed).len(), 2);
    }
}
