"""What a command sends to its workers: the run to use, and options.

This module does not import torch, because commands create the options.
"""

from dataclasses import dataclass
from pathlib import Path

from lockstep.config.schema.configuration import Config
from lockstep.runs.folder import RunFolder


@dataclass(frozen=True)
class TrainedRun:
    """A run, its checkpoint to use, and its configuration, adapted to this machine and checked.

    Its network is averaged with those of `other_folders`, which have a checkpoint of the same name.
    If it `is_flipped`, the mirror image of each image is predicted, too. `average` describes what
    is averaged. It is empty if nothing is.
    """

    folder: RunFolder
    checkpoint: Path
    config: Config
    other_folders: tuple[RunFolder, ...] = ()
    is_flipped: bool = False
    average: str = ""


@dataclass(frozen=True)
class EvalOptions:
    """Options of `lockstep eval`.

    `output` is a CSV file with a row for each image and its `top_k` most probable classes.
    `pictures` is a folder for figures and numbers. If images `may_differ`, those that are not of
    the run are evaluated. If `split` is None and they have no test split, all of them are
    evaluated.
    """

    split: str | None
    output: Path | None = None
    top_k: int = 1
    pictures: Path | None = None
    may_differ: bool = False


@dataclass(frozen=True)
class PredictOptions:
    """Options of `lockstep predict`.

    `source` is a folder or an image file, or `val` or `test` of the data of the run. Without the
    CSV file `output` the predictions are printed, or recorded if `is_json`. If `is_strict`, nothing
    is written if a file cannot be read. With `max_error` the class of an image without an answer is
    `unknown`, as in `selective.threshold_of`.
    """

    source: str
    output: Path | None
    is_strict: bool
    top_k: int
    max_error: float | None
    is_json: bool


@dataclass(frozen=True)
class EmbedOptions:
    """Options of `lockstep embed`: the array `output`, and options of `PredictOptions`."""

    source: str
    output: Path
    is_strict: bool


@dataclass(frozen=True)
class LabelsOptions:
    """Options of `lockstep labels`.

    `predictions` are the files of all folds of a setting, of which the run is one. Without any, the
    checkpoint of the run judges its validation and test images.
    """

    output: Path
    predictions: list[Path]


Options = EvalOptions | PredictOptions | EmbedOptions | LabelsOptions
