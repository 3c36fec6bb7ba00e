"""The callbacks, loggers and profiler of the configuration of a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.profilers import AdvancedProfiler, Profiler, PyTorchProfiler, SimpleProfiler

from lockstep.assembly.agreement import together
from lockstep.assembly.session import Session
from lockstep.callbacks import best
from lockstep.config import build
from lockstep.config.checks import callback_rules, signatures
from lockstep.config.errors import ConfigError, config_error, one_line
from lockstep.config.saved.config_file import to_tree
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import SERVICES, Open
from lockstep.runs.folder import RunFolder
from lockstep.system.output import print_error
from lockstep.system.redaction import redact

PROFILERS = {"simple": SimpleProfiler, "advanced": AdvancedProfiler, "pytorch": PyTorchProfiler}


def build_callbacks(config: Config) -> list[Callback]:
    """Build the callbacks of the configuration.

    Raises ConfigError for a subclass of a callback that does not work here.
    """
    callbacks: list[Callback] = []
    for name, section in config.callbacks.items():
        if section is None:
            continue
        callback = build.build(section)
        if type(callback) is ModelCheckpoint:
            callback = build.build(
                section.model_copy(update={"target": f"{best.__name__}.ModelCheckpoint"})
            )
            callback.keeps_last = config.data.validate_on_test
        callbacks.append(callback)
        # For a callback of a project, the check has seen only its name.
        if not section.target.startswith(("lightning.", "lockstep.")):
            bases = type(callback).__mro__
            kinds = [base.__name__ for base in bases if base.__module__.startswith("lightning.")]
            if kinds and kinds[0] in callback_rules.INSTEAD:
                key = f"callbacks.{name}"
                raise ConfigError(callback_rules.unfit_callback(key, section.target, kinds[0]))
    return callbacks


def set_checkpoint_folders(callbacks: list[Callback], folder: RunFolder) -> ModelCheckpoint | None:
    """Set the folder of every ModelCheckpoint that has none, and return the first one."""
    checkpoints = [callback for callback in callbacks if isinstance(callback, ModelCheckpoint)]
    for callback in checkpoints:
        if callback.dirpath is None:
            callback.dirpath = str(folder.checkpoints)
    return checkpoints[0] if checkpoints else None


def build_loggers(session: Session, purge_step: int) -> list[Logger]:
    """Build the loggers of the configuration, which write into the run folder.

    Every rank must call it. Loggers that append to files of earlier sessions drop entries from
    `purge_step` on, because these steps are repeated. Raises ConfigError on all ranks if one cannot
    start.
    """
    return together(
        lambda: [
            _logger(session, name, section, purge_step)
            for name, section in session.config.logger.items()
            if section is not None
        ]
    )


def build_profiler(config: Config, folder: RunFolder) -> Profiler | None:
    """Build Lightning's profiler of the configuration, which writes into the run folder."""
    profiler_name = config.trainer.profiler
    return profiler_name and PROFILERS[profiler_name](dirpath=folder.path, filename="profile")


def _logger(session: Session, name: str, section: Open, purge_step: int) -> Logger:
    if section.target in SERVICES:
        return _service_logger(session, name, section)
    # This also applies to a new run. TensorBoard does not count the first session mark as a
    # restart, and purges nothing.
    is_tensorboard = section.target.endswith("TensorBoardLogger")
    is_purged = is_tensorboard or "purge_step" in signatures.parameter_names(section.target)
    arguments = {"purge_step": purge_step} if is_purged else {}
    return build.build(section, save_dir=str(session.folder.path), **arguments)


def _service_logger(session: Session, name: str, section: Open) -> Logger:
    """Build a logger of a service, and start its session on rank 0.

    The session continues that of the last one. At the service, the run has the name of its folder,
    and the configuration without secrets.
    """
    _, name_key, id_key = SERVICES[section.target]
    fact = f"{name}_id"
    run_id = session.folder.fact(fact)
    arguments = {name_key: session.folder.path.name, id_key: run_id}
    arguments = {key: value for key, value in arguments.items() if key not in section.arguments()}
    try:
        logger = build.build(section, save_dir=str(session.folder.path), **arguments)
        if session.rank > 0:
            return logger
        _ = logger.experiment
        if run_id is None:
            session.folder.note(**{fact: logger.version})
            logger.log_hyperparams(redact(to_tree(session.config)))
    except Exception as error:  # This is the border to a service, which can raise any error.
        raise config_error("failed", f"logger.{name}", "cannot start", one_line(error)) from error
    guard = _ErrorTolerantCall(f"logger.{name}")
    logger.log_metrics, logger.finalize = guard(logger.log_metrics), guard(logger.finalize)
    if isinstance(logger, WandbLogger):
        import wandb

        finish = guard(wandb.teardown)
        session.exit_stack.push(lambda kind, *_: finish(int(kind is not None)))
    return logger


class _ErrorTolerantCall:
    """Reports the first error of a service, and continues.

    A SIGTERM to all processes of a job first ends the one that sends metrics.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._is_lost = False

    def __call__(self, send: Callable[..., None]) -> Callable[..., None]:
        def attempt(*args: Any, **kwargs: Any) -> None:
            try:
                send(*args, **kwargs)
            # This is the border to a service, which can raise any error.
            except Exception as error:
                if not self._is_lost:
                    reason = redact(one_line(error))
                    message = f"{self._key} no longer gets metrics ({reason}); the run continues."
                    print_error(message)
                self._is_lost = True

        return attempt


def next_step(checkpoint: Path | None, *, is_own: bool) -> int:
    """Return the first step after `checkpoint`.

    Without a checkpoint it is 0, where texts and settings are logged.
    """
    if checkpoint is None:
        return 0
    state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    # Lightning logs a custom module by the number of batches, with any optimizers.
    batches = state["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["ready"]
    return (batches if is_own else state["global_step"]) + 1
