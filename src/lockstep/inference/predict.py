"""Prediction: rows of images, each once and in order, by any number of workers."""

import contextlib
import inspect
import io
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from lockstep.assembly import data_record, networks, run_parts, session
from lockstep.assembly.agreement import together
from lockstep.assembly.session import Session
from lockstep.callbacks.own_module import hash_of
from lockstep.config.checks import validation
from lockstep.config.errors import ConfigError, Error
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import OF_FILES
from lockstep.data.images.image_files import NUM_PER_RUN
from lockstep.data.images.preprocessing import VIEW_KEYS, View
from lockstep.data.module import ImageData
from lockstep.data.sources.folders import unlabelled_folder
from lockstep.data.splits import Images
from lockstep.data.transfer.file_lock import Progress
from lockstep.distributed.batch import Batch
from lockstep.distributed.collectives import gather_objects
from lockstep.distributed.partition import Shard
from lockstep.inference import prediction_table, row_chunks, selective
from lockstep.inference.chunk_threads import RowsOf, compute_chunks
from lockstep.inference.row_chunks import Chunk, RowWriter
from lockstep.models import calibration
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.runs.files import csv_text, write_json
from lockstep.runs.folder import EXIT_FAILED, RunFolder
from lockstep.system.internals import shared_count
from lockstep.system.launcher import World
from lockstep.system.signals import SignalFlag
from lockstep.system.wording import plural
from lockstep.tasks.classification import Classification
from lockstep.tasks.task import checked_losses

FOLD_WEIGHTS = "fold_weights_sha256"  # in summary.json: of the network of fold_predictions.csv
# of a chunk on a CPU: maps of more images come from fresh pages in every layer, 13.6 in place of 7.5 ms an image of 224
# pixels (ResNet-18 of width 8, one thread of an AMD EPYC, 2026-11-27)
NUM_PIXELS = 4 * 224**2


def predict(
    folder: RunFolder,
    world: World | None,
    flag: SignalFlag,
    *,
    config: dict[str, Any],
    run: str,
    source: str,
    checkpoint: str,
    output: str | None,
    is_strict: bool,
    top_k: int,
    max_error: float | None,
    is_json: bool = False,
) -> int:
    """Write the prediction of every image of `source` to the CSV file `output`, or print them. Returns the exit code.

    `source` is a folder or an image file, or `val` or `test` of the data of `run`. Unreadable files of a folder are
    skipped, listed on standard error, and make the exit code of rank 0 1; if `is_strict`, nothing is written then.
    With `max_error` the class of an image without an answer is `unknown`: see `selective.threshold_of`.
    With `is_json` the result that is recorded has the rows that are printed.
    """
    settings = validation.check_tree(config)
    refuse_own_module(settings, "lockstep predict")
    with session.open_session(folder, settings, world) as here:
        threshold, text = together(partial(selective.threshold_of, Path(checkpoint), settings, max_error))
        print(text if here.rank == 0 else "", end="", flush=True)
        module = load_network(here, Path(checkpoint))
        images = images_of(here, run, source, module.image_format)
        options: dict[str, Any] = {"top_k": top_k, "threshold": threshold}
        options |= {"is_strict": is_strict, "is_shown": output is None}
        rows: list[dict[str, Any]] | None = [] if is_json and output is None else None
        broken = write_rows(here, module, images, Path(output or folder.path / "predictions"), rows=rows, **options)
        return report(here, len(images), broken, "prediction", output, rows)


def report(
    here: Session,
    num_images: int,
    broken: list[str],
    noun: str,
    output: str | None,
    rows: list[dict[str, Any]] | None = None,
) -> int:
    """Print and record how many rows were written, and the errors of `broken` images. Returns the exit code."""
    if here.rank == 0:
        count = num_images - len(broken)
        if output is not None:
            print(f"{plural(count, noun)} in {output}", flush=True)
        result = {"output": output, f"{noun}s": count, "unreadable": len(broken)}
        write_json(here.folder.scores, result | ({} if rows is None else {"rows": rows}))
    if broken:  # the command prints a recorded failure
        count = f"{len(broken)} of {plural(num_images, 'image')} cannot be read and are left out"
        here.folder.record_failure("\n".join([*broken, f"{count}; --strict writes nothing then\n"]))
    return EXIT_FAILED if broken else 0


def refuse_own_module(config: Config, who: str) -> None:
    """Raise ConfigError for a run of a custom LightningModule, which has no task that predicts."""
    if config.has_own_module:
        problem = f"needs the predictions of a task, and module._target_={config.module.target} has none"
        raise ConfigError(Error("unsupported", who, problem, "load its checkpoint with Lightning"))


