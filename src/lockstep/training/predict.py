"""Prediction: each image once, in order, by any number of workers."""

import contextlib
import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.config import errors, validation
from lockstep.config.schema import Config
from lockstep.data.images.splits import Images
from lockstep.data.sampler import GlobalBatches
from lockstep.data.sources.folders import unlabelled_folder
from lockstep.distributed.collectives import gather_objects
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.runs.files import atomic_file, csv_text
from lockstep.runs.folder import EXIT_FAILED, RunFolder
from lockstep.system.launcher import World
from lockstep.system.signals import SignalFlag
from lockstep.system.wording import plural
from lockstep.training import assembly, data_record, networks, session
from lockstep.training.session import Session
from lockstep.training.staging import readable


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
    skipped, listed on standard error, and make the exit code 1; if `is_strict`, nothing is written then.
    """
    broken: list[str] = []
    settings = validation.check_tree(config)
    refuse_own_module(settings, "lockstep predict")
    with session.opened(folder, settings, world) as here:
        module = loaded(here, Path(checkpoint))
        image_format = module.image_format
        images = _images(here, RunFolder(Path(run)), source, image_format, None if is_strict else broken)
        gathered = sorted(row for shard in gather_objects(_predicted(here, module, images)) for row in shard)
        if [index for index, _ in gathered] != list(range(len(images))):
            raise RuntimeError(
                f"{len(images)} images, but {len(gathered)} predictions: some are missing or duplicated."
            )
        if here.rank == 0:
            columns = module.task.columns(image_format.class_names)
            table = [["file", *columns], *([images.names[index], *cells] for index, cells in gathered)]
            Path(output).parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(Path(output)) as file:
                file.write(csv_text(table).encode(errors="surrogateescape"))  # a file name need not be UTF-8
            print(f"{plural(len(gathered), 'prediction')} in {output}", flush=True)
            if broken:  # the command prints a recorded failure
                count = f"{len(broken)} of {plural(len(images) + len(broken), 'image')} cannot be read and are left out"
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


def background_of(config: Config) -> str:
    """Return the background of transparent pixels in the run; white if it was not trained on image files."""
    return config.data.arguments().get("background", "white")


def predictions(module: Classifier, inputs: Tensor) -> Tensor:
    """Return the task's predictions (B, ...) for inputs (B, C, H, W) of the `Classifier`, on its device."""
    with torch.inference_mode():
        return module.task.predictions(module(inputs.to(module.device)))


def _images(here: Session, run: RunFolder, source: str, image_format: ImageFormat, broken: list[str] | None) -> Images:
    if source in ("val", "test"):
        splits = assembly.splits(here)
        data_record.compare(here, splits, run)
        return splits.test if source == "test" else splits.val
    channels, height, width = image_format.image_shape
    background = background_of(here.config)
    with contextlib.redirect_stdout(io.StringIO()) if here.rank else contextlib.nullcontext():
        return readable(
            lambda: unlabelled_folder(
                source, image_size=(height, width), channels=channels, background=background, broken=broken
            )
        )


def _predicted(here: Session, module: Classifier, images: Images) -> list[tuple[int, list[str]]]:
    """Return index and cells of each image of this rank's shard. Raises ConfigError unless they are rows of numbers."""
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
    for indices, shard in batches:
        if shard.is_empty:
            continue
        predicted = predictions(module, images.pixels[indices])
        if predicted.dim() != 2:
            error = f"{here.config.task.target} predicts values of shape {tuple(predicted.shape[1:])} for each image"
            hint = "use lockstep.load in Python"
            raise errors.ConfigError([f"{error}, and lockstep predict writes rows of numbers: {hint}"])
        rows += zip(indices.tolist(), module.task.cells(predicted, module.image_format.class_names), strict=True)
    return rows
