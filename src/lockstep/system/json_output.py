"""Standard output of a command with --json: one JSON value at its end, and nothing else.

All other output goes to standard error, including that of the processes that the command starts.
"""

import argparse
import contextlib
import json
import os
import sys
from typing import Any

OPTION = "--json"
FIELDS = ("code", "key", "message", "hint")

_values: list[Any] = []  # The last value is printed.
_errors: list[dict[str, str]] = []
_outputs: list[int] = []  # The descriptor of standard output, while it is reserved


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(OPTION, action="store_true", help="print one JSON value only")


def reserve() -> None:
    """Reserve standard output if the command line has --json.

    Of several ranks, only rank 0 prints the value.
    """
    if OPTION in sys.argv[1:]:
        rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
        _outputs.append(os.dup(1) if rank == "0" else os.open(os.devnull, os.O_WRONLY))
        os.dup2(2, 1)


def is_reserved() -> bool:
    return bool(_outputs)


def put(value: Any) -> None:
    """Set the value of this command.

    If the output is not reserved, the value is printed immediately.
    """
    if _outputs:
        _values.append(value)
    else:
        print(json.dumps(value, indent=1, allow_nan=False))


def put_errors(problem: object, *, code: str = "failed", hint: str = "") -> None:
    """Add errors to the value of this command.

    `problem` is a text, or an exception with a list `errors`. Each of these is a text or (code,
    key, message, hint).
    """
    if not _outputs:
        return
    errors = getattr(problem, "errors", None)
    if not isinstance(errors, list):
        errors = [str(problem)]
    for error in errors:
        values = (code, "", error, hint) if isinstance(error, str) else error
        stripped_values = [value.lstrip(",: ") for value in values]
        _errors.append(dict(zip(FIELDS, stripped_values, strict=True)))


def fail(problem: object, *, code: str = "failed") -> None:
    """Print an error of the command, and add it to the value."""
    print(f"lockstep: {problem}", file=sys.stderr)
    put_errors(problem, code=code)


def close(code: int) -> None:
    """Print the value at the end of the command.

    A command that failed without an error gets a general one.
    """
    if not _outputs:
        return
    value = _values[-1] if _values else {}
    if code and not (_errors or _values):
        put_errors(f"the command ended with exit code {code}, see standard error")
    if _errors and isinstance(value, dict):
        value = {**value, "errors": _errors}
    # The reader of the output may no longer exist.
    with contextlib.suppress(OSError), open(_outputs.pop(), "w") as out:
        out.write(json.dumps(value, indent=1, allow_nan=False) + "\n")
