"""How a command begins and leaves."""

import atexit
import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from lockstep.system import output, signals


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent is gone, whatever ended it (Linux)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """For imports: what they allocate stays. To look through it for garbage is a fifth of their time, later 0.1 s."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def leave(command: Callable[[], int]) -> NoReturn:
    """Do `command`, then what is registered for the exit, and exit with its code.

    No more: freeing the modules of torch one by one takes over a second, and a crash there would change the code.
    """
    output.outlive()
    try:
        try:
            code = command()
        except SystemExit as left:
            if not isinstance(left.code, int):  # a text, which Python prints
                raise
            code = left.code
        atexit._run_exitfuncs()
    except KeyboardInterrupt:
        signals.say_ended(signal.SIGINT)
        code = 128 + signal.SIGINT
    except signals.Ended as ended:
        signals.say_ended(ended.number, "; ".join(getattr(ended, "__notes__", ())))
        code = 128 + ended.number
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)
