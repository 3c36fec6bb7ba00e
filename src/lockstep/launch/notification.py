"""Tells the outside how a run ended: the user's command, and a POST to the user's URL, as `notify` says.

Whatever goes wrong here is one line on stderr; the exit code and the run folder are those of the training.
"""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from http.client import HTTPMessage
from types import FrameType
from typing import IO, Any
from urllib.parse import urlsplit

from lockstep.config.schema import Config
from lockstep.runs.discovery import look_at
from lockstep.runs.files import to_json
from lockstep.runs.folder import EXIT_STOPPED, RunFolder
from lockstep.system.signals import STOP_SIGNALS, is_main_thread, restored
from lockstep.system.terminal import printable

STATES = {0: "finished", EXIT_STOPPED: "stopped"}


def send(config: Config, folder: RunFolder, code: int) -> None:
    """Say that the run ended with this exit code, if `notify` asks for it.

    Takes at most `notify.timeout_s` for the command and for the URL, each; Ctrl-C ends it.
    """
    notify = config.notify
    if notify.command is None and notify.url is None:
        return
    sys.stdout.flush()
    try:
        with _unhurried():
            message = describe(config, folder, code)
            if notify.command is not None:
                _report("command", _run(notify.command, message, notify.timeout_s))
            if notify.url is not None:
                _report("url", _post(notify.url, message, notify.timeout_s))
    except KeyboardInterrupt:
        _report("", "ended by Ctrl-C")
    except Exception as error:  # the border: a run that is through must not fail for it
        _report("", f"failed by {type(error).__name__}")


def describe(config: Config, folder: RunFolder, code: int) -> dict[str, Any]:
    """What is told of a run that ended, as plain values."""
    facts = look_at(folder)
    state = STATES.get(code, "failed")
    message = {
        "run": str(folder.path),
        "name": config.run_name,
        "state": state,
        "reason": facts.get("reason", ""),
        "exit_code": code,
        "host": socket.gethostname(),
        **{name: facts.get(name) for name in ("epoch", "step", "best", "monitor", "metrics")},
    }
    if state == "finished":
        message["summary"] = {}
        with contextlib.suppress(OSError, ValueError, RecursionError):  # whatever stands there by now
            message["summary"] = folder.read_summary()
    return message | {"ended": datetime.now().astimezone().isoformat(timespec="seconds")}


def _report(key: str, fault: str) -> None:
    if fault:
        name = f"notify.{key}" if key else "notify"
        print(f"lockstep: {name}: {fault}; the run itself is not concerned.", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _unhurried() -> Iterator[None]:
    """Let SIGTERM and SIGUSR1 wait for the end of this, which is near: launchers send them when a worker has failed."""
    with restored():
        for number in STOP_SIGNALS if is_main_thread() else ():
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else _pass)
        yield


def _pass(number: int, frame: FrameType | None) -> None:
    """Do nothing; unlike SIG_IGN this is not handed on to the command."""


# -- the command -------------------------------------------------------------------------------------------------------


def _run(command: str, message: dict[str, Any], timeout_s: float) -> str:
    """Run the command with the message on its standard input. Returns what went wrong."""
    words = shlex.split(command)
    variables = {"RUN": message["run"], "STATE": message["state"], "REASON": message["reason"]}
    environ = os.environ | {f"LOCKSTEP_{name}": printable(value) for name, value in variables.items()}
    with tempfile.TemporaryFile() as file:  # not a pipe: the command need not read it
        file.write(to_json(message).encode())
        file.seek(0)
        try:
            process = subprocess.Popen(words, stdin=file, env=environ, start_new_session=True)
        except (OSError, ValueError) as error:
            return f"{words[0]} cannot be started: {getattr(error, 'strerror', None) or error}"
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return f"{words[0]} took longer than {timeout_s:g} s and was ended"
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its children, too
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1)
    return f"{words[0]} ended with code {code}" if code else ""


# -- the POST ----------------------------------------------------------------------------------------------------------


class _Here(urllib.request.HTTPRedirectHandler):
    """Goes nowhere else: the message was meant for one address."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Follow no redirection, so that the answer counts as an error."""


def _post(url: str, message: dict[str, Any], timeout_s: float) -> str:
    """POST the message. Returns what went wrong, without what may be secret in the URL."""
    request = urllib.request.Request(
        url, to_json(message).encode(), {"Content-Type": "application/json", "User-Agent": "lockstep"}, method="POST"
    )
    faults: list[str] = []

    def post() -> None:
        try:
            with urllib.request.build_opener(_Here).open(request, timeout=timeout_s):
                faults.append("")
        except Exception as error:
            faults.append(_fault(error))

    # a thread, because its timeout is for each of its steps, and for none of looking up a name
    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    thread.join(timeout_s)
    fault = faults[0] if faults else f"no answer within {timeout_s:g} s"
    return f"{urlsplit(url).hostname}: {fault}" if fault else ""


def _fault(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        where = ", a redirection that is not followed" if 300 <= error.code < 400 else ""
        return f"HTTP status {error.code}{where}"
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "timed out"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return type(error).__name__  # its text can hold the URL
