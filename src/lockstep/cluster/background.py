"""Jobs in the background of this machine.

A job is a process in its own session, which outlives the terminal.
"""

import fcntl
import os
import secrets
import shlex
import subprocess
from pathlib import Path

from lockstep.cluster.slurm import exports, interpreter
from lockstep.config.errors import config_error
from lockstep.config.schema.sections import Cluster
from lockstep.runs.files import open_to_append
from lockstep.runs.folder import RunFolder


def script(cluster: Cluster, folder: RunFolder, code: Path, job_id: str) -> str:
    prefix, python = interpreter(cluster)
    return "\n".join(
        [
            *cluster.setup,
            *exports(code),
            f"exec {prefix}{python} -u -m lockstep.cluster.job "
            f"{shlex.quote(str(folder.path))} {job_id}",
        ]
    )


def new_id() -> str:
    return f"local-{secrets.token_hex(3)}"


def start(cluster: Cluster, folder: RunFolder, *, code: Path, cwd: Path) -> tuple[str, Path, int]:
    """Start the process of a run, and return its id, log and pid.

    Its signals are blocked until it can handle them. Raises ConfigError if the run already has a
    job.
    """
    job_id = new_id()
    folder.job_files.mkdir(exist_ok=True)
    log = folder.job_files / f"{job_id}_0_log.out"
    lock = os.open(folder.job_lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # The lock is shared with the process until it ends.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open_to_append(log) as file:
            process = subprocess.Popen(
                ["bash", "-c", script(cluster, folder, code, job_id)],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[lock],
            )
    except BlockingIOError as error:
        raise config_error(
            "busy", str(folder.path), "already has a job in the background", "cancel it first"
        ) from error
    finally:
        os.close(lock)
    return job_id, log, process.pid
