"""One training run, from its saved configuration to its summary. Every rank reads this straight down."""

import functools
import json
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, Timer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import AdvancedProfiler, Profiler, PyTorchProfiler, SimpleProfiler

from lockstep.callbacks.console import Console
from lockstep.callbacks.record import Record
from lockstep.callbacks.stop import Stopped, StopTogether
from lockstep.config import build, rules, storage
from lockstep.data.module import ImageData
from lockstep.models.classifier import Classifier
from lockstep.runs.files import write_atomically
from lockstep.runs.folder import EXIT_STOPPED, RunFolder
from lockstep.runs.naming import quoted, shown
from lockstep.system import internals, provenance
from lockstep.system.launcher import World
from lockstep.system.signals import SignalFlag
from lockstep.system.terminal import duration, show_table
from lockstep.training import assembly, session
from lockstep.training.session import Session


def train(folder: RunFolder, place: World | None, flag: SignalFlag, *, command: str, has_test: bool) -> int:
    """Train the run in `folder` from where its last checkpoint is, or from the start. Returns the exit code.

    `command` is what goes on with the run after a stop. Without `has_test` the test set is left alone.
    """
    config = storage.load(folder.config)
    with session.opened(folder, config, place) as here:
        data = assembly.image_data(here)
        total_steps = config.trainer.max_epochs * data.steps_per_epoch
        module = assembly.classifier(here, assembly.image_format(data), total_steps=total_steps, is_trained=True)
        assembly.refuse_single_values(config, data, module)
        resumed_from = session.checkpoint(here, folder.last_checkpoint)
        first_step = _next_step(resumed_from.path)
        facts = {
            "name": config.run_name,
            "workers": here.world_size,
            "device": _device_name(here),
            "precision": here.precision,
            "train_images": data.train_dataloader().batch_sampler.num_epoch_samples,
        }
        if here.rank == 0:
            write_atomically(folder.environment, json.dumps(provenance.describe(), indent=1) + "\n")
            if not config.silent:
                _show_header(here, data, module, is_resumed=resumed_from.path is not None)
        callbacks = [build.build(section) for section in config.callbacks.values() if section is not None]
        checkpoint = _prepared_checkpoint(callbacks, folder)
        timer = next((callback for callback in callbacks if isinstance(callback, Timer)), None)
        record = Record(
            folder,
            facts=facts,
            monitor=checkpoint.monitor if checkpoint else None,
            first_step="compiling the network" if config.compile else "",
            note=resumed_from.note,
        )
        stop = StopTogether(folder, flag, record, max_time_s=config.trainer.max_time_s, timeout=here.timeout)
        trainer = assembly.lightning_trainer(
            here,
            callbacks=[record, *([] if config.silent else [Console(record)]), *callbacks, stop],
            logger=_loggers(here, first_step),
            profiler=_profiler(here),
            max_epochs=config.trainer.max_epochs,
            log_every_n_steps=config.trainer.log_every_n_steps,
            check_val_every_n_epoch=config.trainer.check_val_every_n_epoch,
            enable_checkpointing=True,
        )
        started = time.monotonic()
        try:
            trainer.fit(module, data, ckpt_path=resumed_from.path, weights_only=True)
        except Stopped as stopped:
            record.end(trainer, module, "stopped", stopped.reason, signal=stopped.signal)
            if here.rank == 0:
                folder.clear_stop()
                if not config.silent:
                    reason = f"Stopped after step {trainer.global_step} ({stopped.reason})"
                    print(f"{reason}, nothing is lost. Go on with:\n  {command}", flush=True)
                    if stopped.is_out_of_time:
                        print("which stops after as long again; add trainer.max_time_s=null for no limit", flush=True)
            return EXIT_STOPPED
        used = timer.time_elapsed("train") if timer is not None else time.monotonic() - started
        if has_test:
            has_best = checkpoint is not None and folder.best_checkpoint.exists()
            best = session.checkpoint(here, folder.best_checkpoint).path if has_best else None
            trainer.test(module, data, ckpt_path=best, weights_only=True, verbose=False)
        if here.rank == 0:
            summary = _summary(here, trainer, module, data, checkpoint, record, used)
            folder.write_summary(summary)
            folder.clear_stop()
            if not config.silent:
                _show_summary(folder, summary)
        record.end(trainer, module, "finished", "early stopping" if trainer.should_stop else "")
        return 0


