"""One requested training, which is read once and then started.

It serves `python train.py`, `lockstep.train` and `submit`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lockstep.assembly import refusals
from lockstep.config import overrides, saved_run
from lockstep.config.composing.compose import Source
from lockstep.config.errors import ConfigError
from lockstep.config.schema.configuration import Config
from lockstep.launch import runner
from lockstep.runs.folder import RunFolder
from lockstep.system.signals import SignalList


class Request(NamedTuple):
    """A requested training: its settings, and its run.

    `folder` is the named folder of a new run, and `resumed` is the run to resume. `cfg` is the
    configuration that Hydra composed, with the section `hydra`.
    """

    overrides: Sequence[str]
    config: Config
    folder: Path | None
    resumed: RunFolder | None
    cfg: Any

    @property
    def is_submitted(self) -> bool:
        return self.config.cluster.name != "none"


def read(typed_overrides: Sequence[str], source: Source, *, is_trusted: bool) -> Request:
    """Compose and check a request. Raises ConfigError with all errors."""
    resumed_run = saved_run.run_to_resume(typed_overrides)
    if resumed_run is not None:
        job = saved_run.check_resume(resumed_run, typed_overrides, source, is_trusted=is_trusted)
        return Request(typed_overrides, job.config, None, resumed_run, job.cfg)
    (job,) = overrides.plan(typed_overrides, source).jobs
    if error := refusals.folder_error("hydra.run.dir", job.folder and job.root, "outputs"):
        raise ConfigError(error)
    return Request(typed_overrides, job.config, job.folder, None, job.cfg)


def start(request: Request, stop_signals: SignalList | None = None) -> tuple[RunFolder, int]:
    """Start or resume the run, here or as a job.

    Returns its folder and the exit code. Raises ConfigError.
    """
    config, resumed_run = request.config, request.resumed
    if request.is_submitted:
        overrides.check_called([config])  # A training on this machine begins with this check.
    if resumed_run is None and not request.is_submitted:
        return runner.start(
            config,
            request.overrides,
            request.folder,
            hydra=request.cfg,
            stop_signals=stop_signals,
        )
    from lockstep.cluster import submission  # A new run on this machine does not import it.

    if resumed_run is None:
        return submission.start(config, request.overrides, request.folder)
    submission.refuse_live(resumed_run)
    if request.is_submitted:
        return submission.resume(resumed_run, config)
    return runner.resume(resumed_run, config, hydra=request.cfg, stop_signals=stop_signals)
