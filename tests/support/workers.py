"""Work of workers in tests of their parent, in place of a training."""

import os
import signal
import time
from typing import Any

from lockstep.launch.worker import Job
from lockstep.system.signals import SignalFlag

PROGRAM = """
import sys
from pathlib import Path
from lockstep.launch import parent, worker
from lockstep.runs.folder import RunFolder
from lockstep.system import processes
from tests.support import workers
processes.SERVER = "tests.support.light_server"
worker.take_job = workers.{work}
job = worker.Job(worker.train, RunFolder(Path()), {{}})
sys.exit(parent.run_workers(job, 1, is_parallel=False))
"""


def listens(job: Job, *_: Any, **__: Any) -> int:
    """Print the first signal other than SIGTERM, which ends this with 75."""
    flag = SignalFlag(has_parent=True)
    flag.install()
    is_printed = False
    try:
        print(os.getpid(), flush=True)
        while signal.SIGTERM not in flag.numbers:
            if flag.received and not is_printed:
                is_printed = True
                print(signal.Signals(flag.received).name, flush=True)
            time.sleep(0.01)
    except KeyboardInterrupt:
        return 130
    return 75


def ignores(job: Job, *_: Any, **__: Any) -> int:
    """Keep all signals blocked, and never end."""
    print(os.getpid(), flush=True)
    time.sleep(3600)
    return 0