def test(folder: RunFolder, place: World | None, flag: SignalFlag) -> int:
    """Measure a finished run that was trained without its test set, as `train` would have. Returns the exit code."""
    config = storage.load(folder.config)
    with session.opened(folder, config, place) as here:
        steps = folder.read_summary()["steps"]
        has_best = folder.best_checkpoint.exists()
        checkpoint = session.checkpoint(here, folder.best_checkpoint if has_best else folder.last_checkpoint).path
        data = assembly.image_data(here)
        module = assembly.classifier(here, assembly.image_format(data), total_steps=1)
        callbacks = [build.build(section) for section in config.callbacks.values() if section is not None]
        trainer = assembly.lightning_trainer(
            here,
            callbacks=[callback for callback in callbacks if not isinstance(callback, ModelCheckpoint)],
            logger=_loggers(here, steps + 1),
            enable_checkpointing=False,
        )
        internals.set_global_step(trainer, steps)
        trainer.test(module, data, ckpt_path=checkpoint, weights_only=True, verbose=False)
        if here.rank == 0:
            folder.write_summary(folder.read_summary() | _tested(module))
            folder.update_status(metrics=folder.read_status().get("metrics", {}) | module.metrics)
    return 0


def _prepared_checkpoint(callbacks: list[Callback], folder: RunFolder) -> ModelCheckpoint | None:
    """Give every ModelCheckpoint without a folder that of the run; return the first."""
    found = [callback for callback in callbacks if isinstance(callback, ModelCheckpoint)]
    for callback in found:
        if callback.dirpath is None:
            callback.dirpath = str(folder.checkpoints)
    return found[0] if found else None


def _loggers(here: Session, purge_step: int) -> list[Logger]:
    """The loggers of the configuration, writing into the run folder; none on other ranks' behalf.

    TensorBoard forgets what earlier sessions wrote from `purge_step` on: these steps are done again.
    """
    sections = [section for section in here.config.logger.values() if section is not None]
    supplied: dict[str, Any] = {"save_dir": str(here.folder.path)}
    loggers: list[Logger] = []
    for section in sections:
        extra = dict(supplied)
        if section.target.endswith("TensorBoardLogger"):
            # also of a new run: TensorBoard takes the first session mark it meets for no restart, and purges nothing
            extra["purge_step"] = purge_step
        loggers.append(build.build(section, **extra))
    return loggers


def _next_step(checkpoint: Path | None) -> int:
    """The first step that a run does after `checkpoint`; 0, where texts and settings stand, without one."""
    if checkpoint is None:
        return 0
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    return saved["global_step"] + 1


def _profiler(here: Session) -> Profiler | None:
    kinds: dict[str, functools.partial[Profiler]] = {
        "simple": functools.partial(SimpleProfiler),
        "advanced": functools.partial(AdvancedProfiler),
        "pytorch": functools.partial(PyTorchProfiler),
    }
    name = here.config.trainer.profiler
    return kinds[name](dirpath=here.folder.path, filename="profile") if name else None


