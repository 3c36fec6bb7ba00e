"""Starts processes as forks of one server that has imported torch.

The server is the fork server of multiprocessing. A command starts the server first, and never
imports torch itself. Workers, trials and decoding processes are forks of that server. Only
`share_server` and `_stop_server` use private parts of multiprocessing. Where forks are not safe
(macOS), processes are new interpreters.
"""

import atexit
import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, get_context, resource_tracker, util
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext, ForkServerContext, ForkServerProcess
from types import ModuleType
from typing import Any, TypeVar

from typing_extensions import override

from lockstep.system import internals, signals
from lockstep.system.launcher import outer_world

Result = TypeVar("Result")

HAS_FORK = sys.platform == "linux"
SERVER = "lockstep.launch.server"
# The server reads these variables: the folder of sockets to remove at its end, and `is_safe_path`.
FOLDER = "LOCKSTEP_SERVER_FOLDER"
SAFE_PATH = "LOCKSTEP_SERVER_SAFE_PATH"

# Maximum bytes of the path of a folder for sockets. An address may have 104 (macOS) to 108 bytes,
# with the 33 bytes of the names that multiprocessing adds.
MAX_FOLDER_BYTES = 70

# The multiprocessing package gives this exit code to a fork whose server has died. Any code may
# also use it.
UNKNOWN_END = 255

_is_started = False  # True once this process has started a server

# True if this command ignores modules in the current folder (PYTHONSAFEPATH), as the server always
# does.
is_safe_path = bool(sys.flags.safe_path)


OTHERS = 0o022  # These mode bits allow the group and all others to write.
_umask = threading.Lock()


class ServerDied(RuntimeError):
    """The process that imports torch ended before it could start another one.

    The text of the error is printed.
    """


def restrict_umask() -> int:
    """Let only this user write the files that this process creates, as under umask 022.

    Returns the previous umask.
    """
    umask = os.umask(0o077)
    os.umask(umask | OTHERS)
    return umask


@contextlib.contextmanager
def restricted_umask() -> Iterator[None]:
    """Apply `restrict_umask` in the block, for a process of the user, such as a notebook."""
    with _umask:
        umask = restrict_umask()
        try:
            yield
        finally:
            os.umask(umask)


@contextlib.contextmanager
def _hide_main() -> Iterator[None]:
    """Hide the script of this process from the processes that multiprocessing starts.

    multiprocessing would run it again in each of them. A script without `if __name__ == "__main__"`
    would start its training again.
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
            with _hide_main(), signals.block_signals():
                super().start()
        except (EOFError, FileNotFoundError, ConnectionError) as error:
            raise ServerDied(
                "The process that imports torch for the workers has died, perhaps out of memory "
                "(ulimit -v): try python -c 'import torch, lightning'."
            ) from error


class _Context(ForkServerContext):
    Process = _Process  # pyright: ignore[reportAssignmentType]


def context() -> BaseContext:
    """Return the multiprocessing context, and start the server if there is none."""
    start_server()
    return _Context() if HAS_FORK else get_context("spawn")


def start_server() -> None:
    """Start the server if there is none.

    The server imports torch while this process continues.
    """
    global _is_started
    if _has_shared_server():
        return
    sockets = _socket_folder()
    if not HAS_FORK:
        return
    if not _is_started:
        _is_started = True
        atexit.register(_stop_server)
    # The start of the tracker unblocks signals.
    resource_tracker.ensure_running()
    forkserver.set_forkserver_preload([SERVER])
    user_value = os.environ.get("PYTHONSAFEPATH")
    variables = {"PYTHONSAFEPATH": "1", FOLDER: sockets, SAFE_PATH: "1" if is_safe_path else ""}
    os.environ.update(variables)
    try:
        with _hide_main(), signals.block_signals():
            forkserver.ensure_running()
    finally:
        for variable in variables:
            del os.environ[variable]
        if user_value is not None:
            os.environ["PYTHONSAFEPATH"] = user_value


def _socket_folder() -> str:
    """Return multiprocessing's folder of sockets, which all processes started from here use.

    It is in TMPDIR if that path is short enough and can be written, or else in /tmp or /var/tmp.
    """
    temp_folder = tempfile.gettempdir()
    short_paths = [
        path
        for path in (temp_folder, "/tmp", "/var/tmp")
        if len(os.fsencode(path)) <= MAX_FOLDER_BYTES
    ]
    writable_paths = [path for path in short_paths if os.access(path, os.W_OK)]
    tempfile.tempdir = writable_paths[0] if writable_paths else temp_folder
    try:
        return util.get_temp_dir()
    finally:
        tempfile.tempdir = temp_folder


def _stop_server() -> None:
    """Kill the server at the exit of this process, even during its imports.

    The command may not have needed the server.
    """
    if (pid := internals.fork_server_pid()) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def call(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a process that has imported torch.

    A worker calls it directly. Arguments and result are pickled, and the function must not raise.
    Raises ServerDied if the process dies.
    """
    world = outer_world(os.environ)
    if _has_shared_server() or (world is not None and world.world_size > 1):
        return function(*arguments)
    mp_context = context()
    receiver, sender = mp_context.Pipe(duplex=False)
    process = mp_context.Process(  # pyright: ignore[reportAttributeAccessIssue]
        target=_answer,
        args=(sender, function, arguments),
    )
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError as error:
        process.join()
        raise ServerDied(
            f"A process that imports what a configuration names has died ({process.exitcode})."
        ) from error


def _answer(sender: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    sender.send(function(*arguments))


def share_server() -> None:
    """Let this process, a fork of the server, start processes from the same server."""
    if _has_shared_server():
        internals.keep_fork_server()


def _has_shared_server() -> bool:
    return forkserver.get_inherited_fds() is not None
