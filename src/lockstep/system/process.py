"""The exit of a command."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from lockstep.system import output, signals

OTHERS = 0o022  # of a mode: writing by the group and by all
_umask = threading.Lock()


class ServerDied(RuntimeError):
    """The process that imports torch ended before it could start another one. Its text is printed."""


def close_files() -> int:
    """Let only this user write what this process creates, as under umask 022. Returns the umask before."""
    before = os.umask(0o077)
    os.umask(before | OTHERS)
    return before


@contextlib.contextmanager
def close_files_after() -> Iterator[None]:
    """`close_files` in the block, for a process of the user, such as a notebook."""
    with _umask:
        before = close_files()
        try:
            yield
        finally:
            os.umask(before)


def leave(command: Callable[[], int]) -> NoReturn:
    """Run `command` and the registered exit functions, and exit with its code.

    Nothing else is cleaned up: freeing the modules of torch takes over a second, and a crash there changes the code.
    """
    output.outlive()
    close_files()
    try:
        try:
            code = command()
        except SystemExit as exiting:
            if not isinstance(exiting.code, int):  # a text, which Python prints
                raise
            code = exiting.code
        signals.run_exit_functions()
    except KeyboardInterrupt:
        signals.report_end(signal.SIGINT)
        code = 128 + signal.SIGINT
    except ServerDied as error:
        print(error, file=sys.stderr)
        code = 1
    except signals.Ended as ended:
        signals.report_end(ended.args[0], "; ".join(getattr(ended, "__notes__", ())))
        code = 128 + ended.args[0]
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)
