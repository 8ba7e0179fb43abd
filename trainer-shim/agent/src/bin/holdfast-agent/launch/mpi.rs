//! Variables of `mpirun` for this process.

use holdfast_api::Name;

/// A process that `mpirun` started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mpi {
    /// Which `mpirun`: its PMIx namespace, in letters of a name. MPICH's has none.
    namespace: Option<Name>,
    rank: String,
    size: String,
    local_rank: Option<String>,
}

/// Rank, size and rank on this host: Open MPI's names first, then those of MPICH
/// and Intel MPI, which Slurm's PMI-2 sets as well.
const NAMES: [[&str; 3]; 2] = [
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
];

impl Mpi {
    /// Reads the environment; `None` outside of `mpirun`. In a Slurm step of `step_tasks` tasks
    /// Open MPI's own names count: `mpirun` leaves the variables of the step in which its daemons
    /// run. A step may set those of MPICH, too; where their number differs, they are of an
    /// `mpirun`.
    pub fn read(get: impl Fn(&str) -> Option<String>, step_tasks: Option<&str>) -> Option<Mpi> {
        let number = |name: &str| {
            let text = get(name)?;
            (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(text)
        };
        let [of_open_mpi, of_mpich] = NAMES.map(|[rank, size, local_rank]| {
            Some((number(rank)?, number(size)?, number(local_rank)))
        });
        let of_mpich = of_mpich.filter(|(_, size, _)| step_tasks != Some(&**size));
        let (rank, size, local_rank) = of_open_mpi.or(of_mpich)?;
        let namespace = get("PMIX_NAMESPACE").and_then(|text| {
            // As in "prterun-host-1234@1".
            format!("mpi-{}", text.replace('@', ".")).parse().ok()
        });
        Some(Mpi { namespace, rank, size, local_rank })
    }

    /// The job of everything that one `mpirun` starts.
    pub fn job(&self) -> Option<Name> {
        self.namespace.clone()
    }

    /// `env://`'s variables for this process.
    pub fn ranks(&self) -> Vec<(&'static str, &str)> {
        let mut ranks = vec![("RANK", &*self.rank), ("WORLD_SIZE", &*self.size)];
        ranks.extend(self.local_rank.as_deref().map(|rank| ("LOCAL_RANK", rank)));
        ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN_MPI: [(&str, &str); 4] = [
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "8"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("PMIX_NAMESPACE", "2943287297"),
    ];
    const MPICH: [(&str, &str); 3] =
        [("PMI_RANK", "3"), ("PMI_SIZE", "8"), ("MPI_LOCALRANKID", "1")];
    const RANKS: [(&str, &str); 3] = [("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")];

    fn read(variables: &[(&str, &str)], step_tasks: Option<&str>) -> Option<Mpi> {
        let get = |name: &str| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Mpi::read(get, step_tasks)
    }

    #[test]
    fn a_process_of_mpirun_knows_its_job_and_rank() {
        let mpi = read(&OPEN_MPI, Some("8")).unwrap();
        assert_eq!((mpi.job().unwrap().as_str(), mpi.ranks()), ("mpi-2943287297", RANKS.to_vec()));
        let newer = [&OPEN_MPI[..3], &[("PMIX_NAMESPACE", "prterun-node0-1234@1")]].concat();
        assert_eq!(read(&newer, None).unwrap().job().unwrap().as_str(), "mpi-prterun-node0-1234.1");
        let mpich = read(&MPICH, None).unwrap();
        assert_eq!((mpich.job(), mpich.ranks()), (None, RANKS.to_vec()));
    }

    #[test]
    fn what_slurm_sets_and_what_is_no_number_is_not_from_mpirun() {
        assert_eq!(read(&MPICH, Some("8")), None);
        assert!(read(&MPICH, Some("2")).is_some(), "the step is that of its daemons");
        assert_eq!(read(&OPEN_MPI[1..], None), None);
        assert_eq!(read(&[("PMI_RANK", "-1"), ("PMI_SIZE", "8")], None), None);
        let long = "x".repeat(200);
        let odd = [&OPEN_MPI[..3], &[("PMIX_NAMESPACE", &*long)]].concat();
        assert_eq!(read(&odd, None).unwrap().job(), None);
    }
}
