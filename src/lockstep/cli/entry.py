"""The first moments of a command, before the imports that take most of a second."""

import contextlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from lockstep.system import output
from lockstep.system.launcher import outer_world
from lockstep.system.signals import STOP_SIGNALS, report_end


def begin() -> None:
    """Let this command outlive its terminal, and end with one line by a signal while no run is under way."""
    output.outlive()
    for number in STOP_SIGNALS:
        signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    report_end(number, "no run is under way")
    os._exit(128 + number)


def as_usual() -> None:
    """Restore Python's own handlers, for commands that end by KeyboardInterrupt."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def start_training() -> None:
    """Have torch imported while this process reads its command line, unless that asks for help.

    What torchrun or srun started computes itself.
    """
    world = outer_world(os.environ)
    asks = any(word.startswith("-") and word not in ("-m", "--multirun") for word in sys.argv[1:])
    if not asks and (world is None or world.world_size == 1):
        from lockstep.system import processes  # multiprocessing, which no other command needs

        with contextlib.suppress(FileNotFoundError):  # the current folder is gone, which the command says itself
            processes.start_server()


def train(script: str) -> NoReturn:
    """What the train.py of a project does: train by the command line, with the `conf` and modules beside the script."""
    begin()
    start_training()
    from lockstep.cli.train import run
    from lockstep.system.process import leave

    leave(lambda: run(Path(script).resolve().parent))
