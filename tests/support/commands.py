"""Commands of Python whose start is not what a test is about: forks of a process that has imported torch and Lightning.

They are processes like any other: children of this one with a command line, a folder, variables, files, signals and an
exit code of their own. What imports of torch take, seconds of a core, they do not take again. That commands start from
nothing is shown where it is the promise: test_first_second.py, test_lazy_imports.py, test_presence.py, test_output.py,
test_launch.py. What Python reads when it starts, sitecustomize.py or the number of threads, a fork does not read.
"""

import ctypes
import functools
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.harness import PATIENCE_S, ROOT, environ

PR_SET_CHILD_SUBREAPER = 36
SCRIPTS = Path(sys.executable).parent.resolve()
FIXED = ("OMP_NUM_THREADS", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")  # read while a process starts
PIPES = ["p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"]
# elsewhere, and where another Python has other private parts, commands are new processes
CAN_FORK = sys.platform == "linux" and (
    list(inspect.signature(subprocess.Popen._execute_child).parameters)[11:17] == PIPES  # pyright: ignore[reportAttributeAccessIssue]
)


class Command(subprocess.Popen[Any]):
    """`subprocess.Popen` of `python ...` or of a script beside it, without the imports; also those of an environment
    of its own, in which the installed packages do not change any more.
    """

    def __init__(
        self, words: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        first, *rest = words = list(map(str, words))
        variables = dict(environ() if env is None else env)
        for name in FIXED:
            assert variables.get(name) == environ().get(name), f"{name} is read by the process that forks"
        folder = Path(first).parent.resolve()
        self._python = sys.executable if folder == SCRIPTS else str(folder / "python")
        assert Path(self._python).exists(), f"{first} is no command of a Python"
        self._request = {
            "words": rest if Path(first).name in ("python", Path(sys.executable).name) else [first, *rest],
            "cwd": str(cwd or Path.cwd()),
            "environ": variables,
        }
        super().__init__(words, cwd=cwd, env=variables, **more)

    def _execute_child(self, *arguments: Any) -> None:  # of subprocess.Popen: it starts the process
        if not CAN_FORK:
            super()._execute_child(*arguments)  # pyright: ignore[reportAttributeAccessIssue]
            return
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = arguments[10:16]
        # "-1" where the child is to have what this process has
        files = [given if given != -1 else own for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        try:
            self.pid = _ask(self._python, self._request, files)
        finally:
            self._close_pipe_fds(  # pyright: ignore[reportAttributeAccessIssue]
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite
            )
        self._child_created = True


def run(
    words: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command that ends, what it has said captured."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Command(words, cwd, env, **pipes) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(map(str, words)), process.returncode, out, err)


def _ask(python: str, request: dict[str, Any], files: Sequence[int]) -> int:
    server = _server(os.getpid(), python)
    # the command is orphaned by the process between, and adopted by this one
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        socket.send_fds(server, [json.dumps(request).encode()], list(files))
        pid, begun = server.recv(100), server.recv(100)
    finally:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert begun, "the process that forks commands has ended"
    return int(pid)


@functools.cache
def _server(pid: int, python: str) -> socket.socket:
    """Where to ask, from the process `pid`: the server ends as soon as that closes its socket, or ends itself."""
    own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    variables = {name: value for name, value in environ().items() if name != "PYTHONPATH"}
    words = [python, str(ROOT / "tests" / "support" / "command_server.py"), str(its.fileno())]
    words.append(" " * 1000)  # room for the titles of its forks
    process = subprocess.Popen(
        words,
        pass_fds=[its.fileno()],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        preexec_fn=_as_in_a_terminal,
    )
    process.returncode = 0  # it ends with this process, and nobody waits for it
    its.close()
    return own


def _as_in_a_terminal() -> None:
    """Signals that are ignored under nohup, and in the background, are not."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
