"""Stands in for srun on one host of a step: starts its tasks with Slurm's variables.

Usage: srun.py [--nodes=N --node=ID] [--step-id=ID] [--signal=task|all] --ntasks-per-node=N
               --job-id=ID COMMAND…

Of a step on several nodes one is run on each of them, as slurmd would be. Ends when all its tasks
have, with the worst of their exit codes. SIGUSR1 and SIGUSR2 are sent on as slurmstepd does it: to
the tasks alone, or to every process of the step (SignalChildrenProcesses=yes, or ProctrackType
linuxproc). Those that a task has started get them well before the task.
"""
import argparse
import os
import pathlib
import signal
import subprocess
import sys
import time

# Between the signal for what a task has started, and that for the task.
PAUSE_SECONDS = 0.5


def below(root: int) -> list[int]:
    """The processes that this one has started, and those that they have."""
    parents: dict[int, list[int]] = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        parents.setdefault(parent, []).append(int(folder.name))
    found = list(parents.get(root, []))
    for process in found:
        found.extend(parents.get(process, []))
    return found


def send(number: int, processes: list[int]) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--node", type=int, default=0)
    parser.add_argument("--signal", choices=["task", "all"], default="task")
    parser.add_argument("--ntasks-per-node", type=int, required=True)
    parser.add_argument("--job-id", required=True)
    parser.add_argument("--step-id", default="0")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    tasks = []
    for task in range(given.ntasks_per_node):
        variables = {
            "SLURM_JOB_ID": given.job_id,
            "SLURM_STEP_ID": given.step_id,
            "SLURM_NNODES": str(given.nodes),
            "SLURM_NTASKS": str(given.nodes * given.ntasks_per_node),
            "SLURM_PROCID": str(given.node * given.ntasks_per_node + task),
            "SLURM_LOCALID": str(task),
            "SLURM_NODEID": str(given.node),
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        tasks.append(subprocess.Popen(given.command, env=environment | variables))

    def signalled(number: int, _frame: object) -> None:
        for task in tasks:
            if given.signal == "all":
                send(number, below(task.pid))
                time.sleep(PAUSE_SECONDS)
            send(number, [task.pid])
        print(f"sent {signal.Signals(number).name}", flush=True)

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signalled)
    return max(task.wait() for task in tasks)


if __name__ == "__main__":
    sys.exit(main())
