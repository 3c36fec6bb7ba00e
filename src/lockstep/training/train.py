"""One training run, from its saved configuration to its summary. Every rank reads this straight down."""

import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, Timer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import AdvancedProfiler, PyTorchProfiler, SimpleProfiler
from lightning.pytorch.utilities.model_helpers import is_overridden

from lockstep.callbacks.console import Console
from lockstep.callbacks.own_module import metrics_of, steps_done
from lockstep.callbacks.record import Record
from lockstep.callbacks.relocation import Relocation
from lockstep.callbacks.stop import Stopped, StopTogether
from lockstep.callbacks.wandb_logger import ResumableWandbLogger
from lockstep.config import build, measured, project, rules, signatures, storage
from lockstep.config.errors import ConfigError
from lockstep.config.schema import Config
from lockstep.config.target_sections import Open
from lockstep.runs.folder import EXIT_STOPPED, RunFolder
from lockstep.system import internals, provenance
from lockstep.system.launcher import World
from lockstep.system.signals import SignalFlag
from lockstep.training import assembly, session
from lockstep.training.preparation import prepared
from lockstep.training.session import Session
from lockstep.training.staging import together
from lockstep.training.summary import facts, show_header, show_stopped, show_summary, summarize, tested

PROFILERS = {"simple": SimpleProfiler, "advanced": AdvancedProfiler, "pytorch": PyTorchProfiler}


def train(
    folder: RunFolder, world: World | None, flag: SignalFlag, *, command: str, has_test: bool, is_cell: bool = False
) -> int:
    """Train the run in `folder` from where its last checkpoint is, or from the start. Returns the exit code.

    `command` is what goes on with the run after a stop. Without `has_test` the test set is left alone. `is_cell` says
    that a notebook shows what rank 0 prints.
    """
    config = storage.load(folder.config)
    if errors := signatures.errors([storage.to_tree(config)]):  # the second round of the check
        raise ConfigError(errors)
    with session.opened(folder, config, world) as here:
        resumed_from = session.checkpoint(here, folder.last_checkpoint)
        data, module, first = prepared(here, is_new=resumed_from.path is None)
        first_step = _next_step(resumed_from.path, is_own=config.has_own_module)
        if here.rank == 0:
            folder.note(environment=provenance.describe(project.root()))
            show_header(here, data, module, is_resumed=resumed_from.path is not None)
        callbacks = built_callbacks(config)
        checkpoint = _prepared_checkpoint(callbacks, folder)
        timer = next((callback for callback in callbacks if isinstance(callback, Timer)), None)
        record = Record(
            folder,
            facts={"name": config.run_name, **facts(here, data)},
            monitor=checkpoint.monitor if checkpoint else None,
            first_step="compiling the network" if config.compile else "",
            note=resumed_from.note,
        )
        stop = StopTogether(folder, flag, record, max_time_s=config.trainer.max_time_s, timeout=here.timeout)
        names = () if config.has_own_module else measured.names(config)
        console = [] if config.silent else [Console(record, names, is_cell=is_cell)]
        trainer = _trainer(here, module, [*first, record, Relocation(), *console, *callbacks, stop], first_step)
        started = time.monotonic()
        try:
            trainer.fit(module, data, ckpt_path=resumed_from.path, weights_only=True)
        except Stopped as stopped:
            record.end(trainer, module, "stopped", stopped.reason, signal=stopped.signal)
            if here.rank == 0:
                folder.clear_stop()
                show_stopped(here, steps_done(trainer, module), stopped, command)
            return EXIT_STOPPED
        used = timer.time_elapsed("train") if timer is not None else time.monotonic() - started
        if has_test and is_overridden("test_step", module):
            trainer.test(module, data, ckpt_path=_best(here, checkpoint), weights_only=True, verbose=False)
        if here.rank == 0:
            summary = summarize(here, trainer, module, data, checkpoint, record, used)
            folder.write_summary(summary)
            folder.clear_stop()
            show_summary(here, summary)
        record.end(trainer, module, "finished", "early stopping" if trainer.should_stop else "")
        return 0


