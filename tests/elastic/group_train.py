"""DistributedDataParallel whose ranks come and go, in one process group, with holdfast.torch.ElasticGroup.

    RANK=… WORLD_SIZE=… holdfast-agent run --job NAME --run RUN -- python group_train.py [--backend gloo|nccl]
        [--steps N] [--least N] [--last-call SECONDS] [--loading SECONDS]
"""
import argparse
import hashlib
import logging
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast.torch

FEATURES, HIDDEN, BATCH = 16, 64, 24
STEPS_PER_ITERATION = 10
LEARNING_RATE = 0.1


class Training:
    """A model and how far it has come."""

    def __init__(self, options: argparse.Namespace):
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)).to(options.device)
        self.options, self.step, self.loss = options, 0, 0.0
        # Made once, while this rank is alone in the group: it stays when ranks come and go.
        self.wrap()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=0.9)

    def wrap(self) -> None:
        """Its second pass arranges gradients anew, together with all ranks: others that go on have done that before."""
        self.parallel = DistributedDataParallel(self.model)
        for _ in range(2):
            self.parallel(torch.zeros(1, FEATURES, device=self.options.device)).sum().backward()

    def share(self, group: holdfast.torch.ElasticGroup) -> None:
        """The rank that is furthest sends its state to the others, which are a step behind, or new."""
        device = self.options.device
        steps = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
        dist.all_gather(steps, torch.tensor([self.step], device=device))
        furthest = max(range(len(steps)), key=lambda rank: int(steps[rank]))
        state = [self.model.state_dict(), self.optimizer.state_dict(), self.loss] if dist.get_rank() == furthest else [None] * 3
        dist.broadcast_object_list(state, src=furthest)
        group.raise_if_revoked()
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])
        self.step, self.loss = int(steps[furthest]), state[2]

    def train_step(self, group: holdfast.torch.ElasticGroup) -> None:
        time.sleep(self.options.loading)
        generator = torch.Generator().manual_seed(1000 * self.step + dist.get_rank())
        x = torch.randn(BATCH, FEATURES, generator=generator).to(self.options.device)
        loss = torch.nn.functional.mse_loss(self.parallel(x), torch.sin(x[:, :2].sum(dim=1, keepdim=True)))
        self.optimizer.zero_grad()
        loss.backward()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        # Of a step that was aborted, nothing is kept.
        group.raise_if_revoked()
        self.optimizer.step()
        self.step, self.loss = self.step + 1, (mean / dist.get_world_size()).item()

    def digest(self) -> str:
        weights = torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])
        return hashlib.sha256(str(weights.tolist()).encode()).hexdigest()[:16]


def say(line: str) -> None:
    """With the time of this machine, which all its processes share."""
    print(f"at {time.monotonic():.4f} {line}", flush=True)


class Said(logging.Handler):
    """What the library says, with the same time."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


def train(options: argparse.Namespace) -> Training:
    with holdfast.Job.join(members_min=options.least, last_call=options.last_call) as job, \
            holdfast.torch.ElasticGroup(job, options.backend) as group:
        training = Training(options)
        for iteration in group.iterations():
            with iteration:
                if iteration.formed:
                    training.share(group)
                    if not group.reconfigures:
                        training.wrap()
                    say(f"formed generation {group.generation} rank {iteration.rank} of {iteration.world_size} "
                        f"step {training.step}")
                for _ in range(min(STEPS_PER_ITERATION, options.steps - training.step)):
                    training.train_step(group)
                    say(f"step {training.step}")
            if (why := group.revoked()) is not None:
                say(f"stopped at step {training.step}: {why}")
            elif training.step == options.steps:
                break
        # Nobody lets go before everybody is done.
        job.live_processes("done")
        return training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="nccl: on this process's first GPU")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--least", type=int, default=1, help="ranks that are enough to go on")
    parser.add_argument("--last-call", type=float, default=0.0, help="seconds in which a lost rank may come back")
    parser.add_argument("--loading", type=float, default=0.02, help="seconds that stand for preparing a batch")
    options = parser.parse_args()
    options.device = "cuda" if options.backend == "nccl" else "cpu"
    torch.set_num_threads(1)
    logging.getLogger("holdfast").addHandler(Said())
    training = train(options)
    print(f"final loss {training.loss!r} weights {training.digest()}", flush=True)


if __name__ == "__main__":
    main()
