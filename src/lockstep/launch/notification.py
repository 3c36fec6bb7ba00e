"""Reports the end of a run to a command and by a POST to a URL, as `notify` configures.

A failure is one line on stderr, without the command or the URL, which may contain secrets.
"""

import os
import shlex
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from datetime import datetime
from typing import Any

from typing_extensions import override

from lockstep.config.schema import Config
from lockstep.runs.discovery import look_at
from lockstep.runs.files import to_json
from lockstep.runs.folder import EXIT_STOPPED, RunFolder
from lockstep.system.signals import SignalFlag
from lockstep.system.terminal import printable

STATES = {0: "finished", EXIT_STOPPED: "stopped"}


def send(config: Config, folder: RunFolder, code: int) -> None:
    """Report that the run ended with this exit code, to the command, the URL, both or neither.

    A SIGTERM, which launchers send when a worker failed, does not end a report; a second Ctrl-C does.
    """
    sys.stdout.flush()
    with SignalFlag().installed():
        for key, report in (("command", _run), ("url", _post)):
            if (target := getattr(config.notify, key)) is not None:
                try:
                    report(target, describe(config, folder, code), config.notify.timeout_s)
                except (Exception, KeyboardInterrupt) as error:  # process border: a finished run must not fail
                    text = f"lockstep: notify.{key} failed ({_reason(error)}); the run is not affected."
                    print(text, file=sys.stderr, flush=True)


def describe(config: Config, folder: RunFolder, code: int) -> dict[str, Any]:
    facts = look_at(folder)
    message = {
        "run": str(folder.path),
        "name": config.run_name,
        "state": STATES.get(code, "failed"),
        "reason": facts.get("reason", ""),
        "exit_code": code,
        "host": socket.gethostname(),
        **{name: facts.get(name) for name in ("epoch", "step", "best", "monitor", "metrics")},
        "ended": datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    return message | {"summary": folder.read_summary()} if code == 0 else message


def _run(command: str, message: dict[str, Any], timeout_s: float) -> None:
    """Run the command, without a shell, with the message on standard input."""
    variables = {"RUN": message["run"], "STATE": message["state"], "REASON": message["reason"]}
    environ = os.environ | {f"LOCKSTEP_{name}": printable(value) for name, value in variables.items()}
    subprocess.run(shlex.split(command), input=to_json(message).encode(), env=environ, timeout=timeout_s, check=True)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error: urllib would follow it by a GET without the message."""

    @override
    def redirect_request(self, *_: Any, **__: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None


def _post(url: str, message: dict[str, Any], timeout_s: float) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "lockstep"}
    request = urllib.request.Request(url, to_json(message).encode(), headers)
    urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout_s).close()


def _reason(error: BaseException) -> str:
    """Describe an error without its text, which may contain the URL."""
    match error:
        case urllib.error.HTTPError():
            return f"HTTP status {error.code}"
        case subprocess.CalledProcessError():
            return f"exit code {error.returncode}"
        case subprocess.TimeoutExpired():
            return "timeout, notify.timeout_s"
    cause = getattr(error, "reason", error)
    return getattr(cause, "strerror", None) or type(cause).__name__
