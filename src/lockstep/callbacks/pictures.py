"""What the network gets right and wrong, as pictures in the run folder and in TensorBoard."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.tensorboard import SummaryWriter
from typing_extensions import override

from lockstep.callbacks.events import SplitTensorBoardLogger
from lockstep.data.images.pixels import Pixels
from lockstep.data.module import ImageData
from lockstep.models.classifier import Classifier
from lockstep.models.outcomes import Findings, Outcomes
from lockstep.runs.files import atomic_file, write_json
from lockstep.runs.folder import RunFolder
from lockstep.tasks.builtin import Classification

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 130


class Pictures(L.Callback):
    """Draws the test at the end of a run, and the validation of every `every_n_epochs`-th epoch; None: of no epoch.

    Of a classification of whole images: other tasks have no pictures. Confusion matrix, the first `num_images` images
    of the split with what they were taken for, and as many of its most confident mistakes, all from the samples of
    every rank. PNG files in pictures/ of the run folder have the newest state of each split, TensorBoard has them all.
    Raises ValueError for a number below 1.
    """

    def __init__(self, *, every_n_epochs: int | None, num_images: int) -> None:
        if every_n_epochs is not None and every_n_epochs < 1:
            raise ValueError(f"callbacks.pictures.every_n_epochs={every_n_epochs} must be at least 1, or null")
        if num_images < 1:
            raise ValueError(f"callbacks.pictures.num_images={num_images} must be at least 1")
        self._every_n_epochs = every_n_epochs
        self._num_images = num_images
        self._outcomes: Outcomes | None = None

    @override
    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin to collect outcomes in the epochs that are drawn."""
        every = self._every_n_epochs
        if every is not None and trainer.state.fn == TrainerFn.FITTING and (trainer.current_epoch + 1) % every == 0:
            self._start(pl_module)

    @override
    def on_test_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._start(pl_module)

    @override
    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Take in the logits of a batch."""
        self._update(outputs, batch)

    on_test_batch_end = on_validation_batch_end

    @override
    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._draw(trainer, pl_module, "val")

    @override
    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._draw(trainer, pl_module, "test")

    def _start(self, pl_module: L.LightningModule) -> None:
        if isinstance(pl_module, Classifier) and isinstance(pl_module.task, Classification):
            self._outcomes = Outcomes(len(pl_module.image_format.class_names))

    def _update(self, logits: torch.Tensor | None, batch: Any) -> None:
        if self._outcomes is not None and logits is not None and logits.dim() == 2:
            self._outcomes.update(logits, batch.targets, batch.indices)

    def _draw(self, trainer: L.Trainer, pl_module: L.LightningModule, split: str) -> None:
        if self._outcomes is None:
            return
        findings, self._outcomes = self._outcomes.findings(), None
        if trainer.is_global_zero and findings is not None:
            assert isinstance(pl_module, Classifier)
            try:
                self._show(trainer, pl_module, split, findings)
            except Exception as error:  # the border: a training that is through must not be lost for a picture
                warnings.warn(f"The pictures of the {split} split are not complete: {error!r}", stacklevel=1)

    def _show(self, trainer: L.Trainer, module: Classifier, split: str, findings: Findings) -> None:
        from PIL import Image

        from lockstep.callbacks.plots import rendered, style

        folder = RunFolder(Path(trainer.default_root_dir)).pictures
        folder.mkdir(exist_ok=True)
        writers = [_writer(logger, split) for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        for path in folder.glob(f"{split}_*"):  # a network without mistakes has no picture of them
            path.unlink()
        _write_confusion(RunFolder(Path(trainer.default_root_dir)), module, split, findings)
        with style():
            for name, figure in _figures(trainer, module, split, findings, self._num_images):
                pixels = rendered(figure, DPI)
                with atomic_file(folder / f"{split}_{name}.png") as file:
                    Image.fromarray(pixels).save(file, "png", dpi=(DPI, DPI))
                for writer in writers:
                    writer.add_image(f"{split}/{name}", pixels, module.global_step, dataformats="HWC")


def _writer(logger: TensorBoardLogger, split: str) -> SummaryWriter:
    """What belongs to a split stands with its curves, and a test that is done again replaces it there."""
    return logger.writer(split) if isinstance(logger, SplitTensorBoardLogger) else logger.experiment


def _write_confusion(folder: RunFolder, module: Classifier, split: str, findings: Findings) -> None:
    """The numbers of the confusion matrix, for those who draw it themselves."""
    from lockstep.callbacks import plots

    names, counts = module.image_format.class_names, findings.confusion
    shown = plots.shown_classes(counts)
    facts = {"step": module.global_step, "num_classes": len(names), "classes": [names[number] for number in shown]}
    write_json(folder.confusion(split), {**facts, "counts": counts[np.ix_(shown, shown)].tolist()})


def _figures(
    trainer: L.Trainer, module: Classifier, split: str, findings: Findings, num_images: int
) -> Iterator[tuple[str, "Figure"]]:
    """One after the other, so that one is in memory at a time."""
    from lockstep.callbacks import plots

    data: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(data, ImageData)
    images = data.splits.val if split == "val" else data.splits.test
    names = module.image_format.class_names
    what = f"{split}, step {module.global_step:,}"
    counts = findings.confusion
    right = counts.trace()
    yield (
        "confusion_matrix",
        plots.confusion_matrix(counts, names, f"Confusion matrix: {right:,} of {counts.sum():,} right ({what})"),
    )
    first = np.arange(min(num_images, len(findings.labels)))
    worst = findings.worst(num_images)
    for name, rows, title in (
        ("predictions", first, f"Predictions ({what})"),
        ("worst_mistakes", worst, f"The most confident mistakes ({what})"),
    ):
        if len(rows):
            yield name, _grid(images.pixels, findings, rows, names, title)


def _grid(pixels: Pixels, findings: Findings, rows: Any, names: tuple[str, ...], title: str) -> "Figure":
    from lockstep.callbacks import plots

    shown = pixels[torch.from_numpy(findings.indices[rows])].numpy()
    captions, is_right = [], []
    for row in rows:
        true, predicted = names[findings.labels[row]], names[findings.predictions[row]]
        is_right.append(findings.labels[row] == findings.predictions[row])
        prediction = f"{plots.short(predicted)} {findings.probabilities[row]:.2f}"
        captions.append(prediction if is_right[-1] else f"{prediction}\nis {plots.short(true)}")
    return plots.image_grid(shown, captions, is_right, title)
