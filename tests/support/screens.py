"""Commands on a pseudo-terminal."""

import sys
import warnings
from typing import Any

import pexpect

from tests.support.harness import PATIENCE_S, environ


def on_terminal(columns: int, *words: str, **variables: str) -> Any:
    """Start `lockstep ...` on a terminal with this number of columns, as a `pexpect.spawn`."""
    left_out = ("COLUMNS", "LINES", "NO_COLOR")
    kept = {name: value for name, value in environ().items() if name not in left_out}
    # Python 3.12 warns of a fork of a process with threads; this one executes another program
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return pexpect.spawn(
            sys.executable,
            ["-m", "lockstep.cli.main", *words],
            dimensions=(24, columns),
            encoding="utf-8",
            env={**kept, "TERM": "xterm-256color", **variables},
            timeout=PATIENCE_S,
        )
