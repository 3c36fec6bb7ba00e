"""Checks for your tests that your network, loss and data keep the promise of exactness."""

import subprocess
import sys
from pathlib import Path


def assert_exact(*overrides: str, cwd: Path | str | None = None) -> None:
    """Assert that a configuration computes the same on 1, 2 and 3 workers.

    The check is that of `lockstep verify`. `overrides` are those of `python train.py`. `cwd` is the
    folder to start in, or the current folder if None. Raises AssertionError with the complete
    report if something differs or fails, or the configuration has errors.
    """
    result = subprocess.run(
        [sys.executable, "-m", "lockstep", "verify", *overrides],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise AssertionError(
            f"lockstep verify {' '.join(overrides)}\n{result.stdout}{result.stderr}"
        )
