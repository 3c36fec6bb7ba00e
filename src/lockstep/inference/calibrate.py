"""The calibration of a finished training: fitted to its validation images, and kept in its checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from lockstep.assembly import checkpoint_io
from lockstep.assembly.session import Session
from lockstep.assembly.staging import together
from lockstep.data.images.image_files import NUM_PER_RUN, read_runs
from lockstep.data.module import ImageData
from lockstep.data.splits import ImageError
from lockstep.distributed.collectives import gather_objects
from lockstep.distributed.partition import interval
from lockstep.inference import predict
from lockstep.models import calibration
from lockstep.models.classifier import Classifier
from lockstep.tasks.classification import Classification


def calibrate(here: Session, data: ImageData, module: L.LightningModule, best: Path | None) -> None:
    """Fit the calibration of a finished training on its validation images; add it to its checkpoint and to `module`.

    The checkpoint is the one that is tested: `best`, else the last one if it has the weights of the module.
    Tasks whose predictions are not the softmax or the sigmoid of outputs (B, C) get none. Every rank must call it.
    """
    path = best or here.folder.last_checkpoint
    if not isinstance(module, Classifier) or not calibration.has_probabilities(module.task) or not path.exists():
        return
    if best is None and _read(path, mmap=True)["global_step"] != module.global_step:
        return
    raw = here.config.model_copy(update={"calibrate": False, "compile": False})
    network = predict.load_network(replace(here, config=raw), path)
    outputs, targets = _own_outputs(here, network, data)
    names = network.image_format.class_names
    shapes = set(gather_objects(tuple(outputs.shape[1:]) if len(outputs) else (len(names),)))
    if shapes != {(len(names),)}:  # maps
        return
    outputs = outputs.reshape(-1, len(names))
    if is_classes := isinstance(module.task, Classification):
        is_known = (targets >= 0) & (targets < len(names))  # a custom loss may ignore others
        outputs, targets = outputs[is_known], targets[is_known].long()
    else:
        targets = targets.reshape(outputs.shape)
    entry = calibration.fit(outputs, targets, names, here.device)
    calibration.restore(module, {"calibration": entry})
    if is_classes:
        calibration.restore(network, {"calibration": entry})
        entry["val"] = _confidences(network, outputs, targets)
    keep(here, path, entry)


def keep(here: Session, path: Path, entry: dict[str, Any]) -> None:
    """Write an entry `calibration` into a checkpoint. Every rank must call it."""
    together(lambda: checkpoint_io.write(_read(path) | {"calibration": entry}, path) if here.rank == 0 else None)


def _read(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)


def _own_outputs(here: Session, network: Classifier, data: ImageData) -> tuple[Tensor, Tensor]:
    """Return outputs (n, C) and targets (n, ...) of this rank's share of the validation images, in host memory.

    Ranks have consecutive shares. The network gets as many images at once as in a prediction, on any number of workers.
    """
    images = data.splits.val.head(data.batches("val").num_epoch_samples)
    runs = torch.arange(len(images)).split(min(here.config.eval_batch_size, NUM_PER_RUN)) if len(images) else ()
    first, end = interval(len(runs), here.loads, here.rank)
    outputs, targets = [torch.empty(0, dtype=network.mean.dtype)], [images.targets[:0]]
    for positions, pixels, errors in read_runs(images.pixels, runs[first:end], torch.get_num_threads()):
        if errors:
            raise ImageError([*errors.values()])
        with torch.inference_mode():
            outputs.append(network(pixels.to(here.device)).cpu())
        targets.append(predict.targets_of(images, positions))
    return torch.cat(outputs), torch.cat(targets)


def _confidences(network: Classifier, outputs: Tensor, classes: Tensor) -> dict[str, Tensor]:
    """Return the probabilities of the predicted classes of all ranks' outputs, and whether these classes are right."""
    with torch.inference_mode():
        parts = (network.calibration(part.to(network.device)) for part in outputs.split(calibration.ROWS))
        predicted = [network.task.predictions(part).max(1) for part in parts]
    found, best = (torch.cat(each).cpu() for each in zip(*predicted, strict=True))
    gathered = gather_objects((found.float(), best == classes))
    confidences, is_right = (torch.cat(each) for each in zip(*gathered, strict=True))
    return {"confidences": confidences, "is_right": is_right}
