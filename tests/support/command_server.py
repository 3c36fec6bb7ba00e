"""Python commands as forks of this process, which has imported torch and Lightning: see commands.py.

A request is one JSON object on the socket whose number is on the command line, together with the standard
input, output and error of the command. The answer is the process id of the command, which is a child of whoever asks.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import sys
import time
import types
from collections.abc import Callable
from typing import Any, NoReturn

from lockstep.launch.forking import set_variables
from lockstep.system.lazy_imports import lazy
from lockstep.system.process import die_with, no_garbage_collection

MAX_BYTES = 1 << 18  # of a request: a command line and its variables
MAX_FILES = 4096


def serve(connection: socket.socket) -> dict[str, Any]:
    """Answer requests until nobody can ask any more. Returns in each command, with its request."""
    while True:
        text, files, _, _ = socket.recv_fds(connection, MAX_BYTES, 3)
        if not text:
            os._exit(0)
        between = os.fork()
        if between == 0:
            between = os.getpid()
            command = os.fork()
            if command:
                connection.send(str(command).encode())
                os._exit(0)
            _begin(files, between)
            return json.loads(text)
        os.waitpid(between, 0)  # now the command is a child of the process that asks
        connection.send(b"begun")
        for file in files:
            os.close(file)


def _begin(files: list[int], between: int) -> None:
    """Become what a new process would be, as soon as the parent is the one that asked, not the process between."""
    while os.getppid() == between:
        time.sleep(0.0005)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, MAX_FILES)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.reconfigure(line_buffering=os.isatty(number))  # pyright: ignore[reportAttributeAccessIssue]


def execute(words: list[str], cwd: str, environ: dict[str, str], path: list[str]) -> None:
    """What `python words` does in a folder, with these variables. `path` has the modules of the installation."""
    os.chdir(cwd)
    set_variables(environ)
    first = os.getcwd() if words[0] in ("-m", "-c") else os.path.dirname(os.path.abspath(words[0]))
    sys.path[:] = [first, *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep)), *path]
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), vars(main))
    else:
        sys.argv[:] = words
        runpy.run_path(words[0], run_name="__main__")


def leave(work: Callable[[], None]) -> NoReturn:
    """Do it and exit as the interpreter does, but for freeing the modules of torch, which takes a second."""
    code = 0
    try:
        work()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    die_with(os.getppid())
    installed = sys.path[1:]
    with no_garbage_collection(), lazy():
        import hydra  # noqa: F401

        import lockstep.cli.dashes
        import lockstep.cli.train
        import lockstep.launch.runner
        import lockstep.system.plots
        import lockstep.training.train  # noqa: F401
        from lockstep.callbacks import Curves, Pictures, SplitTensorBoardLogger  # noqa: F401
        from lockstep.data import digits  # noqa: F401
        from lockstep.models import ResNet18  # noqa: F401
        from lockstep.tasks import Classification  # noqa: F401
    gc.freeze()
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    leave(lambda: execute(asked["words"], asked["cwd"], asked["environ"], installed))
