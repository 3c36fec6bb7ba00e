"""What a network says of images, each predicted once, in order, by any number of workers."""

import csv
import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.config import faults, validation
from lockstep.data.images.splits import Images
from lockstep.data.sampler import GlobalBatches
from lockstep.data.sources.folders import unlabelled_folder
from lockstep.distributed.collectives import gather_objects
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.runs.files import atomic_file
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World
from lockstep.system.signals import SignalFlag
from lockstep.training import assembly, session
from lockstep.training.session import Session
from lockstep.training.staging import readable


def predict(
    folder: RunFolder,
    world: World | None,
    flag: SignalFlag,
    *,
    config: dict[str, Any],
    source: str,
    checkpoint: str,
    output: str,
) -> int:
    """Write the name of every image of `source` and what the task says of it to the CSV file `output`.

    `source` is a folder or an image file, or `val` or `test` of the data the run was trained on.
    """
    settings = validation.check_tree(config)
    if settings.has_own_module:
        fault = (
            f"lockstep predict asks a task for its predictions, and module._target_={settings.module.target} has none"
        )
        raise faults.ConfigError([f"{fault}: predict from Python"])
    with session.opened(folder, settings, world) as here:
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
        image_format = ImageFormat(**saved["image_format"])
        module = assembly.classifier(here, image_format, total_steps=1)
        module.load_state_dict(saved["state_dict"])
        images = _images(here, source, image_format)
        rows = _predicted(here, module, images)
        gathered = sorted(row for share in gather_objects(rows) for row in share)
        if [index for index, _ in gathered] != list(range(len(images))):
            raise RuntimeError(f"{len(images)} images, but {len(gathered)} predictions: some are lost or double.")
        if here.rank == 0:
            columns = module.task.columns(image_format.class_names)
            _write(Path(output), ["file", *columns], [[images.names[index], *cells] for index, cells in gathered])
            print(f"{len(gathered):,} predictions in {output}", flush=True)
    return 0


def _images(here: Session, source: str, image_format: ImageFormat) -> Images:
    if source in ("val", "test"):
        splits = assembly.splits(here)
        if splits.class_names != tuple(image_format.class_names):
            fault = f"the data has the classes {splits.class_names}, the network has {image_format.class_names}"
            raise faults.ConfigError([f"{source}: {fault}: predict the data it was trained for"])
        return splits.test if source == "test" else splits.val
    channels, height, width = image_format.image_shape
    return readable(lambda: unlabelled_folder(source, image_size=(height, width), channels=channels))


def _predicted(here: Session, module: Classifier, images: Images) -> list[tuple[int, list[str]]]:
    """(index, what is written of it) of this rank's share. Raises ConfigError where that is no row of numbers."""
    module = module.to(here.device).eval()
    class_names = module.image_format.class_names
    batches = GlobalBatches(
        len(images),
        global_batch_size=here.config.eval_batch_size,
        accumulate_grad_batches=1,
        shuffle_seed=None,
        rank=here.rank,
        loads=here.loads,
        num_batches=None,
    )
    rows: list[tuple[int, list[str]]] = []
    with torch.inference_mode():
        for indices, share in batches:
            if share.is_empty:
                continue
            predictions: Tensor = module.task.predictions(module(images.pixels[indices].to(here.device)))
            if predictions.dim() != 2:
                shape = tuple(predictions.shape[1:])
                fault = f"{here.config.task.target} predicts values of shape {shape} for each image"
                raise faults.ConfigError([f"{fault}, and lockstep predict writes rows of numbers: predict from Python"])
            rows += zip(indices.tolist(), module.task.cells(predictions, class_names), strict=True)
    return rows


def _write(path: Path, head: list[str], rows: list[list[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(text.getvalue().encode(errors="surrogateescape"))  # a file name need not be UTF-8
