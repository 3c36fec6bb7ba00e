"""Runs the first steps of a command, before imports that take most of a second."""

import contextlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from lockstep.runs.folder import EXIT_CONFIG
from lockstep.system import json_output, output
from lockstep.system.launcher import outer_world
from lockstep.system.signals import STOP_SIGNALS, report_end


def begin() -> None:
    """Let this command outlive its terminal.

    Until a run starts, a signal ends the command with a one-line message.
    """
    output.outlive()
    for number in STOP_SIGNALS:
        signal.signal(number, _end)
    # The process of a job blocks these signals.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _end(number: int, frame: FrameType | None) -> None:
    report_end(number, "no run was started")
    os._exit(128 + number)


def start_training() -> None:
    """Start importing torch in the fork server.

    Does nothing if the command line has an option such as --help. A process of torchrun or srun
    computes itself and needs no fork server. Exits with one line for wrong variables of a launcher.
    """
    try:
        world = outer_world(os.environ)
    except ValueError as error:
        json_output.fail(error)
        raise SystemExit(EXIT_CONFIG) from error
    is_help = any(
        word.startswith("-") and word not in ("-m", "--multirun", "--json") for word in sys.argv[1:]
    )
    if not is_help and (world is None or world.world_size == 1):
        # This module imports multiprocessing.
        from lockstep.system import processes

        # The current folder may no longer exist, which the command reports.
        with contextlib.suppress(FileNotFoundError):
            processes.start_server()


def train(script: str) -> NoReturn:
    """Run the train.py of a project, with the `conf` and modules next to the script."""
    begin()
    start_training()
    from lockstep.cli.train import run_command
    from lockstep.system.process import leave

    leave(lambda: run_command(Path(script).resolve().parent, sys.argv[1:]))
