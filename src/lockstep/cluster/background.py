"""A run is trained in the background of this machine: a process of its own session, which no terminal can end."""

import fcntl
import os
import secrets
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lockstep.cluster.slurm import exports, interpreter
from lockstep.config.errors import ConfigError
from lockstep.config.sections import Cluster
from lockstep.runs.folder import RunFolder


def script(cluster: Cluster, folder: RunFolder, task: str, code: Path) -> str:
    """The shell lines of the process."""
    prefix, python = interpreter(cluster)
    command = f"exec {prefix}{python} -u -m lockstep.cluster.job {shlex.quote(str(folder.path))} {task}"
    return "\n".join([*cluster.setup, *exports(code), command])


def start(
    cluster: Cluster, folders: Sequence[RunFolder], *, task: str, code: Path, cwd: Path
) -> list[tuple[str, Path, int]]:
    """Start the process of one run. Returns its id, log and number."""
    if len(folders) != 1:
        message = f"cluster=local trains one run, not {len(folders)}: they would take each other's cores and GPUs"
        raise ConfigError([message])
    folder = folders[0]
    name = f"local-{secrets.token_hex(3)}"
    folder.job_files.mkdir(exist_ok=True)
    log = folder.job_files / f"{name}_0_log.out"
    lock = os.open(folder.job_lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the process shares it, to its end
        with open(log, "ab") as file:  # signals are blocked until the run takes them
            process = subprocess.Popen(
                ["bash", "-c", script(cluster, folder, task, code)],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[lock],
            )
    except BlockingIOError as error:
        raise ConfigError([f"{folder.path} has a job in the background already: cancel it first"]) from error
    finally:
        os.close(lock)
    return [(name, log, process.pid)]