def test(folder: RunFolder, world: World | None, flag: SignalFlag) -> int:
    """Measure a finished run that was trained without its test set, as `train` would have. Returns the exit code."""
    config = storage.load(folder.config)
    with session.opened(folder, config, world) as here:
        steps = folder.read_summary()["steps"]
        has_best = folder.best_checkpoint.exists()
        checkpoint = session.checkpoint(here, folder.best_checkpoint if has_best else folder.last_checkpoint).path
        data = assembly.image_data(here, folder)
        module, first = assembly.module_to_evaluate(here, assembly.image_format(data))
        callbacks = built_callbacks(config)
        trainer = assembly.lightning_trainer(
            here,
            module,
            callbacks=[*first, *(callback for callback in callbacks if not isinstance(callback, ModelCheckpoint))],
            logger=_loggers(here, steps + 1),
            enable_checkpointing=False,
        )
        internals.set_global_step(trainer, steps)
        if is_overridden("test_step", module):
            trainer.test(module, data, ckpt_path=checkpoint, weights_only=True, verbose=False)
        if here.rank == 0:
            metrics = metrics_of(trainer, module)
            folder.write_summary(folder.read_summary() | tested(module, data, metrics))
            folder.update_status(metrics=folder.read_status().get("metrics", {}) | metrics)
    return 0


def _trainer(here: Session, module: L.LightningModule, callbacks: list[Callback], first_step: int) -> L.Trainer:
    settings = here.config.trainer
    return assembly.lightning_trainer(
        here,
        module,
        callbacks=callbacks,
        logger=_loggers(here, first_step),
        profiler=settings.profiler and PROFILERS[settings.profiler](dirpath=here.folder.path, filename="profile"),
        max_epochs=settings.max_epochs,
        log_every_n_steps=settings.log_every_n_steps,
        check_val_every_n_epoch=settings.check_val_every_n_epoch,
        enable_checkpointing=True,
    )


def built_callbacks(config: Config) -> list[Callback]:
    """The callbacks of the configuration. Raises ConfigError for one derived from a callback that does not work here.

    The check of a configuration, which does not import them, has seen their names alone.
    """
    built: list[Callback] = []
    for name, section in config.callbacks.items():
        if section is None:
            continue
        built.append(build.build(section))
        lightnings = (kind.__name__ for kind in type(built[-1]).__mro__ if kind.__module__.startswith("lightning."))
        if (kind := next(lightnings, "")) in rules.INSTEAD:
            raise ConfigError([rules.unfit_callback(f"callbacks.{name}", section.target, kind)])
    return built


def _best(here: Session, checkpoint: ModelCheckpoint | None) -> Path | None:
    """The best state, where there is one; None for the state at the end. Every rank must call it."""
    has_best = checkpoint is not None and here.folder.best_checkpoint.exists()
    return session.checkpoint(here, here.folder.best_checkpoint).path if has_best else None


def _prepared_checkpoint(callbacks: list[Callback], folder: RunFolder) -> ModelCheckpoint | None:
    """Give every ModelCheckpoint without a folder that of the run; return the first."""
    checkpoints = [callback for callback in callbacks if isinstance(callback, ModelCheckpoint)]
    for callback in checkpoints:
        if callback.dirpath is None:
            callback.dirpath = str(folder.checkpoints)
    return checkpoints[0] if checkpoints else None


def _loggers(here: Session, purge_step: int) -> list[Logger]:
    """The loggers of the configuration, writing into the run folder; none on other ranks' behalf.

    Those that go on in the files of earlier sessions forget what these wrote from `purge_step` on: these steps are done
    again. Every rank must call it. Raises ConfigError on all ranks where one cannot begin.
    """
    sections = [section for section in here.config.logger.values() if section is not None]
    loggers = together(lambda: [_logger(here, section, purge_step) for section in sections])
    for logger in loggers:
        if isinstance(logger, ResumableWandbLogger) and here.rank == 0:
            here.held.push(lambda kind, *_, logger=logger: logger.end(is_well=kind is None))
    return loggers


def _logger(here: Session, section: Open, purge_step: int) -> Logger:
    supplied: dict[str, Any] = {"save_dir": str(here.folder.path)}
    if section.target.endswith(("TensorBoardLogger", ".ResumableCSVLogger")):
        # also of a new run: TensorBoard takes the first session mark it meets for no restart, and purges nothing
        supplied["purge_step"] = purge_step
    elif section.target.endswith(".ResumableWandbLogger"):
        supplied["rank"] = here.rank
    return build.build(section, **supplied)


def _next_step(checkpoint: Path | None, *, is_own: bool) -> int:
    """The first step that a run does after `checkpoint`; 0, where texts and settings stand, without one."""
    if checkpoint is None:
        return 0
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    # of a module of the user's own Lightning's points stand at the number of batches, whatever its optimizers
    batches = saved["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["ready"]
    return (batches if is_own else saved["global_step"]) + 1
