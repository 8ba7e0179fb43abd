//! Variables of Slurm for this process's task.

use holdfast_api::Name;

/// A task of a step (`srun`), or a batch script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slurm {
    /// Two clusters give the same numbers to their jobs.
    cluster: Option<String>,
    job: String,
    /// None in the batch script itself.
    step: Option<Step>,
    restarts: String,
}

/// A task's place in its step.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    id: String,
    task: String,
    tasks: String,
    local_task: String,
}

impl Slurm {
    /// Reads the environment; none outside of Slurm.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Option<Slurm> {
        let number = |name: &str| {
            let text = get(name)?;
            (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(text)
        };
        let job = number("SLURM_JOB_ID").or_else(|| number("SLURM_JOBID"))?;
        let step = || {
            // A batch script has a task number too, and the size of a step
            // that it may never start.
            let id = number("SLURM_STEP_ID").or_else(|| number("SLURM_STEPID"))?;
            let tasks = number("SLURM_STEP_NUM_TASKS").or_else(|| number("SLURM_NTASKS"))?;
            let (task, local_task) = (number("SLURM_PROCID")?, number("SLURM_LOCALID")?);
            Some(Step { id, task, tasks, local_task })
        };
        let restarts = number("SLURM_RESTART_COUNT").unwrap_or_else(|| "0".to_owned());
        let names = |cluster: &String| format!("slurm-{cluster}-{job}").parse::<Name>().is_ok();
        let cluster = get("SLURM_CLUSTER_NAME").filter(|name| !name.is_empty()).filter(names);
        Some(Slurm { cluster, step: step(), job, restarts })
    }

    /// One run for all tasks of a step on all hosts, and another one for each
    /// time that Slurm starts the job again. A batch script, and the only task of a
    /// step, which may be a shell, have none: what they start one after the other
    /// must not meet.
    pub fn run(&self) -> Option<Name> {
        let Step { id, .. } = self.step.as_ref().filter(|step| step.tasks != "1")?;
        format!("slurm-{}.{id}.{}", self.job, self.restarts).parse().ok()
    }

    /// The job of everything in a step, or of a batch script: steps that run at the
    /// same time are launches of their own. A job that Slurm starts again goes on
    /// with the counts of its steps.
    pub fn job(&self) -> Option<Name> {
        let step = self.step.as_ref().map(|step| format!(".{}", step.id)).unwrap_or_default();
        let cluster = self.cluster.as_ref().map(|name| format!("{name}-")).unwrap_or_default();
        format!("slurm-{cluster}{}{step}", self.job).parse().ok()
    }

    /// What is left of it in a process that is no task of the step.
    pub fn without_step(self) -> Slurm {
        Slurm { step: None, ..self }
    }

    /// How many tasks its step has.
    pub fn step_tasks(&self) -> Option<&str> {
        self.step.as_ref().map(|step| &*step.tasks)
    }

    /// Whether this is a task of a step.
    pub fn is_step(&self) -> bool {
        self.step.is_some()
    }

    /// `env://`'s variables for this task.
    pub fn ranks(&self) -> Vec<(&'static str, &str)> {
        let of = |step| {
            let Step { task, tasks, local_task, .. }: &Step = step;
            vec![("RANK", &**task), ("WORLD_SIZE", tasks), ("LOCAL_RANK", local_task)]
        };
        self.step.as_ref().map(of).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Option<Slurm> {
        Slurm::read(|name| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const STEP: [(&str, &str); 5] = [
        ("SLURM_JOB_ID", "812"),
        ("SLURM_STEP_ID", "2"),
        ("SLURM_PROCID", "11"),
        ("SLURM_NTASKS", "16"),
        ("SLURM_LOCALID", "3"),
    ];

    fn step() -> Slurm {
        read(&STEP).unwrap()
    }

    #[test]
    fn a_run_is_named_after_job_step_and_restart() {
        let run = |slurm: &Slurm| slurm.run().unwrap().as_str().to_owned();
        assert_eq!(run(&step()), "slurm-812.2.0");
        assert_eq!(step().job().unwrap().as_str(), "slurm-812.2");
        let again = [&STEP[..], &[("SLURM_RESTART_COUNT", "3")]].concat();
        assert_eq!(run(&read(&again).unwrap()), "slurm-812.2.3");
        assert_eq!(step().ranks(), [("RANK", "11"), ("WORLD_SIZE", "16"), ("LOCAL_RANK", "3")]);
    }

    #[test]
    fn commands_of_the_only_task_of_a_step_are_launches_of_their_own() {
        let alone = [&STEP[..], &[("SLURM_STEP_NUM_TASKS", "1")]].concat();
        let alone = read(&alone).unwrap();
        assert_eq!((alone.run(), alone.job().unwrap().as_str()), (None, "slurm-812.2"));
    }

    #[test]
    fn jobs_of_two_clusters_have_two_names() {
        let of = |cluster: &'static str| {
            let slurm = read(&[&STEP[..], &[("SLURM_CLUSTER_NAME", cluster)]].concat()).unwrap();
            (slurm.job().unwrap().to_string(), slurm.run().unwrap().to_string())
        };
        let run = "slurm-812.2.0".to_owned();
        assert_eq!(of("gpu"), ("slurm-gpu-812.2".to_owned(), run.clone()));
        assert_eq!(of("a_b"), ("slurm-a_b-812.2".to_owned(), run.clone()));
        assert_eq!(of(""), ("slurm-812.2".to_owned(), run.clone()));
        assert_eq!(of("a/b"), ("slurm-812.2".to_owned(), run), "this cannot be in a name");
    }

    #[test]
    fn a_batch_script_is_no_rank() {
        let script = read(&[&STEP[..1], &STEP[2..]].concat()).unwrap();
        assert_eq!(script.run(), None);
        assert_eq!(script.job().unwrap().as_str(), "slurm-812");
        assert!(script.ranks().is_empty() && !script.is_step());
    }

    #[test]
    fn what_is_no_number_is_not_from_slurm() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[("SLURM_JOB_ID", "a/b")]), None);
        assert_eq!(read(&[("SLURM_JOB_ID", "")]), None);
    }
}
