"""Draw right and wrong predictions in the run folder and in TensorBoard."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from typing_extensions import Doc, override

from lockstep.callbacks import reliability
from lockstep.callbacks.tensorboard import SplitTensorBoardLogger
from lockstep.data.module import ImageData
from lockstep.data.splits import Pixels
from lockstep.models.classifier import Classifier
from lockstep.runs.files import atomic_file, remove, write_json
from lockstep.runs.folder import RunFolder
from lockstep.system.types import Positive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lockstep.models.predictions import Findings


class Pictures(Callback):
    """Draws the predictions of classes in the test.

    The figures are a reliability diagram, a confusion matrix, the first `num_images` images with
    their predictions, and as many of the most confident mistakes. For labels, only the reliability
    diagram is drawn. The samples are those of all ranks. The figures are PNG files in pictures/ in
    the run folder, and images in TensorBoard.
    """

    def __init__(
        self,
        *,
        num_images: Annotated[
            Positive, Doc("number of predictions, and of most confident mistakes, to show")
        ],
    ) -> None:
        self._num_images = num_images

    @override
    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        callback = reliability.callback_of(trainer)
        if trainer.is_global_zero and callback is not None and callback.findings is not None:
            assert isinstance(pl_module, Classifier)
            try:
                self._show(trainer, pl_module, callback.findings)
            except Exception as error:  # A finished training must not be lost due to a figure.
                warnings.warn(f"The pictures of the test are incomplete: {error!r}", stacklevel=1)

    def _show(self, trainer: Trainer, module: Classifier, findings: "Findings") -> None:
        from PIL import Image

        from lockstep.callbacks import plots

        folder = RunFolder(Path(trainer.default_root_dir))
        folder.pictures.mkdir(exist_ok=True)
        # Old figures of mistakes would stay if the network makes no mistakes any more.
        for path in folder.pictures.glob("test_*"):
            remove(path)
        class_names, step = module.image_format.class_names, module.global_step
        if not findings.is_multilabel:
            class_indices = plots.displayed_classes(findings.confusion)
            matrix = {
                "step": step,
                "num_classes": len(class_names),
                "classes": [class_names[number] for number in class_indices],
                "counts": findings.confusion[np.ix_(class_indices, class_indices)].tolist(),
            }
            write_json(folder.confusion("test"), matrix)
        data: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        assert isinstance(data, ImageData)
        # Figures go into the event file of the test, where a repeated test replaces them.
        writers: list[Any] = []
        for logger in trainer.loggers:
            if isinstance(logger, SplitTensorBoardLogger):
                writers.append(logger.writer("test"))
            elif isinstance(logger, TensorBoardLogger):
                writers.append(logger.experiment)
        with plots.style():
            subtitle = f"test, step {step:,}"
            for name, figure in figures(
                data.splits.test.pixels, class_names, findings, self._num_images, subtitle
            ):
                path = folder.pictures / f"test_{name}.png"
                with atomic_file(path) as file:
                    figure.savefig(file, format="png", dpi=plots.DPI)
                for writer in writers:
                    pixels = np.asarray(Image.open(path).convert("RGB"))
                    writer.add_image(f"test/{name}", pixels, step, dataformats="HWC")


def figures(
    pixels: Pixels,
    class_names: tuple[str, ...],
    findings: "Findings",
    num_images: int,
    subtitle: str,
) -> Iterator[tuple[str, "Figure"]]:
    """Draw one figure after the other, so that only one is in memory."""
    from lockstep.callbacks import plots

    yield "reliability", plots.reliability(findings, subtitle)
    if findings.is_multilabel:
        return
    counts = findings.confusion
    title = f"Confusion matrix: {counts.trace():,} of {counts.sum():,} right ({subtitle})"
    yield "confusion_matrix", plots.confusion_matrix(counts, class_names, title)
    first_rows = np.arange(min(num_images, len(findings.labels)))
    if len(first_rows):
        title = f"Predictions ({subtitle})"
        yield "predictions", _grid(pixels, findings, first_rows, class_names, title)
    worst = findings.worst(num_images)
    if len(worst):
        title = f"The most confident mistakes ({subtitle})"
        yield "worst_mistakes", _grid(pixels, findings, worst, class_names, title)


def _grid(
    pixels: Pixels,
    findings: "Findings",
    rows: Any,
    class_names: tuple[str, ...],
    title: str,
) -> "Figure":
    from lockstep.callbacks import plots

    captions, is_right = [], (findings.labels == findings.predictions)[rows]
    for row, is_hit in zip(rows, is_right, strict=True):
        true, predicted = class_names[findings.labels[row]], class_names[findings.predictions[row]]
        prediction = f"{plots.short_name(predicted)} {findings.probabilities[row]:.2f}"
        captions.append(prediction if is_hit else f"{prediction}\nis {plots.short_name(true)}")
    images = pixels[torch.from_numpy(findings.indices[rows])].numpy()
    return plots.image_grid([list(images)], captions, is_right, title)
