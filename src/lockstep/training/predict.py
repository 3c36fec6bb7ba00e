"""Classes of images, each predicted once, in order, by any number of workers."""

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
    """Write file name, class and its probability of every image of `source` to the CSV file `output`.

    `source` is a folder or an image file, or `val` or `test` of the data the run was trained on.
    """
    settings = validation.check_tree(config)
    with session.opened(folder, settings, world) as here:
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
        image_format = ImageFormat(**saved["image_format"])
        module = assembly.classifier(here, image_format, total_steps=1)
        module.load_state_dict(saved["state_dict"])
        images = _images(here, source, image_format)
        rows = _predicted(here, module, images)
        gathered = sorted(row for share in gather_objects(rows) for row in share)
        if [index for index, _, _ in gathered] != list(range(len(images.labels))):
            raise RuntimeError(
                f"{len(images.labels)} images, but {len(gathered)} predictions: some are lost or double."
            )
        if here.rank == 0:
            _write(Path(output), images, gathered, image_format)
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


def _predicted(here: Session, module: Classifier, images: Images) -> list[tuple[int, int, float]]:
    """(index, class, probability) of this rank's share."""
    module = module.to(here.device).eval()
    batches = GlobalBatches(
        len(images.labels),
        global_batch_size=here.config.eval_batch_size,
        accumulate_grad_batches=1,
        shuffle_seed=None,
        rank=here.rank,
        loads=here.loads,
        num_batches=None,
    )
    rows: list[tuple[int, int, float]] = []
    with torch.inference_mode():
        for indices, share in batches:
            if share.is_empty:
                continue
            probabilities: Tensor = module(images.pixels[indices].to(here.device)).softmax(1)
            best, classes = probabilities.max(1)
            rows += zip(indices.tolist(), classes.tolist(), best.tolist(), strict=True)
    return rows


def _write(path: Path, images: Images, rows: list[tuple[int, int, float]], image_format: ImageFormat) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "class", "probability"])
    names = images.names
    for index, number, probability in rows:
        writer.writerow([names[index], image_format.class_names[number], f"{probability:.6f}"])
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(text.getvalue().encode(errors="surrogateescape"))  # a file name need not be UTF-8
