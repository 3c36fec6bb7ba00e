"""The first moments of a command, before the imports that take most of a second."""

from pathlib import Path
from typing import NoReturn

from lockstep.system import output, signals


def begin() -> None:
    """Let this command outlive its terminal, and end with one line by a signal while it has nothing under way."""
    output.outlive()
    signals.end_at_once()


def train(script: str) -> NoReturn:
    """What the train.py of a project does: train by the command line, with the `conf` and modules beside the script."""
    begin()
    from lockstep.cli.train import run
    from lockstep.system.process import leave

    leave(lambda: run(Path(script).resolve().parent))
