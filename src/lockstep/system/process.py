"""Runs a command and exits with its code."""

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from lockstep.system import json_output, output, signals
from lockstep.system.processes import ServerDied, restrict_umask


def leave(command: Callable[[], int]) -> NoReturn:
    """Run `command` and the registered exit functions, and exit with its code.

    Nothing else is cleaned up. Freeing the modules of torch takes over a second, and a crash there
    would change the code.
    """
    output.outlive()
    json_output.reserve()
    restrict_umask()
    code = 1
    try:
        try:
            code = command()
        except SystemExit as exiting:
            # The code is a text, which Python prints.
            if not isinstance(exiting.code, int):
                raise
            code = exiting.code
        signals.run_exit_functions()
    except KeyboardInterrupt:
        signals.report_end(signal.SIGINT)
        code = 128 + signal.SIGINT
    except Exception as error:
        # Custom code may raise any error.
        from lockstep.system import tracebacks

        message = str(error) if isinstance(error, ServerDied) else tracebacks.describe(error)
        json_output.put_errors(message)
        print(message, file=sys.stderr)
        code = 1
    except signals.Ended as ended:
        signals.report_end(ended.args[0], "; ".join(getattr(ended, "__notes__", ())))
        code = 128 + ended.args[0]
    finally:
        json_output.close(code)
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)
