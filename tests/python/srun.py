"""Stands in for srun on one host of a step: starts its tasks with Slurm's variables.

Usage: srun.py [--nodes=N --node=ID] [--step-id=ID] --ntasks-per-node=N --job-id=ID COMMAND…

Of a step on several nodes one is run on each of them, as slurmd would be. Ends when all its tasks
have, with the worst of their exit codes.
"""
import argparse
import os
import subprocess
import sys


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--node", type=int, default=0)
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
    return max(task.wait() for task in tasks)


if __name__ == "__main__":
    sys.exit(main())
