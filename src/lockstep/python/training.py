"""`lockstep.train`: one training from Python, in this process or with workers."""

import signal
from collections.abc import Sequence

from lockstep.config.errors import PREFIX, ConfigError
from lockstep.launch import runner
from lockstep.python import configuration
from lockstep.python.run import Run
from lockstep.runs.folder import EXIT_CONFIG, EXIT_INTERRUPTED, EXIT_STOPPED, RunFolder
from lockstep.runs.naming import shown
from lockstep.system.signals import SignalList


class TrainingFailed(RuntimeError):
    """A training that `lockstep.train` started has failed; the message has the reason, `run` is what is left of it."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run


def train(overrides: Sequence[str] = (), *, trust: bool = False) -> Run:
    """Train by the overrides of `python train.py`, e.g. `["data=digits", "trainer.devices=2"]`. Returns the run.

    `trust` is the `--trust` of a resume: whatever the run folder names is called, code of another project too.

    The workers are processes of their own, as those of the command; nothing changes in this one. They print where this
    process does; a notebook shows a line of progress that is written anew.

    Interrupted, by Ctrl-C or the button of a notebook, the run saves and stops after its next step, then
    KeyboardInterrupt is raised; a second interrupt leaves at once. Other stop signals do in the end what they did
    before. A run that `lockstep stop` or trainer.max_time_s stopped is returned, with the state "stopped". Outside of
    the main thread Python knows no signals: `lockstep stop latest` stops there.

    Raises ConfigError, a ValueError, with all errors before anything starts; TrainingFailed with the reason where the
    training fails. A sweep and a cluster job are for `python train.py`.
    """
    stop_signals = SignalList()
    folder, code = _trained(overrides, stop_signals, is_trusted=trust)
    if code not in (0, EXIT_CONFIG, EXIT_STOPPED, EXIT_INTERRUPTED):
        raise TrainingFailed(_reason(folder), Run(folder.path))
    if code == EXIT_CONFIG:
        lines = folder.failure.read_text("utf-8").splitlines()
        raise ConfigError([line.removeprefix(PREFIX) for line in lines])
    if stop_signals.received:
        signal.raise_signal(stop_signals.received)  # to whoever has it outside of a training
    elif code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    return Run(folder.path)


def _trained(overrides: Sequence[str], stop_signals: SignalList, *, is_trusted: bool) -> tuple[RunFolder, int]:
    asked = configuration.asked(overrides, is_trusted=is_trusted)
    if asked.resumed is None:
        return runner.start(asked.config, overrides, asked.folder, stop_signals=stop_signals)
    from lockstep.cluster import submission  # which a new run here does not need

    submission.refuse_live(asked.resumed)
    return runner.resume(asked.resumed, asked.config, stop_signals=stop_signals)


def _reason(folder: RunFolder) -> str:
    reason = folder.read_status().get("reason") or "a worker failed without a word"
    where = f"\nAll of it is in {shown(folder.failure)}" if folder.failure.exists() else ""
    return f"{shown(folder.path)}: {reason}{where}"
