"""A job of a benchmark in a process of its own, so that nothing of one environment reaches the next.

`start` is called by the benchmark, the rest runs in the child.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from lockstep.benchmark.environments import Environment
from lockstep.launch import forking, spawn
from lockstep.runs.folder import RunFolder
from lockstep.system.process import die_with

LOG = "terminal.log"


def start(job: spawn.Job, environment: Environment) -> subprocess.Popen[bytes]:
    """The job with the workers of `environment`; what it prints goes to terminal.log in the run folder.

    An OMP_NUM_THREADS of the caller is replaced: environments are compared at all cores.
    """
    num_workers = environment.num_workers if environment.is_data_parallel else 0
    message = {
        "job": job,
        "num_workers": num_workers,
        "uses_gpus": environment.device == "gpu",
        "parent": os.getpid(),
        "sys_path": sys.path,
    }
    environ = {**os.environ, "OMP_NUM_THREADS": str(environment.num_threads)}
    log = Path(job.folder) / LOG
    return forking.start(["lockstep.benchmark.child"], environ, log=log, message=json.dumps(message))


def _work(text: str) -> int:
    message = json.loads(text)
    die_with(message["parent"])
    sys.path[:] = message["sys_path"]
    job = spawn.Job(*message["job"])
    with RunFolder(Path(job.folder)).lock():
        if message["num_workers"]:
            return spawn.run_workers(job, message["num_workers"], uses_gpus=message["uses_gpus"])
        return spawn.run_here(job, None)


if __name__ == "__main__":
    sys.exit(_work(sys.stdin.read()))
