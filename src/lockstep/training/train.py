"""One training run, from its saved configuration to its summary.

Every rank runs this from top to bottom. The best trial of a sweep is tested later, by `test`.
"""

import dataclasses
import gc
import time
from pathlib import Path

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, Timer
from lightning.pytorch.utilities.model_helpers import is_overridden

from lockstep.assembly import run_parts, try_out
from lockstep.assembly.precision import end_training_precision
from lockstep.assembly.session import Session, agreed_checkpoint, open_session
from lockstep.callbacks.best import Relocation
from lockstep.callbacks.console import Console
from lockstep.callbacks.custom_module import metrics_of, steps_done
from lockstep.callbacks.record import Record
from lockstep.callbacks.stop import Stopped, StopTogether
from lockstep.config.checks import metric_names, signatures
from lockstep.config.errors import refuse
from lockstep.config.saved import config_file
from lockstep.config.saved_run import evaluation_precision
from lockstep.data.module import ImageData
from lockstep.distributed.batch_norm import ExactBatchNorm
from lockstep.inference.reliability import calibrate, report_test
from lockstep.models.classifier import Classifier
from lockstep.runs.files import JsonObject
from lockstep.runs.folder import EXIT_STOPPED, PRUNED, RunFolder
from lockstep.system import internals, provenance
from lockstep.system.launcher import World
from lockstep.system.signals import SignalFlag
from lockstep.tasks.vectors import Regression
from lockstep.training import observers
from lockstep.training.summary import (
    facts,
    metrics_of_test,
    show_header,
    show_stopped,
    show_summary,
    summarize,
)


def train(
    folder: RunFolder, world: World | None, flag: SignalFlag, *, command: str, has_test: bool
) -> int:
    """Train the run in `folder`, from its last checkpoint if there is one.

    Returns the exit code. `command` resumes the run after a stop. If `has_test`, it is tested at
    the end.
    """
    config = config_file.load(folder.config)
    # This check requires torch, so the check of the command does not include it.
    refuse(signatures.errors([config_file.to_tree(config)]))
    with open_session(folder, config, world) as session:
        resumed_from = agreed_checkpoint(session, folder.last_checkpoint)
        session, data, module, first_callbacks = prepare_training(
            session, is_new=resumed_from.path is None
        )
        if session.rank == 0:
            folder.note(environment=provenance.describe())
            show_header(session, data, module, is_resumed=resumed_from.path is not None)
        callbacks = observers.build_callbacks(config)
        checkpoint = observers.set_checkpoint_folders(callbacks, folder)
        monitor = checkpoint and checkpoint.monitor
        profiler = observers.build_profiler(config, folder)
        timer = next((callback for callback in callbacks if isinstance(callback, Timer)), None)
        record = Record(
            folder,
            facts={"name": config.run_name, **facts(session, data)},
            monitor=None if config.data.validate_on_test else monitor,
            note=resumed_from.note,
        )
        stop = StopTogether(
            flag,
            requested=folder.stop_request,
            stopping=record.begin_stop,
            checkpoint=folder.last_checkpoint,
            max_time_s=config.trainer.max_time_s,
            timeout=session.timeout,
        )
        console_metrics = () if config.has_custom_module else metric_names.names(config)
        console = [] if config.silent else [Console(record, console_metrics)]
        trainer = run_parts.lightning_trainer(
            session,
            module,
            callbacks=[*first_callbacks, record, Relocation(), *console, *callbacks, stop],
            logger=observers.build_loggers(
                session, observers.next_step(resumed_from.path, is_own=config.has_custom_module)
            ),
            profiler=profiler,
            max_epochs=config.trainer.max_epochs,
            log_every_n_steps=config.trainer.log_every_n_steps,
            check_val_every_n_epoch=config.trainer.check_val_every_n_epoch,
            enable_checkpointing=True,
        )
        if config.data.folds is not None:
            # The test needs it, and the source may change during a training.
            import lockstep.inference.predict  # noqa: F401
        norms = ExactBatchNorm()
        if session.device.type == "cuda" and not config.has_custom_module:
            # Lightning does this for several workers. On one GPU it enables the faster kernels.
            norms.apply(module)
        # Garbage collection then ignores all objects that exist here. No collection is run before,
        # because it copies pages that workers share.
        gc.freeze()
        start = time.monotonic()
        try:
            trainer.fit(module, data, ckpt_path=resumed_from.path, weights_only=True)
        except Stopped as stopped:
            state = "pruned" if stopped.reason.endswith(PRUNED) else "stopped"
            record.end(trainer, module, state, stopped.reason, signal=stopped.signal)
            if session.rank == 0:
                folder.clear_stop()
                show_stopped(session, steps_done(trainer, module), stopped, command)
            return EXIT_STOPPED
        finally:
            norms.revert(module)
            if isinstance(module, Classifier):
                module.drop_graphs()
        end_training_precision(trainer, module)
        record.training_s = time.monotonic() - start
        if timer is not None:
            record.training_s = timer.time_elapsed("train")
        has_best = checkpoint is not None and folder.best_checkpoint.exists()
        best = agreed_checkpoint(session, folder.best_checkpoint).path if has_best else None
        if config.calibrate:
            calibrate(session, data, module, best)
        results = run_test(session, trainer, module, data, best) if has_test else {}
        if session.rank == 0:
            summary = summarize(session, module, data, checkpoint, record) | results
            folder.write_summary(summary)
            folder.clear_stop()
            show_summary(session, summary)
        record.end(trainer, module, "finished", "early stopping" if trainer.should_stop else "")
        return 0


