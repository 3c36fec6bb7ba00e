"""Commands in the process of a test, where what they need is imported once."""

import contextlib
import io
import logging
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from lockstep.cli import main


def lockstep(cwd: Path, *words: str | Path) -> CompletedProcess[str]:
    """Call `lockstep ...` in a folder, and capture what this process prints."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["lockstep", *map(str, words)])
        try:
            code = main._command()
        except SystemExit as left:  # of argparse
            code = int(left.code or 0)
    logging.disable(logging.NOTSET)  # An export disables it.
    return CompletedProcess(words, code, out.getvalue(), err.getvalue())
