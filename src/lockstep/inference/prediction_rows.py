"""The cells of a row of predictions, computed for a batch of images."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.config.errors import config_error
from lockstep.distributed.batch import Batch
from lockstep.distributed.partition import Shard
from lockstep.inference import selective
from lockstep.models.classifier import Classifier
from lockstep.tasks.classification import Classification
from lockstep.tasks.task import checked_losses


@dataclass(frozen=True)
class PredictionRows:
    """Rows of a CSV file: the name and the predictions of an image.

    With `has_truth` they also have the target and the loss. `top_k_argument` is the result of
    `ranking_argument`. With a `threshold` the class is `unknown` up to this probability.
    """

    module: Classifier
    task_target: str  # name in the configuration, for errors
    names: Sequence[object]  # of all images
    top_k_argument: Mapping[str, int]
    threshold: float | None = None
    has_truth: bool = False

    @property
    def header(self) -> list[str]:
        """Names of the columns."""
        class_names = self.module.image_format.class_names
        prediction_columns = self.module.task.columns(class_names, **self.top_k_argument)
        if not self.has_truth:
            return ["file", *prediction_columns]
        truth = [f"true_{name}" for name in class_names]
        if isinstance(self.module.task, Classification):
            truth = ["truth"]
        return ["file", *truth, *prediction_columns, "loss"]

    def __call__(self, positions: Tensor, pixels: Tensor, targets: Tensor) -> list[list[str]]:
        """Return the rows of images by positions (n,), pixels (n, C, H, W) and targets (n, ...).

        Several threads may call it at once. Raises ConfigError unless the task predicts rows of
        numbers.
        """
        task, inputs = self.module.task, pixels.to(self.module.device)
        with torch.inference_mode():
            outputs = self.module(inputs)
            predictions = task.predictions(self.module.calibration(outputs))
            if predictions.dim() != 2:
                raise config_error(
                    "unsupported",
                    self.task_target,
                    f"predicts shapes {tuple(predictions.shape[1:])}, "
                    "and a file has rows of numbers",
                    "use lockstep.load in Python",
                )
            cells = task.cells(
                predictions, self.module.image_format.class_names, **self.top_k_argument
            )
            if self.threshold is not None:
                has_no_answer = selective.answers(predictions, self.threshold) < 0
                for row in has_no_answer.nonzero().flatten().tolist():
                    cells[row][0] = selective.UNKNOWN
            files = [str(self.names[position]) for position in positions.tolist()]
            if not self.has_truth:
                return [[file, *row] for file, row in zip(files, cells, strict=True)]
            truths = _truths(self.module, targets)
            losses = _losses(self.module, outputs, inputs, targets, positions)
        columns = zip(files, truths, cells, losses, strict=True)
        return [[file, *truth, *row, f"{loss:.6g}"] for file, truth, row, loss in columns]


def ranking_argument(module: Classifier, top_k: int, *, is_shown: bool = False) -> dict[str, int]:
    """Return the argument by which a task ranks classes.

    A table shows at least two classes. Raises ConfigError if the task ranks fewer than `top_k`.
    """
    count = len(module.image_format.class_names)
    can_rank = "top_k" in inspect.signature(module.task.cells).parameters
    if is_shown and can_rank:
        top_k = max(top_k, min(2, count))
    if top_k > 1 and not can_rank:
        raise config_error(
            "unsupported",
            f"--top-k {top_k}",
            f": {type(module.task).__name__} ranks no classes",
            "remove it",
        )
    if top_k > count:
        raise config_error(
            "range",
            f"--top-k {top_k}",
            f": the run has {count} classes",
            f"use {count} at most",
        )
    return {"top_k": top_k} if top_k > 1 else {}


def _truths(module: Classifier, targets: Tensor) -> list[list[str]]:
    """Return the cells of targets.

    Raises ConfigError unless there is one for each column.
    """
    class_names = module.image_format.class_names
    if isinstance(module.task, Classification):
        return [[str(class_names[number])] for number in targets.tolist()]
    rows = targets.reshape(len(targets), -1)
    if rows.shape[1] != len(class_names):
        raise config_error(
            "unsupported",
            "--output",
            "needs one number for each column, and the data has "
            f"targets of shape {tuple(targets.shape[1:])} "
            f"for {len(class_names)} {module.task.output_noun}",
        )
    return [[f"{value:.6g}" for value in row] for row in rows.tolist()]


def _losses(
    module: Classifier, outputs: Tensor, inputs: Tensor, targets: Tensor, positions: Tensor
) -> list[float]:
    """Return the loss of each image, without the weight of its class."""
    count = len(positions)
    shard = Shard(epoch=0, step=0, micro_step=0, size=count, lo=0, hi=count, group_size=count)
    batch = Batch(inputs, targets.to(inputs.device), positions, shard)
    values, weights = checked_losses(module.task, outputs, batch)
    return (values if weights is None else values / weights).tolist()