def load_network(here: Session, checkpoint: Path) -> Classifier:
    """Load the network of a checkpoint on the device of this process, ready to predict. Every rank must call it."""
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    if here.device.type == "cpu":  # threads call it, and the switches of the compiler are those of the process
        here = replace(here, config=here.config.model_copy(update={"compile": False}))
    module = networks.classifier(here, ImageFormat(**saved["image_format"]), total_steps=1)
    module.load_state_dict(saved["state_dict"])
    if here.config.calibrate:
        calibration.restore(module, saved)
    return module.to(here.device).eval()


def view_of(config: Config, image_format: ImageFormat) -> View:
    """Return how the run views image files; the centre on white if it was not trained on such, or on one size."""
    arguments, size = config.data.arguments(), image_format.image_shape[1:]
    if config.data.target not in OF_FILES or arguments["image_size"] is None:
        return View.from_keys(size, "auto", "crop", "auto", arguments.get("background", "white"))
    return View.from_keys(size, *(arguments[name] for name in VIEW_KEYS[1:]))


def predictions(module: Classifier, inputs: Tensor) -> Tensor:
    """Return calibrated predictions (B, ...) for inputs (B, C, H, W) of the `Classifier`, on its device."""
    with torch.inference_mode():
        return module.task.predictions(module.calibration(module(inputs.to(module.device))))


def images_of(here: Session, run: str, source: str, image_format: ImageFormat) -> Images:
    if source in ("val", "test"):
        folder = RunFolder(Path(run))
        splits = run_parts.splits(here, folder, is_once=True)
        data_record.compare(here, splits, folder)
        return splits.parts[source]
    view, channels = view_of(here.config, image_format), image_format.image_shape[0]
    with contextlib.nullcontext() if here.rank == 0 else contextlib.redirect_stdout(io.StringIO()):
        images, digest = together(lambda: unlabelled_folder(source, view=view, channels=channels))
    if len(set(gather_objects(digest))) > 1:
        raise ConfigError(Error("changed", source, "changed while the workers listed it", "start again"))
    return images


def write_rows(
    here: Session,
    module: Classifier,
    images: Images,
    output: Path,
    *,
    top_k: int,
    has_truth: bool = False,
    is_strict: bool = True,
    is_shown: bool = False,
    rows: list[dict[str, Any]] | None = None,
    threshold: float | None = None,
) -> list[str]:
    """Write predictions of images to the CSV file `output`. Returns the errors of those that cannot be read.

    A row has the `top_k` most probable classes, and with `has_truth` target and loss. The class
    is `unknown` up to the `threshold`. With `is_strict`, nothing is written if there are errors.
    With `is_shown` a table is printed in place of the file, and its rows are added to `rows`.
    Every rank must call it.
    """
    names, ranks = module.image_format.class_names, ranking_argument(module, top_k, is_shown=is_shown)
    truth = ["truth"] if isinstance(module.task, Classification) else [f"true_{name}" for name in names]
    before, after = (truth, ["loss"]) if has_truth else ([], [])
    head = ["file", *before, *module.task.columns(names, **ranks), *after]

    def rows_of(positions: Tensor, pixels: Tensor, targets: Tensor) -> list[list[str]]:
        on_device, files = pixels.to(module.device), [str(images.names[position]) for position in positions.tolist()]
        with torch.inference_mode():
            outputs = module(on_device)
            predicted = module.task.predictions(module.calibration(outputs))
            if predicted.dim() != 2:
                problem = f"predicts shapes {tuple(predicted.shape[1:])}, and a file has rows of numbers"
                raise ConfigError(Error("unsupported", here.config.task.target, problem, "use lockstep.load in Python"))
            cells = module.task.cells(predicted, names, **ranks)
            if threshold is not None:
                for at in (selective.answers(predicted, threshold) < 0).nonzero().flatten().tolist():
                    cells[at][0] = selective.UNKNOWN
            columns = [[[file] for file in files], cells]
            if has_truth:
                columns.insert(1, _truths(module, targets))
                columns.append(_losses(module, outputs, on_device, targets, positions))
        return [list(itertools.chain(*parts)) for parts in zip(*columns, strict=True)]

    table = partial(row_chunks.write_table, output, csv_text([head]))
    table = partial(prediction_table.show, module.task, head, rows=rows) if is_shown else table
    table = table if threshold is None else partial(prediction_table.count_answers, table)
    return write(here, module, images, rows_of, table, output=output, is_strict=is_strict)


def write(
    here: Session,
    module: Classifier,
    images: Images,
    rows_of: RowsOf,
    write_file: RowWriter,
    *,
    output: Path,
    is_strict: bool = True,
) -> list[str]:
    """Let rank 0 write the rows of all images to `output`. Every rank must call it.

    Returns the errors of images that cannot be read. With `is_strict`, nothing is written if there are any.

    Images are cut into chunks that do not depend on the workers. Each worker takes the next one when it is free.
    """
    height, width = module.image_format.image_shape[1:]
    fitting = NUM_PIXELS // (height * width) if here.device.type == "cpu" else NUM_PER_RUN
    size = max(1, min(here.config.eval_batch_size, NUM_PER_RUN, fitting))
    together(lambda: row_chunks.prepare(output) if here.rank == 0 else None)
    with row_chunks.hidden_file(output) as path:
        chunks = _compute(here, images, rows_of, size, str(output))
        found = gather_objects(row_chunks.write_chunks(path, chunks))
        join = partial(row_chunks.join, found, write_file, is_strict=is_strict)
        return together(lambda: join() if here.rank == 0 else [])


