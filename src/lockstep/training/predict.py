"""Prediction: each image once, in order, by any number of workers."""

import itertools
import math
from bisect import bisect
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep import __version__
from lockstep.config import errors, storage, validation
from lockstep.config.schema import Config
from lockstep.config.target_sections import OF_FILES
from lockstep.data.images.files import NUM_PER_RUN
from lockstep.data.images.listing import digest_of
from lockstep.data.images.splits import Images, read_runs
from lockstep.data.images.views import VIEW_KEYS, View
from lockstep.data.sources.folders import unlabelled_folder
from lockstep.data.transfer.file_lock import Progress
from lockstep.distributed.collectives import gather_objects
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.runs.files import csv_text, write_json
from lockstep.runs.folder import EXIT_FAILED, RunFolder
from lockstep.runs.naming import shown
from lockstep.system.internals import shared_count
from lockstep.system.launcher import World
from lockstep.system.signals import SignalFlag
from lockstep.system.wording import plural
from lockstep.training import assembly, chunks, data_record, networks, session
from lockstep.training.chunks import Chunk
from lockstep.training.session import Session
from lockstep.training.staging import together


def predict(
    folder: RunFolder,
    world: World | None,
    flag: SignalFlag,
    *,
    config: dict[str, Any],
    run: str,
    source: str,
    checkpoint: str,
    output: str,
    is_strict: bool,
) -> int:
    """Write the name and the prediction of every image of `source` to the CSV file `output`. Returns the exit code.

    `source` is a folder or an image file, or `val` or `test` of the data of `run`. Unreadable files of a folder are
    skipped, listed on standard error, and make the exit code of rank 0 1; if `is_strict`, nothing is written then.

    Images are cut into chunks that do not depend on the workers. Each worker takes the next one when it is free, and
    writes its rows to the folder OUTPUT.part, from which the same command continues.
    """
    settings = validation.check_tree(config)
    refuse_own_module(settings, "lockstep predict")
    with session.opened(folder, settings, world) as here:
        module = loaded(here, Path(checkpoint))
        images, digest = _images(here, RunFolder(Path(run)), source, module.image_format)
        size = min(settings.eval_batch_size, NUM_PER_RUN)
        part, num_chunks = Path(f"{output}.part"), math.ceil(len(images) / size)
        inputs = _inputs(here, Path(checkpoint)) | {"images": digest}
        found = together(lambda: chunks.open_folder(part, inputs, here.held) if here.rank == 0 else {})
        done = gather_objects(sorted(found))[0]
        if here.rank == 0 and done:
            print(f"{len(done)} of {num_chunks} chunks are in {shown(part)}: continuing", flush=True)
        paths = gather_objects(_computed(here, module, images, size, done, chunks.new_file(part)))
        header = csv_text([["file", *module.task.columns(module.image_format.class_names)]])

        def join() -> list[str]:
            rows = found | chunks.index(paths)
            return chunks.join(part, rows, num_chunks, Path(output), header=header, is_strict=is_strict)

        broken = together(lambda: join() if here.rank == 0 else [])
        if here.rank == 0:
            count = len(images) - len(broken)
            print(f"{plural(count, 'prediction')} in {output}", flush=True)
            write_json(folder.scores, {"output": output, "predictions": count, "unreadable": len(broken)})
        if broken:  # the command prints a recorded failure
            count = f"{len(broken)} of {plural(len(images), 'image')} cannot be read and are left out"
            folder.record_failure("\n".join([*broken, f"{count}; --strict writes nothing then\n"]))
    return EXIT_FAILED if broken else 0


def refuse_own_module(config: Config, who: str) -> None:
    """Raise ConfigError for a run of a custom LightningModule, which has no task that predicts."""
    if config.has_own_module:
        error = f"{who} needs the predictions of a task, and module._target_={config.module.target} has none"
        raise errors.ConfigError([f"{error}: load its checkpoint with Lightning"])


def loaded(here: Session, checkpoint: Path) -> Classifier:
    """Load the network of a checkpoint on the device of this process, ready to predict. Every rank must call it."""
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    module = networks.classifier(here, ImageFormat(**saved["image_format"]), total_steps=1)
    module.load_state_dict(saved["state_dict"])
    return module.to(here.device).eval()