def _summary(
    here: Session,
    trainer: L.Trainer,
    module: Classifier,
    data: ImageData,
    checkpoint: ModelCheckpoint | None,
    record: Record,
    used_s: float,
) -> dict[str, Any]:
    monitor = checkpoint.monitor if checkpoint is not None else None
    score = checkpoint.best_model_score if checkpoint is not None else None
    value = score.item() if score is not None else module.metrics.get(rules.MONITOR)
    times = sorted(record.epoch_times_s)
    return {
        **_tested(module),
        "monitor": monitor or rules.MONITOR,
        "best": value,
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        "training_s": round(used_s, 3),
        "epoch_s_median": round(times[len(times) // 2], 4) if times else None,
        "images_per_s": round(record.images_per_s, 1) if record.images_per_s else None,
        "parameters": sum(p.numel() for p in module.net.parameters()),
        "workers": here.world_size,
        "device": _device_name(here),
        "precision": here.precision,
        "train_images": len(data.splits.train.labels),
        "val_images": len(data.splits.val.labels),
        "test_images": len(data.splits.test.labels),
        "best_checkpoint": str(here.folder.best_checkpoint) if here.folder.best_checkpoint.exists() else None,
    }


def _tested(module: Classifier) -> dict[str, float | None]:
    """What the test measured, None where there was none."""
    names = ("test/accuracy", "test/loss", "test_flip/accuracy")
    return {name.replace("/", "_"): module.metrics.get(name) for name in names}


# -- what a person sees ------------------------------------------------------------------------------------------------


def _device_name(here: Session) -> str:
    if here.device.type == "cuda":
        return torch.cuda.get_device_name(here.device)
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads > 1 else ''} each"


def _show_header(here: Session, data: ImageData, module: Classifier, *, is_resumed: bool) -> None:
    config = here.config
    channels, height, width = data.image_shape
    num_parameters = sum(p.numel() for p in module.net.parameters())
    count = here.world_size
    micro = config.global_batch_size // config.trainer.accumulate_grad_batches
    total = sum(here.loads)
    shares = sorted({-(-micro * load // total) for load in here.loads}, reverse=True)
    local = " or ".join(str(share) for share in shares)
    batch = f"{config.global_batch_size} images a step"
    if config.trainer.accumulate_grad_batches > 1:
        batch += f" = {config.trainer.accumulate_grad_batches} micro-batches of {micro}"
    if count > 1:
        batch += f", up to {local} on each worker"
    splits = data.splits
    show_table(
        f"Lockstep: {config.model.target.rpartition('.')[2]} on {config.data.target.rpartition('.')[2]}"
        + (", going on" if is_resumed else ""),
        [
            (
                "data",
                f"{len(splits.train.labels):,} train, {len(splits.val.labels):,} val, {len(splits.test.labels):,} test "
                f"images of {channels}x{height}x{width}, {len(data.class_names)} classes, {data.placement}",
            ),
            ("network", f"{num_parameters:,} parameters"),
            ("workers", f"{count} x {_device_name(here)}" if count > 1 else _device_name(here)),
            ("batch", batch),
            ("precision", f"{here.precision} ({here.precision_reason})"),
            ("layout", f"{module.layout.name} ({module.layout.reason})"),
            ("run folder", shown(here.folder.path)),
        ],
    )


def _show_summary(folder: RunFolder, summary: dict[str, Any]) -> None:
    run = quoted(folder.path)
    rows: list[tuple[str, str]] = []
    if summary["test_accuracy"] is not None:
        rows.append(("test accuracy", f"{summary['test_accuracy']:.4f} on {summary['test_images']:,} images"))
        rows.append(("test loss", f"{summary['test_loss']:.4f}"))
    if summary["test_flip_accuracy"] is not None:
        rows.append(("with mirror images", f"{summary['test_flip_accuracy']:.4f} test accuracy"))
    if summary["best_checkpoint"]:
        rows.append(("best", f"{summary['monitor']} {summary['best']:.4f}, {shown(folder.best_checkpoint)}"))
    speed = f", {summary['images_per_s']:,.0f} images/s" if summary["images_per_s"] else ""
    epoch = f", {duration(summary['epoch_s_median'])} an epoch" if summary["epoch_s_median"] else ""
    if folder.pictures.exists():
        rows.append(("pictures", shown(folder.pictures)))
    rows += [
        ("training", f"{duration(summary['training_s'])}{epoch}{speed}"),
        ("watch", f"lockstep board --logdir {run}"),
        ("evaluate", f"lockstep eval {run}"),
        ("predict", f"lockstep predict {run} FOLDER --output predictions.csv"),
    ]
    show_table(f"Finished {summary['epochs']} epochs", rows)
