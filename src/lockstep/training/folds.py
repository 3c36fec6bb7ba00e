"""The predictions of a fold: truth, prediction and probabilities of its images, which the run was not trained on."""

from pathlib import Path

from torch import Tensor

from lockstep.data.images.listing import digest_of
from lockstep.data.module import ImageData
from lockstep.training import predict
from lockstep.training.session import Session


def write(here: Session, data: ImageData, checkpoint: Path) -> None:
    """Write the predictions of the test images of a fold into the run folder. Every rank must call it.

    Runs without folds, and of other tasks than classification, write none.
    """
    images, config, fold = data.splits.test, here.config, str(here.config.data.fold)
    classes, names = images.classes, data.class_names
    if config.data.folds is None or classes is None or config.task.target != "lockstep.tasks.Classification":
        return
    module = predict.loaded(here, checkpoint)

    def rows_of(positions: Tensor, pixels: Tensor) -> list[list[str]]:
        found = predict.predictions(module, pixels)
        cells = zip(positions.tolist(), found.argmax(1).tolist(), found.tolist(), strict=True)
        return [
            [str(images.names[at]), names[classes[at]], names[best], *(f"{each:.6f}" for each in values), fold]
            for at, best, values in cells
        ]

    head = ["file", "truth", "prediction", *names, "fold"]
    inputs = predict.inputs_of(here, checkpoint) | {"images": digest_of(images.names, classes.numpy())}
    predict.write(here, images, rows_of, head=head, inputs=inputs, output=here.folder.fold_rows)
