"""Evaluation: loss and metrics of a trained network on a split, by any number of workers."""

from pathlib import Path
from typing import Any

from lightning.pytorch.utilities.model_helpers import is_overridden

from lockstep.callbacks.own_module import metrics_of
from lockstep.config import errors, validation
from lockstep.runs.files import write_json
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World
from lockstep.system.signals import SignalFlag
from lockstep.system.terminal import show_table
from lockstep.system.wording import plural
from lockstep.training import assembly, session


def evaluate(
    folder: RunFolder,
    world: World | None,
    flag: SignalFlag,
    *,
    config: dict[str, Any],
    run: str,
    split: str,
    checkpoint: str,
) -> int:
    """Evaluate `checkpoint` of `run` on `split` of its data; print the result, and write scores.json into `folder`."""
    settings = validation.check_tree(config)
    with session.opened(folder, settings, world) as here:
        data = assembly.image_data(here, RunFolder(Path(run)))
        module, first = assembly.module_to_evaluate(here, data)
        trainer = assembly.lightning_trainer(here, module, callbacks=first, logger=False, enable_checkpointing=False)
        step = "test_step" if split == "test" else "validation_step"
        if not is_overridden(step, module):
            raise errors.ConfigError([f"module._target_={settings.module.target} has no {step}: add one"])
        measure = trainer.test if split == "test" else trainer.validate
        measure(module, data, ckpt_path=checkpoint, weights_only=True, verbose=False)
        if here.rank == 0:
            metrics = metrics_of(trainer, module)
            write_json(folder.scores, metrics)
            show_table(
                f"{checkpoint} on {plural(data.batches(split).num_epoch_samples, f'{split} image')}",
                [(name.partition("/")[2], f"{value:.6f}") for name, value in sorted(metrics.items())],
            )
    return 0
