"""What a command sends to its workers: the run to use, and options. No torch: commands make them."""

from dataclasses import dataclass
from pathlib import Path

from lockstep.config.schema.configuration import Config
from lockstep.runs.folder import RunFolder


@dataclass(frozen=True)
class TrainedRun:
    """A run, its checkpoint to use, and its configuration as adapted to this machine and checked."""

    folder: RunFolder
    checkpoint: Path
    config: Config


@dataclass(frozen=True)
class EvalOptions:
    """Options of `lockstep eval`.

    `output` is a CSV file for a row of each image with its `top_k` most probable classes.
    `pictures` is a folder for pictures and numbers. Images that are not those of the run are
    evaluated if they `may_differ`; all of them if `split` is None and they have no test split.
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
    `unknown`: see `selective.threshold_of`.
    """

    source: str
    output: Path | None
    is_strict: bool
    top_k: int
    max_error: float | None
    is_json: bool


@dataclass(frozen=True)
class EmbedOptions:
    """Options of `lockstep embed`: the array `output`, the rest as in `PredictOptions`."""

    source: str
    output: Path
    is_strict: bool


@dataclass(frozen=True)
class LabelsOptions:
    """Options of `lockstep labels`.

    `predictions` are the files of all folds of a setting, of which the run is one. Without any the
    validation and test images of the run are judged by its checkpoint.
    """

    output: Path
    predictions: list[Path]


Options = EvalOptions | PredictOptions | EmbedOptions | LabelsOptions
