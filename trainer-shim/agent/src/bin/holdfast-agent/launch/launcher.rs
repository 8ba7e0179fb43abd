//! The launcher of this process, by its own variables: jobs, runs and ranks need
//! no flags then.

use std::ffi::OsString;

use holdfast_api::Name;

use super::mpi::Mpi;
use super::slurm::Slurm;
use super::torchrun;

/// torchrun's name for a run without an id.
const NO_ID: &str = "none";

/// Launcher that started this process, or that it starts, with an identity of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    slurm: Option<Slurm>,
    mpi: Option<Mpi>,
    /// The id of torchrun's rendezvous, around this process or in its command.
    torchrun: Option<String>,
    /// The command is torchrun, which gives its workers ranks and is none itself.
    starts_ranks: bool,
}

/// A job that a launcher's identity names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Name of the job.
    pub job: Name,
    /// After what, in words.
    pub after: &'static str,
}

impl Launcher {
    /// Reads it off the command and the environment.
    pub fn read(command: &[OsString], get: impl Fn(&str) -> Option<String>) -> Launcher {
        let slurm = Slurm::read(&get);
        let mpi = Mpi::read(&get, slurm.as_ref().and_then(Slurm::step_tasks));
        let of_command = |torchrun: torchrun::Torchrun<'_>| {
            torchrun.value("rdzv-id").or_else(|| get("PET_RDZV_ID"))
        };
        let found = torchrun::find(command);
        let starts_ranks = found.is_some();
        let id = found.and_then(of_command);
        let id = id.or_else(|| get("TORCHELASTIC_RUN_ID"));
        let torchrun = id.filter(|id| !id.is_empty() && id != NO_ID);
        // mpirun inside a step: the step is that of its own daemons, and the job is its own.
        let slurm = if mpi.is_some() { slurm.map(Slurm::without_step) } else { slurm };
        Launcher { slurm, mpi, torchrun, starts_ranks }
    }

    /// Default for the job: torchrun's id, which its user chose, before the numbers of the others.
    pub fn job(&self) -> Option<Named> {
        let named = |job: Option<Name>, after| job.map(|job| Named { job, after });
        let id = self.torchrun.as_ref().and_then(|id| id.parse().ok());
        named(id, "torchrun's rendezvous id")
            .or_else(|| named(self.mpi.as_ref()?.job(), "the PMIx namespace of its mpirun"))
            .or_else(|| {
                let slurm = self.slurm.as_ref()?;
                let after = if slurm.is_step() { "its Slurm step" } else { "its Slurm job" };
                named(slurm.job(), after)
            })
    }

    /// An id of torchrun that cannot name a job.
    pub fn unusable_id(&self) -> Option<&str> {
        self.torchrun.as_deref().filter(|id| id.parse::<Name>().is_err())
    }

    /// Default for the run.
    pub fn run(&self) -> Option<Name> {
        self.slurm.as_ref().and_then(Slurm::run)
    }

    /// Whether this is a task of a Slurm step.
    pub fn is_slurm_step(&self) -> bool {
        self.slurm.as_ref().is_some_and(Slurm::is_step)
    }

    /// One of `env://`'s variables, under `mpirun`.
    pub fn of_mpi(&self, name: &str) -> Option<String> {
        let ranks = self.mpi.as_ref()?.ranks();
        ranks.into_iter().find(|(other, _)| *other == name).map(|(_, value)| value.to_owned())
    }

    /// Whether the command gives ranks to others, and has none itself.
    pub fn starts_ranks(&self) -> bool {
        self.starts_ranks
    }

    /// `env://`'s variables for the command, as far as its launcher gives them.
    pub fn ranks(&self) -> Vec<(&'static str, &str)> {
        match (&self.mpi, &self.slurm) {
            _ if self.starts_ranks => Vec::new(),
            (Some(mpi), _) => mpi.ranks(),
            (None, Some(slurm)) => slurm.ranks(),
            (None, None) => Vec::new(),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A launcher as this command meets it among these variables.
    pub fn launcher(command: &str, variables: &str) -> Launcher {
        let command: Vec<OsString> = command.split_whitespace().map(OsString::from).collect();
        Launcher::read(&command, |name| {
            let mut all = variables.split_whitespace().filter_map(|one| one.split_once('='));
            all.find(|(other, _)| *other == name).map(|(_, value)| value.to_owned())
        })
    }

    const STEP: &str = "SLURM_JOB_ID=812 SLURM_STEP_ID=2 SLURM_PROCID=11 SLURM_NTASKS=16 \
                        SLURM_LOCALID=3";
    const MPIRUN: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=8 PMIX_NAMESPACE=77";

    #[test]
    fn each_launcher_names_its_job() {
        for (command, variables, expected) in [
            ("python train.py", "", None),
            ("python train.py", STEP, Some("slurm-812.2")),
            ("python train.py", "SLURM_JOB_ID=812 SLURM_NTASKS=16", Some("slurm-812")),
            ("python train.py", MPIRUN, Some("mpi-77")),
            ("python train.py", "PMI_RANK=1 PMI_SIZE=8", None),
            ("python train.py", &format!("{STEP} PMI_RANK=1 PMI_SIZE=8"), Some("slurm-812")),
            ("torchrun --rdzv-id=seven train.py", "", Some("seven")),
            ("torchrun --rdzv_id seven train.py", STEP, Some("seven")),
            ("torchrun train.py", "PET_RDZV_ID=seven", Some("seven")),
            ("python train.py", "PET_RDZV_ID=seven", None),
            ("torchrun --rdzv-id=none train.py", "", None),
            ("torchrun --rdzv-id=a/b train.py", "", None),
            ("python train.py", "TORCHELASTIC_RUN_ID=seven RANK=0 WORLD_SIZE=2", Some("seven")),
            ("python train.py", "TORCHELASTIC_RUN_ID=none", None),
        ] {
            let named = launcher(command, variables).job();
            let named = named.as_ref().map(|named| named.job.as_str());
            assert_eq!(named, expected, "{variables} {command}");
        }
        assert_eq!(launcher("torchrun --rdzv-id=a/b x", "").unusable_id(), Some("a/b"));
    }

    #[test]
    fn torchrun_gets_no_rank_of_the_task_that_starts_it() {
        for variables in [STEP, MPIRUN] {
            assert!(!launcher("python train.py", variables).ranks().is_empty());
            let torchrun = launcher("torchrun --nnodes=2 train.py", variables);
            assert!(torchrun.ranks().is_empty() && torchrun.starts_ranks());
        }
    }

    #[test]
    fn mpirun_inside_a_slurm_step_is_not_the_step_of_its_daemons() {
        let launcher = launcher("python train.py", &format!("{STEP} {MPIRUN}"));
        assert_eq!(launcher.ranks()[0], ("RANK", "1"));
        assert_eq!((launcher.run(), launcher.is_slurm_step()), (None, false));
    }
}
