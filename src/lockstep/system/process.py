"""How a command begins and leaves."""

import atexit
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from lockstep.system import output, signals


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
