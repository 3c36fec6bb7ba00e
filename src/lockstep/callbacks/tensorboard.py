"""Write the metrics of a run for TensorBoard.

Event files of train are in the folder of the run, and those of validation and test are in folders
inside it. TensorBoard shows each folder with event files as a run in one color, and metrics of the
same name in one chart. Therefore, a loss has the same name in all three folders, and train and
validation differ in color.
"""

from collections.abc import Mapping
from pathlib import Path

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.tensorboard import SummaryWriter
from typing_extensions import override

from lockstep.runs.folder import CURVES, RunFolder

# TensorBoard orders charts by these names, and opens the first two groups, accuracy and loss.
TAGS = {name: f"optimization/{name}" for name in ("learning_rate", "gradient_norm", "loss_scale")}


def split_and_tag(name: str) -> tuple[str, str]:
    """Return the split of a metric, and its name in the files of the split.

    `val/loss` is `loss` of `val`, and `train_step/loss` is `loss/step` of `train`. Metrics without
    a split are written to the files of `train`.
    """
    group, _, quantity = name.partition("/")
    split, _, kind = group.partition("_")
    if not quantity or split not in CURVES:
        return "train", TAGS.get(name, name)
    return split, f"{quantity}/{kind}" if kind else quantity


class SplitTensorBoardLogger(TensorBoardLogger):
    """TensorBoard's logger with one name for a metric in all splits, so that they share a chart.

    `val/loss` is written as `loss` to the files of val below the run folder `save_dir`, and
    `train/loss` as `loss` to those of train. TensorBoard drops points of earlier sessions from the
    optimizer step `purge_step` on, because these steps are trained again. The points of an
    interrupted test are dropped at the step before, too.
    """

    def __init__(self, *, save_dir: str, purge_step: int = 0) -> None:
        super().__init__(
            save_dir, name="", version="", default_hp_metric=False, purge_step=purge_step
        )
        self._purge_step = purge_step
        self._others: dict[str, SummaryWriter] = {}

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        for name, value in metrics.items():
            split, tag = split_and_tag(name)
            self.writer(split).add_scalar(tag, value, step)

    def writer(self, split: str) -> SummaryWriter:
        """Return the writer of the event files of a split. Only rank 0 may call it."""
        if split == "train":
            return self.experiment
        if split not in self._others:
            folder = RunFolder(Path(self.save_dir)).curves(split)
            purge_step = max(0, self._purge_step - 1) if split == "test" else self._purge_step
            self._others[split] = SummaryWriter(str(folder), purge_step=purge_step)
        return self._others[split]

    @override
    @rank_zero_only
    def save(self) -> None:
        """Flush the events.

        Lightning's own method also writes the hyperparameters, which are in config.yaml.
        """
        for writer in (self.experiment, *self._others.values()):
            writer.flush()

    @override
    @rank_zero_only
    def finalize(self, status: str) -> None:
        super().finalize(status)
        for writer in self._others.values():
            writer.close()