def run_test(
    session: Session,
    trainer: Trainer,
    module: LightningModule,
    data: ImageData,
    checkpoint: Path | None,
) -> JsonObject:
    """Test a module, if it has a `test_step`. Every rank must call it.

    The weights are those of `checkpoint`, if there is one. Returns the facts about its
    probabilities for summary.json.
    """
    if not is_overridden("test_step", module):
        return {}
    trainer.test(module, data, ckpt_path=checkpoint, weights_only=True, verbose=False)
    results = report_test(session, data, module)
    if session.config.data.folds is not None:
        from lockstep.inference.predict import write_fold

        results |= write_fold(session, data, module)
    return results


def test(folder: RunFolder, world: World | None, flag: SignalFlag) -> int:
    """Test a finished run that was trained without its test set, as `train` would have.

    Returns the exit code.
    """
    config = config_file.load(folder.config)
    trainer_section = config.trainer.model_copy(update={"precision": evaluation_precision(config)})
    config = config.model_copy(update={"trainer": trainer_section})
    with open_session(folder, config, world) as session:
        steps = folder.read_summary()["steps"]
        has_best = folder.best_checkpoint.exists()
        checkpoint = agreed_checkpoint(
            session, folder.best_checkpoint if has_best else folder.last_checkpoint
        ).path
        data = run_parts.image_data(session, folder)
        module, first_callbacks = run_parts.build_module(session, run_parts.image_format(data))
        callbacks = [
            callback
            for callback in observers.build_callbacks(config)
            if not isinstance(callback, ModelCheckpoint)
        ]
        trainer = run_parts.lightning_trainer(
            session,
            module,
            callbacks=[*first_callbacks, *callbacks],
            logger=observers.build_loggers(session, steps + 1),
            enable_checkpointing=False,
        )
        internals.set_global_step(trainer, steps)
        results = run_test(session, trainer, module, data, checkpoint)
        if session.rank == 0:
            metrics = metrics_of(trainer, module)
            folder.write_summary(
                folder.read_summary() | metrics_of_test(module, data, metrics) | results
            )
            folder.update_status(metrics=folder.read_status().get("metrics", {}) | metrics)
    return 0


def prepare_training(
    session: Session, *, is_new: bool
) -> tuple[Session, ImageData, LightningModule, list[Callback]]:
    """Build data and module, and check them together.

    Returns them with the session, whose class weights are resolved, and the callbacks that must
    come first. Every rank must call it. A new run gets the weights of `init_from`, or the
    pretrained ones of its network. Raises ConfigError if the parts do not fit together.
    """
    if (
        is_new
        and session.config.has_library_network
        and session.config.pretrained is True
        and session.config.init_from is None
    ):
        from lockstep.assembly import pretrained_weights

        pretrained_weights.download(session)  # The download comes before images are decoded.
    data = run_parts.image_data(session, session.folder, is_new=is_new)
    session = _resolve_class_weights(session, data)
    config = session.config
    image_format = run_parts.image_format(data)
    total_steps = config.trainer.max_epochs * data.batches("train").num_steps
    module, first_callbacks = run_parts.build_module(
        session, image_format, total_steps, is_trained=True
    )
    if isinstance(module, Classifier):
        data.augment = dataclasses.replace(data.augment, moved_targets=module.task.moved_targets)
        try_out.try_out(session, data, module)
        if is_new and isinstance(module.task, Regression):
            module.task.standardize(data.sampled_targets())
    if is_new and config.init_from is not None:
        from lockstep.training import initial_weights

        initial_weights.load(session, module, image_format)
    elif is_new and isinstance(module, Classifier) and hasattr(module.net, "origin"):
        from lockstep.assembly import pretrained_weights

        pretrained_weights.load_pretrained(session, module.net)
    return session, data, module, first_callbacks


def _resolve_class_weights(session: Session, data: ImageData) -> Session:
    """Replace class_weights=balanced by n / (K * n_k) in the session and in config.yaml."""
    # Data without counts were rejected before.
    config, counts = session.config, data.class_counts or []
    if config.task.arguments().get("class_weights") != metric_names.BALANCED:
        return session
    weights = [sum(counts) / (len(counts) * count) for count in counts]
    task = config.task.model_copy(update={"class_weights": weights})
    session = dataclasses.replace(session, config=config.model_copy(update={"task": task}))
    if session.rank == 0:
        config_file.save(session.config, session.folder.config)
    return session
