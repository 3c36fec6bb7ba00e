"""The callbacks, loggers and profiler of the configuration of a run."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import AdvancedProfiler, Profiler, PyTorchProfiler, SimpleProfiler

from lockstep.assembly.session import Session
from lockstep.assembly.staging import together
from lockstep.callbacks.best import REPLACED
from lockstep.config import build
from lockstep.config.checks import signatures
from lockstep.config.errors import ConfigError
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import Open, is_ours
from lockstep.runs.folder import RunFolder

PROFILERS = {"simple": SimpleProfiler, "advanced": AdvancedProfiler, "pytorch": PyTorchProfiler}


def built_callbacks(config: Config) -> list[Callback]:
    """Build the callbacks of the configuration. Raises ConfigError for a subclass of one that does not work here."""
    built: list[Callback] = []
    for name, section in config.callbacks.items():
        if section is None:
            continue
        callback = build.build(section)
        if target := REPLACED.get(type(callback)):
            callback = build.build(section.model_copy(update={"target": target}))
        built.append(callback)
        if not section.target.startswith(("lightning.", "lockstep.")):  # of a project: the check saw only its name
            _refuse_unfit(f"callbacks.{name}", section.target, callback)
    return built


def _refuse_unfit(key: str, target: str, callback: Callback) -> None:
    lightnings = (kind.__name__ for kind in type(callback).__mro__ if kind.__module__.startswith("lightning."))
    if (kind := next(lightnings, "Callback")) != "Callback":
        from lockstep.config.checks import callback_rules

        if kind in callback_rules.INSTEAD:
            raise ConfigError(callback_rules.unfit_callback(key, target, kind))


def prepared_checkpoint(callbacks: list[Callback], folder: RunFolder) -> ModelCheckpoint | None:
    """Set the folder of every ModelCheckpoint without one; return the first."""
    checkpoints = [callback for callback in callbacks if isinstance(callback, ModelCheckpoint)]
    for callback in checkpoints:
        if callback.dirpath is None:
            callback.dirpath = str(folder.checkpoints)
    return checkpoints[0] if checkpoints else None


def built_loggers(here: Session, purge_step: int) -> list[Logger]:
    """Build the loggers of the configuration, which write into the run folder.

    Those that append to files of earlier sessions drop entries from `purge_step` on: these steps are done again. Every
    rank must call it. Raises ConfigError on all ranks if one cannot start.
    """
    sections = [section for section in here.config.logger.values() if section is not None]
    return together(lambda: [_logger(here, section, purge_step) for section in sections])


def built_profiler(config: Config, folder: RunFolder) -> Profiler | None:
    """Build Lightning's profiler of the configuration, which writes into the run folder."""
    name = config.trainer.profiler
    return name and PROFILERS[name](dirpath=folder.path, filename="profile")


def _logger(here: Session, section: Open, purge_step: int) -> Logger:
    known: dict[str, Any] = {"rank": here.rank, "held": here.held} if is_ours(section.target) else {}
    supplied = {name: value for name, value in known.items() if signatures.has_parameter(section.target, name)}
    # also of a new run: TensorBoard does not count the first session mark as a restart, and purges nothing
    if section.target.endswith("TensorBoardLogger") or signatures.has_parameter(section.target, "purge_step"):
        supplied["purge_step"] = purge_step
    return build.build(section, save_dir=str(here.folder.path), **supplied)


def next_step(checkpoint: Path | None, *, is_own: bool) -> int:
    """Return the first step after `checkpoint`; 0, where texts and settings are logged, without one."""
    if checkpoint is None:
        return 0
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    # Lightning logs a custom module at the number of batches, for any optimizers
    batches = saved["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["ready"]
    return (batches if is_own else saved["global_step"]) + 1
