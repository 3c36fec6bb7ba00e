"""The test at the end of a training, or later for the best trial of a sweep."""

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.model_helpers import is_overridden

from lockstep.assembly import run_parts
from lockstep.assembly.session import Session, agreed_checkpoint, open_session
from lockstep.callbacks.custom_module import metrics_of
from lockstep.config.saved import config_file
from lockstep.config.saved_run import evaluation_precision
from lockstep.data.module import ImageData
from lockstep.inference.reliability import report_test
from lockstep.runs.folder import RunFolder
from lockstep.system import internals
from lockstep.system.launcher import World
from lockstep.system.signals import SignalFlag
from lockstep.training import observers
from lockstep.training.summary import metrics_of_test


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
            for callback in observers.built_callbacks(config)
            if not isinstance(callback, ModelCheckpoint)
        ]
        trainer = run_parts.lightning_trainer(
            session,
            module,
            callbacks=[*first_callbacks, *callbacks],
            logger=observers.built_loggers(session, steps + 1),
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


def run_test(
    session: Session,
    trainer: L.Trainer,
    module: L.LightningModule,
    data: ImageData,
    checkpoint: Path | None,
) -> dict[str, Any]:
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
