"""The predictions of a fold: truth, prediction and probabilities of its images, which the run was not trained on."""

import time

import lightning as L
from torch import Tensor

from lockstep.assembly.session import Session
from lockstep.data.module import ImageData
from lockstep.inference import predict
from lockstep.models.classifier import Classifier
from lockstep.tasks.classification import Classification


def write(here: Session, data: ImageData, module: L.LightningModule) -> None:
    """Write the predictions of a tested module on the images of its fold into the run folder. Every rank must call it.

    Runs of other tasks than classification write none.
    """
    images, names, fold = data.splits.test, data.class_names, str(here.config.data.fold)
    if (classes := images.classes) is None:
        return
    if not isinstance(module, Classifier) or not isinstance(module.task, Classification):
        return
    module.to(here.device).eval()

    def rows_of(positions: Tensor, pixels: Tensor) -> list[list[str]]:
        found = predict.predictions(module, pixels)
        cells = zip(positions.tolist(), found.argmax(1).tolist(), found.tolist(), strict=True)
        return [
            [str(images.names[at]), names[classes[at]], names[best], *(f"{each:.6f}" for each in values), fold]
            for at, best, values in cells
        ]

    head = ["file", "truth", "prediction", *names, "fold"]
    inputs = {"time": str(time.time_ns())}  # rows of a test that was killed are not kept
    predict.write(here, images, rows_of, head=head, inputs=inputs, output=here.folder.fold_rows)
