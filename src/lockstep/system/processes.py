"""Starts processes as forks of one server that has imported torch: multiprocessing's own fork server.

A command asks for the server as its first act and never imports torch itself; all processes below it, workers of a
run, trials, and processes that decode images, are forks of that one server. Public parts of multiprocessing do it,
apart from `share_server` and `_stop_server`. Where forks are not safe (macOS), processes are new interpreters.
"""

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, get_context, resource_tracker, util
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext, ForkServerContext, ForkServerProcess
from types import ModuleType
from typing import Any, TypeVar

from typing_extensions import override

from lockstep.system import signals
from lockstep.system.launcher import outer_world

Result = TypeVar("Result")

HAS_FORK = sys.platform == "linux"
SERVER = "lockstep.launch.server"
FOLDER = "LOCKSTEP_SERVER_FOLDER"  # tells the server which folder of sockets to remove at its end
SAFE_PATH = "LOCKSTEP_SERVER_SAFE_PATH"  # and what `is_safe_path` is

_is_started = False  # whether this process has started a server

# whether this command is not to find modules in the current folder (PYTHONSAFEPATH); the server itself never does
is_safe_path = bool(sys.flags.safe_path)


class ServerDied(RuntimeError):
    """The server has ended before it could start a process."""


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the script of this process, which multiprocessing would run again in every process that is started here.

    One without `if __name__ == "__main__"` would start its training once more there.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class _Process(ForkServerProcess):
    @override
    def start(self) -> None:
        try:
            with _without_main(), signals.blocked():
                super().start()
        except EOFError as error:
            raise ServerDied(
                "The process that imports torch for the workers has died, perhaps out of memory: "
                "try python -c 'import torch, lightning'."
            ) from error


class _Context(ForkServerContext):
    Process = _Process  # pyright: ignore[reportAssignmentType]


def context() -> BaseContext:
    """The way in which this process starts others; it starts the server where there is none."""
    start_server()
    return _Context() if HAS_FORK else get_context("spawn")


def start_server() -> None:
    """Start the server, which imports torch while this process goes on. Does nothing where there is one."""
    global _is_started
    if not HAS_FORK or _has_shared_server():
        return
    if not _is_started:
        _is_started = True
        atexit.register(_stop_server)
    resource_tracker.ensure_running()  # its start unblocks signals
    forkserver.set_forkserver_preload([SERVER])
    given = os.environ.get("PYTHONSAFEPATH")
    mine = {"PYTHONSAFEPATH": "1", FOLDER: util.get_temp_dir(), SAFE_PATH: "1" if is_safe_path else ""}
    os.environ.update(mine)
    try:
        with _without_main(), signals.blocked():
            forkserver.ensure_running()
    finally:
        for name in mine:
            del os.environ[name]
        if given is not None:
            os.environ["PYTHONSAFEPATH"] = given


def _stop_server() -> None:
    """End the server with this process, also while it still imports, for a command that did not need it."""
    pid = forkserver._forkserver._forkserver_pid  # pyright: ignore[reportPrivateUsage,reportAttributeAccessIssue]
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def call(function: Callable[..., Result], *arguments: Any) -> Result:
    """What a function returns in a process that has imported torch, for one that never does.

    A process that computes calls it itself. All travels by pickle; a function raises nothing.
    """
    world = outer_world(os.environ)
    if _has_shared_server() or (world is not None and world.world_size > 1):
        return function(*arguments)
    ours = context()
    receiver, sender = ours.Pipe(duplex=False)
    process = ours.Process(target=_answer, args=(sender, function, arguments))  # pyright: ignore[reportAttributeAccessIssue]
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError as error:
        process.join()
        raise ServerDied(f"A process that imports what a configuration names has died ({process.exitcode}).") from error


def _answer(sender: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    sender.send(function(*arguments))


def share_server() -> None:
    """Have this process, a fork of the server, start its own processes from the same server.

    multiprocessing's documentation says that it does so by itself; it would start another server.
    """
    if _has_shared_server():
        forkserver._forkserver.ensure_running = _nothing  # pyright: ignore[reportPrivateUsage,reportAttributeAccessIssue]


def _has_shared_server() -> bool:
    """Whether this process is a fork of a server."""
    return forkserver.get_inherited_fds() is not None


def _nothing() -> None:
    """The server is running: this process would have ended with it."""
