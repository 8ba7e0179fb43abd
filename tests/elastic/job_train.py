"""Training that survives the loss of any rank without a restart of the others, with holdfast.Job.

    RANK=… WORLD_SIZE=… holdfast-agent run --job NAME --run RUN -- python job_train.py [--steps N] [--loading SECONDS]
        [--until FILE]

Each batch has a fixed number of shards. The live ranks share them, and their gradients are added
in the order of the shards: the weights come out the same to the last bit, with any number of ranks,
and with any of them lost on the way.
"""
import argparse
import datetime
import hashlib
import pathlib
import time

import torch
import torch.distributed as dist

import holdfast.torch

FEATURES, HIDDEN, SHARD, SHARDS = 16, 64, 8, 12
STEPS_PER_ITERATION = 10
HOLD_SECONDS = 0.2
LEARNING_RATE = 0.1
# Gloo cannot be interrupted: how long it waits for a rank that is gone and did not say so.
PATIENCE = datetime.timedelta(seconds=15)


class Training:
    """A model and how far it has come."""

    def __init__(self, steps: int, loading: float, until: pathlib.Path | None):
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
        self.parameters = list(self.model.parameters())
        self.step, self.steps, self.loading, self.until, self.loss = 0, steps, loading, until, 0.0

    def share(self) -> int:
        """The rank that is furthest sends its state to the others, which may be a step behind, or new. Answers up to
        which step to train now: not to the end if one of them does not see the file yet."""
        ranks = [torch.zeros(2, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(ranks, torch.tensor([self.step, int(self.until is None or self.until.exists())]))
        steps, to_the_end = [int(rank[0]) for rank in ranks], all(rank[1] for rank in ranks)
        self.step = max(steps)
        for parameter in self.parameters:
            dist.broadcast(parameter.data, src=steps.index(self.step))
        return min(self.step + STEPS_PER_ITERATION, self.steps if to_the_end else self.steps - 1)

    def train_step(self) -> None:
        time.sleep(self.loading)
        # A row for each shard: its loss and its gradient. All but one rank add zeros to it.
        rows = torch.zeros(SHARDS, 1 + sum(parameter.numel() for parameter in self.parameters))
        for shard in range(dist.get_rank(), SHARDS, dist.get_world_size()):
            x = torch.randn(SHARD, FEATURES, generator=torch.Generator().manual_seed(1000 * self.step + shard))
            loss = torch.nn.functional.mse_loss(self.model(x), torch.sin(x[:, :2].sum(dim=1, keepdim=True)))
            gradients = torch.autograd.grad(loss, self.parameters)
            rows[shard] = torch.cat([loss.detach().reshape(1), *[gradient.flatten() for gradient in gradients]])
        dist.all_reduce(rows)
        total = torch.zeros_like(rows[0])
        for row in rows:
            total += row / SHARDS
        loss, *gradients = total.split([1, *[parameter.numel() for parameter in self.parameters]])
        for parameter, gradient in zip(self.parameters, gradients):
            parameter.data -= LEARNING_RATE * gradient.view_as(parameter)
        self.step, self.loss = self.step + 1, loss.item()

    def digest(self) -> str:
        weights = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        return hashlib.sha256(str(weights.tolist()).encode()).hexdigest()[:16]


def train(training: Training) -> None:
    with holdfast.Job.join(members_min=1, ttl=2) as job:
        while training.step < training.steps:
            now = job.advance()                    # the same for all: who is in it, with which rank
            try:
                store = holdfast.torch.group_store(now.iteration)
                dist.init_process_group("gloo", store=store, rank=now.rank, world_size=now.world_size, timeout=PATIENCE)
                goal = training.share()
                told(now, training)
                if training.step == goal:
                    time.sleep(HOLD_SECONDS)
                while training.step < goal:
                    training.train_step()
            except RuntimeError as error:          # somebody is gone: the next iteration is without
                print(f"iteration {now.iteration} ended at step {training.step}: {str(error)[:100]!r}", flush=True)
            finally:
                if dist.is_initialized():
                    dist.destroy_process_group()


def told(now: holdfast.Iteration, training: Training) -> None:
    members = ",".join(f"{member.process}:{member.incarnation}" for member in now.members)
    print(f"iteration {now.iteration} rank {now.rank} of {now.world_size} members {members} step {training.step}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--loading", type=float, default=0.05, help="seconds that stand for preparing a batch")
    parser.add_argument("--until", type=pathlib.Path, help="a file without which the last step is not made")
    options = parser.parse_args()
    torch.set_num_threads(1)
    training = Training(options.steps, options.loading, options.until)
    train(training)
    print(f"final loss {training.loss!r} weights {training.digest()}", flush=True)


if __name__ == "__main__":
    main()