def _compute(here: Session, images: Images, rows_of: RowsOf, size: int, name: str) -> Iterator[Chunk]:
    """Yield computed chunks: this rank takes the next one when it is free. `name` is used once.

    Raises ConfigError unless the task predicts rows of numbers.
    """
    runs = torch.arange(len(images)).split(size)
    counts = itertools.takewhile(lambda count: count < len(runs), shared_count(name))
    taken = ((count, runs[count]) for count in counts)
    # a worker of many threads would take all of a few chunks
    most = min(torch.get_num_threads(), math.ceil(len(runs) / here.world_size))
    progress = Progress("Predicting", "images")
    for chunk in compute_chunks(here.device, images, taken, rows_of, most):
        yield chunk
        if here.rank == 0 and not here.config.silent:
            progress.show(chunk.number * size, len(images))


def ranking_argument(module: Classifier, top_k: int, *, is_shown: bool = False) -> dict[str, int]:
    """Return the argument of a task that ranks classes, two in a table. Raises ConfigError if it ranks fewer."""
    count, can_rank = len(module.image_format.class_names), "top_k" in inspect.signature(module.task.cells).parameters
    top_k = max(top_k, min(2, count)) if is_shown and can_rank else top_k
    if top_k > 1 and not can_rank:
        raise ConfigError(
            Error("unsupported", f"--top-k {top_k}", f": {type(module.task).__name__} ranks no classes", "remove it")
        )
    if top_k > count:
        raise ConfigError(Error("range", f"--top-k {top_k}", f": the run has {count} classes", f"use {count} at most"))
    return {"top_k": top_k} if top_k > 1 else {}


def _truths(module: Classifier, targets: Tensor) -> list[list[str]]:
    """Return the cells of targets. Raises ConfigError unless there is one for each column."""
    names = module.image_format.class_names
    if isinstance(module.task, Classification):
        return [[str(names[number])] for number in targets.tolist()]
    rows = targets.reshape(len(targets), -1)
    if rows.shape[1] != len(names):
        error = f"targets of shape {tuple(targets.shape[1:])} for {len(names)} {module.task.named}"
        raise ConfigError(
            Error("unsupported", "--output", f"needs one number for each column, and the data has {error}")
        )
    return [[f"{value:.6g}" for value in row] for row in rows.tolist()]


def _losses(module: Classifier, outputs: Tensor, inputs: Tensor, targets: Tensor, positions: Tensor) -> list[list[str]]:
    """Return the loss of each image, without the weight of its class."""
    count = len(positions)
    shard = Shard(epoch=0, step=0, micro_step=0, size=count, lo=0, hi=count, group_size=count)
    batch = Batch(inputs, targets.to(inputs.device), positions, shard)
    values, weights = checked_losses(module.task, outputs, batch)
    return [[f"{loss:.6g}"] for loss in (values if weights is None else values / weights).tolist()]


def write_fold(here: Session, data: ImageData, module: L.LightningModule) -> dict[str, Any]:
    """Write the predictions of a tested module on the images of its fold into the run folder. Every rank must call it.

    Runs of other tasks than classification write none. Returns the SHA-256 of the weights for the summary.
    """
    images, fold = data.splits.test, str(here.config.data.fold)
    if isinstance(module, Classifier) and isinstance(module.task, Classification) and images.classes is not None:
        with module.eager_mode():  # as in `load_network`
            write_probabilities(here, module.to(here.device).eval(), images, here.folder.fold_rows, fold)
        return {FOLD_WEIGHTS: hash_of(module)}
    return {}


def write_probabilities(here: Session, module: Classifier, images: Images, output: Path, fold: str) -> None:
    """Write class, prediction and the probabilities of all classes of each image, and `fold`. Every rank must call it.

    The images must have classes.
    """
    names, classes = module.image_format.class_names, images.classes
    assert classes is not None

    def rows_of(positions: Tensor, pixels: Tensor, targets: Tensor) -> list[list[str]]:
        found = predictions(module, pixels)
        cells = zip(positions.tolist(), found.argmax(1).tolist(), found.tolist(), strict=True)
        return [
            [str(images.names[at]), names[classes[at]], names[best], *(f"{each:.6f}" for each in values), fold]
            for at, best, values in cells
        ]

    head = ["file", "truth", "prediction", *names, "fold"]
    table = partial(row_chunks.write_table, output, csv_text([head]))
    write(here, module, images, rows_of, table, output=output)
