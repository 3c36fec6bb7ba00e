"""Loss and metrics of a trained network on a split, by any number of workers."""

from typing import Any

from lockstep.config import validation
from lockstep.runs.files import write_json
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World
from lockstep.system.signals import SignalFlag
from lockstep.system.terminal import show_table
from lockstep.training import assembly, session


def evaluate(
    folder: RunFolder, world: World | None, flag: SignalFlag, *, config: dict[str, Any], split: str, checkpoint: str
) -> int:
    """Evaluate `checkpoint` on `split` of the run's data; print the result, and write scores.json into `folder`."""
    settings = validation.check_tree(config)
    with session.opened(folder, settings, world) as here:
        data = assembly.image_data(here)
        module = assembly.classifier(here, assembly.image_format(data), total_steps=1)
        trainer = assembly.lightning_trainer(here, logger=False, enable_checkpointing=False)
        run = trainer.test if split == "test" else trainer.validate
        run(module, data, ckpt_path=checkpoint, weights_only=True, verbose=False)
        if here.rank == 0:
            num_images = len(data.splits.test if split == "test" else data.splits.val)
            write_json(folder.scores, module.metrics)
            show_table(
                f"{checkpoint} on {num_images:,} {split} images",
                [(name.partition("/")[2], f"{value:.6f}") for name, value in sorted(module.metrics.items())],
            )
    return 0