def view_of(config: Config, image_format: ImageFormat) -> View:
    """Return how the run views image files; the centre on white if it was not trained on such, or on one size."""
    arguments, size = config.data.arguments(), image_format.image_shape[1:]
    if config.data.target not in OF_FILES or arguments["image_size"] is None:
        return View.of(size, "auto", "crop", "auto", arguments.get("background", "white"))
    return View.of(size, *(arguments[name] for name in VIEW_KEYS[1:]))


def predictions(module: Classifier, inputs: Tensor) -> Tensor:
    """Return the task's predictions (B, ...) for inputs (B, C, H, W) of the `Classifier`, on its device."""
    with torch.inference_mode():
        return module.task.predictions(module(inputs.to(module.device)))


def _images(here: Session, run: RunFolder, source: str, image_format: ImageFormat) -> tuple[Images, str]:
    """Return the images, and a digest of their names with targets, or with the states of their files."""
    if source in ("val", "test"):
        splits = assembly.splits(here, is_once=True)
        data_record.compare(here, splits, run)
        images = splits.parts[source]
        return images, digest_of(images.names, images.targets.numpy())
    view, channels = view_of(here.config, image_format), image_format.image_shape[0]
    images, digest = together(lambda: unlabelled_folder(source, view=view, channels=channels))
    if len(set(gather_objects(digest))) > 1:
        raise errors.ConfigError([f"{source} changed while the workers listed it: start again"])
    return images, digest


def _inputs(here: Session, checkpoint: Path) -> dict[str, str]:
    """Return what predictions of images depend on: not the number of workers."""
    any_workers = here.config.trainer.model_copy(update={"devices": "auto", "loads": None, "num_nodes": 1})
    settings = storage.fingerprint(here.config.model_copy(update={"trainer": any_workers}))
    state = checkpoint.stat()
    return {
        "checkpoint": f"{state.st_size} {state.st_mtime_ns}",
        "settings": f"{__version__} {here.precision} {here.device.type} {settings}",
    }


def _computed(here: Session, module: Classifier, images: Images, size: int, done: Collection[int], path: Path) -> Path:
    """Compute chunks that are not `done`: this rank takes the next one when it is free. Returns `path`, their file.

    Raises ConfigError unless the task predicts rows of numbers.
    """
    runs = torch.arange(len(images)).split(size)
    left = sorted({*range(len(runs))}.difference(done))
    taken = (runs[left[count]] for count in itertools.takewhile(lambda count: count < len(left), shared_count()))
    # a worker of many threads would take all of a few chunks
    most = min(torch.get_num_threads(), math.ceil(len(left) / here.world_size) or 1)
    progress = Progress("Predicting", "images")
    with open(path, "xb") as file:
        for positions, pixels, errors_at in read_runs(images.pixels, taken, most):
            number = int(positions[0]) // size
            kept = [row for row, position in enumerate(positions.tolist()) if position not in errors_at]
            names = [images.names[int(position)] for position in positions[kept]]
            rows = _rows(here, module, names, pixels[kept]) if kept else []  # a network may fail without an image
            file.write(chunks.line_of(Chunk(number, csv_text(rows), [errors_at[key] for key in sorted(errors_at)])))
            file.flush()
            if here.rank == 0 and not here.config.silent:
                progress.show(bisect(left, number) * size, len(left) * size)
    progress.end()
    return path


def _rows(here: Session, module: Classifier, names: list[str], pixels: Tensor) -> list[list[str]]:
    predicted = predictions(module, pixels)
    if predicted.dim() != 2:
        error = f"{here.config.task.target} predicts values of shape {tuple(predicted.shape[1:])} for each image"
        hint = "use lockstep.load in Python"
        raise errors.ConfigError([f"{error}, and lockstep predict writes rows of numbers: {hint}"])
    cells = module.task.cells(predicted, module.image_format.class_names)
    return [[name, *values] for name, values in zip(names, cells, strict=True)]
