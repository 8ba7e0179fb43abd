//! Whether a command is a whole launch by itself, or which part of one.

use std::ffi::OsString;

use super::torchrun::{self, OURS};

/// A command's part in its launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// Others belong to the launch, which other commands start.
    others: bool,
    /// As in "rank 0".
    part: Option<String>,
    /// How many ranks the launch has, if the command is one of them.
    world_size: Option<u64>,
}

impl Membership {
    /// Reads it off the command and its environment.
    pub fn of(command: &[OsString], now: impl Fn(&str) -> Option<String>) -> Membership {
        let text = |name: &str| now(name).filter(|value| !value.is_empty());
        if let Some(torchrun) = torchrun::find(command) {
            let value =
                |option: &str, variable: &str| torchrun.value(option).or_else(|| text(variable));
            let nodes = value("nnodes", "PET_NNODES");
            let rank = value("node-rank", "PET_NODE_RANK");
            let others = nodes.is_some_and(|nodes| !matches!(nodes.trim(), "1" | "1:1"))
                || rank.is_some()
                || value("rdzv-endpoint", "PET_RDZV_ENDPOINT").is_some();
            // A rendezvous that is not static gives the nodes ranks of its own. Of the variable
            // `run` leaves that of its own rendezvous alone.
            let ours = text("PET_RDZV_BACKEND").filter(|backend| backend == OURS);
            let backend = torchrun.value("rdzv-backend").or(ours);
            let is_static = backend.is_none_or(|backend| backend.trim() == "static");
            let rank = number(rank).filter(|_| is_static);
            let part = rank.map(|rank| format!("node rank {rank} of torchrun"));
            return Membership { others, part, world_size: None };
        }
        let number = |name: &str| number(text(name));
        let (rank, world) = (number("RANK"), number("WORLD_SIZE"));
        let others = rank.is_some() && world.is_some_and(|world| world > 1);
        let world_size = world.filter(|_| rank.is_some());
        Membership { others, part: rank.map(|rank| format!("rank {rank}")), world_size }
    }

    /// Whether no other command belongs to its launch.
    pub fn is_whole(&self) -> bool {
        !self.others
    }

    /// Which part of the launch the command is: there is one at a time.
    pub fn part(&self) -> Option<String> {
        self.part.clone()
    }

    /// How many ranks the launch has, if the command is one of them.
    pub fn world_size(&self) -> Option<u64> {
        self.world_size
    }
}

fn number(text: Option<String>) -> Option<u64> {
    text?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_belongs_to_others_meets_them() {
        let of = |command: &str, variables: &str| {
            let command: Vec<OsString> = command.split_whitespace().map(OsString::from).collect();
            let now = |name: &str| {
                let mut all = variables.split_whitespace().filter_map(|one| one.split_once('='));
                all.find(|(other, _)| *other == name).map(|(_, value)| value.to_owned())
            };
            let Membership { others, part, .. } = Membership::of(&command, now);
            (others, part)
        };
        let part = |part: &str| Some(part.to_owned());
        for (command, variables, expected) in [
            ("python train.py", "", (false, None)),
            ("python train.py", "RANK=0 WORLD_SIZE=1", (false, part("rank 0"))),
            ("python train.py", "RANK=3 WORLD_SIZE=4", (true, part("rank 3"))),
            ("python train.py", "WORLD_SIZE=4", (false, None)),
            ("python train.py", "RANK=x WORLD_SIZE=4", (false, None)),
            ("torchrun train.py", "RANK=3 WORLD_SIZE=4", (false, None)),
            ("torchrun --nnodes=1 train.py", "", (false, None)),
            ("torchrun --nnodes=1:1 train.py", "", (false, None)),
            ("torchrun --nnodes 2 train.py", "", (true, None)),
            ("torchrun --nnodes=1:4 train.py", "", (true, None)),
            (
                "torchrun train.py",
                "PET_NNODES=2 PET_NODE_RANK=1",
                (true, part("node rank 1 of torchrun")),
            ),
            ("torchrun --nnodes=1 train.py", "PET_NNODES=2", (false, None)),
            ("torchrun --node_rank=0 train.py", "", (true, part("node rank 0 of torchrun"))),
            ("torchrun --rdzv-endpoint=a:1 train.py", "", (true, None)),
            ("torchrun --rdzv-backend=holdfast --node-rank=0 train.py", "", (true, None)),
            ("torchrun --node-rank=0 train.py", "PET_RDZV_BACKEND=holdfast", (true, None)),
            (
                "torchrun --rdzv-backend=static --node-rank=0 train.py",
                "PET_RDZV_BACKEND=holdfast",
                (true, part("node rank 0 of torchrun")),
            ),
            (
                "torchrun --node-rank=0 train.py",
                "PET_RDZV_BACKEND=c10d",
                (true, part("node rank 0 of torchrun")),
            ),
            ("python -m torch.distributed.run --nnodes=2 train.py", "", (true, None)),
            ("torchrun train.py --nnodes=2", "", (false, None)),
        ] {
            assert_eq!(of(command, variables), expected, "{variables} {command}");
        }
    }
}
