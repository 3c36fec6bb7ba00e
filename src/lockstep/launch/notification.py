"""Reports the end of a run to `notify.command`.

A failure is one line on stderr, without the command, which may contain secrets.
"""

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from lockstep.config.errors import Error
from lockstep.config.schema.configuration import Config
from lockstep.runs.discovery import look_at, restrict_to_epoch
from lockstep.runs.files import to_json
from lockstep.runs.folder import EXIT_STOPPED, RunFolder
from lockstep.system.signals import SignalFlag
from lockstep.system.terminal import printable

STATES = {0: "finished", EXIT_STOPPED: "stopped"}


def errors(config: Config) -> Iterator[Error]:
    try:
        shlex.split(config.notify.command or "")
    except ValueError as error:
        yield Error("notify.command", "is not a valid command line", f"{error}, close the quotes")


def send(config: Config, folder: RunFolder, code: int) -> None:
    """Report that the run ended with this exit code to the command.

    A SIGTERM, which launchers send when a worker failed, does not end a report; a second Ctrl-C does.
    """
    assert config.notify.command is not None, "see config/features.py"
    sys.stdout.flush()
    with SignalFlag().handle_signals():
        try:
            _run(config.notify.command, describe(config, folder, code), config.notify.timeout_s)
        except (Exception, KeyboardInterrupt) as error:  # process border: a finished run must not fail
            text = f"lockstep: notify.command failed ({_reason(error)}); the run is not affected."
            print(text, file=sys.stderr, flush=True)


def describe(config: Config, folder: RunFolder, code: int) -> dict[str, Any]:
    facts = restrict_to_epoch(look_at(folder), folder)
    message = {
        "run": str(folder.path),
        "name": config.run_name,
        "state": STATES.get(code, "failed"),
        "reason": facts.get("reason", ""),
        "exit_code": code,
        "host": socket.gethostname(),
        **{name: facts.get(name) for name in ("epoch", "step", "best", "monitor", "metrics", "metrics_epoch")},
        "ended": datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    return message | {"summary": folder.read_summary()} if code == 0 else message


def _run(command: str, message: dict[str, Any], timeout_s: float) -> None:
    """Run the command, without a shell, with the message on standard input."""
    variables = {"RUN": message["run"], "STATE": message["state"], "REASON": message["reason"]}
    environ = os.environ | {f"LOCKSTEP_{name}": printable(value) for name, value in variables.items()}
    subprocess.run(shlex.split(command), input=to_json(message).encode(), env=environ, timeout=timeout_s, check=True)


def _reason(error: BaseException) -> str:
    """Describe an error without its text, which may contain the command."""
    match error:
        case subprocess.CalledProcessError():
            return f"exit code {error.returncode}"
        case subprocess.TimeoutExpired():
            return "timeout, notify.timeout_s"
    return getattr(error, "strerror", None) or type(error).__name__
