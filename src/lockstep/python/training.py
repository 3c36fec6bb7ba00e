"""`lockstep.train`: one training from Python."""

import signal
from collections.abc import Sequence

from lockstep.cluster import request
from lockstep.config.errors import ConfigError, errors_of
from lockstep.python import configuration
from lockstep.python.run import Run
from lockstep.runs.folder import EXIT_CONFIG, EXIT_INTERRUPTED, EXIT_STOPPED
from lockstep.runs.naming import display_path
from lockstep.system.signals import SignalList


class TrainingFailed(RuntimeError):
    """Raised if a training by `lockstep.train` failed.

    The message contains the reason, and `run` is the run.
    """

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run


def train(overrides: Sequence[str] = (), *, trust: bool = False) -> Run:
    """Train with the overrides of `python train.py`, and return the run.

    Overrides are for example `["data=digits", "trainer.devices=2"]`. `trust` is `--trust` of a
    resume: any code that the run folder names is called, including that of another project.

    The training runs in worker processes, which print where this process prints. This process stays
    unchanged.

    On an interrupt, by Ctrl-C or the stop button of a notebook, the run saves and stops after its
    next step. KeyboardInterrupt is then raised, and a second interrupt aborts the run. After other
    stop signals the run stops, and the handlers of this process are called. A run that
    `lockstep stop` or trainer.max_time_s stopped is returned, with the state "stopped". In other
    threads Python handles no signals: use `lockstep stop latest`.

    Raises ConfigError, a ValueError, with all errors before anything starts. Raises TrainingFailed
    with the reason if the training fails. Use `python train.py` for sweeps and cluster jobs.
    """
    stop_signals = SignalList()
    overrides = configuration.readable(overrides)
    training_request = configuration.check_request(overrides, is_trusted=trust)
    folder, code = request.start(training_request, stop_signals)
    if code not in (0, EXIT_CONFIG, EXIT_STOPPED, EXIT_INTERRUPTED):
        reason = folder.read_status().get("reason") or "a worker failed without an error message"
        hint = f"\nSee {display_path(folder.failure)}" if folder.failure.exists() else ""
        raise TrainingFailed(f"{display_path(folder.path)}: {reason}{hint}", Run(folder.path))
    if code == EXIT_CONFIG:
        raise ConfigError(*errors_of(folder.failure.read_text("utf-8")))
    if stop_signals.received:
        signal.raise_signal(stop_signals.received)  # The handlers of this process receive it.
    elif code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    return Run(folder.path)
