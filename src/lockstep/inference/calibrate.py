"""The calibration of a finished training: fitted to its validation images, and kept in its checkpoint."""

from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from lockstep.assembly import checkpoint_io
from lockstep.assembly.session import Session
from lockstep.assembly.staging import together
from lockstep.data.module import ImageData
from lockstep.distributed.collectives import gather_objects
from lockstep.models import calibration
from lockstep.models.classifier import Classifier
from lockstep.tasks.classification import Classification


def calibrate(here: Session, data: ImageData, module: L.LightningModule, best: Path | None) -> None:
    """Fit the calibration of a finished training on its validation images; add it to its checkpoint and to `module`.

    The module gets the weights of `best`, as for the test; without it the last checkpoint has those of the module.
    Tasks whose predictions are not the softmax or the sigmoid of outputs (B, C) get none. Every rank must call it.
    """
    if not isinstance(module, Classifier) or not calibration.has_probabilities(module.task):
        return
    if best is not None:
        module.load_state_dict(_read(best)["state_dict"])
    outputs, targets, indices = _own_outputs(module.to(here.device).eval(), data)
    names = module.image_format.class_names
    shapes = set(gather_objects(tuple(outputs.shape[1:]) if len(outputs) else (len(names),)))
    if shapes != {(len(names),)}:  # maps
        return
    outputs = outputs.reshape(-1, len(names))
    if is_classes := isinstance(module.task, Classification):
        is_known = (targets >= 0) & (targets < len(names))  # a custom loss may ignore others
        outputs, targets, indices = outputs[is_known], targets[is_known].long(), indices[is_known]
    entry = calibration.fit(outputs, targets if is_classes else targets.reshape(outputs.shape), names, here.device)
    calibration.restore(module, {"calibration": entry})
    if is_classes:
        entry["val"] = _confidences(module, outputs, targets, indices)
    path = best or here.folder.last_checkpoint
    together(lambda: keep(path, entry, module.global_step if best is None else None) if here.rank == 0 else None)


def keep(path: Path, entry: dict[str, Any], step: int | None = None) -> None:
    """Write the entry `calibration` into a checkpoint; of `step`, if that is given: another has other weights."""
    if step is None or (path.exists() and _read(path)["global_step"] == step):
        checkpoint_io.write(_read(path) | {"calibration": entry}, path)


def _read(path: Path) -> dict[str, Any]:
    return torch.load(path, map_location="cpu", weights_only=True)


def _own_outputs(module: Classifier, data: ImageData) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs (n, C), targets (n, ...) and positions (n,) of this rank's validation images, in host memory."""
    found = [(torch.empty(0, dtype=module.mean.dtype), data.splits.val.targets[:0], torch.empty(0, dtype=torch.int64))]
    for batch in data.val_dataloader():
        if len(batch.indices):
            moved = data.transfer_batch_to_device(batch, module.device, 0)
            with torch.inference_mode():
                found.append((module(moved.inputs).cpu(), batch.targets.cpu(), batch.indices))
    outputs, targets, indices = (torch.cat(parts) for parts in zip(*found, strict=True))
    return outputs, targets, indices


def _confidences(module: Classifier, outputs: Tensor, classes: Tensor, indices: Tensor) -> dict[str, Tensor]:
    """Return the probabilities of the predicted classes of all ranks' images, and whether these classes are right."""
    with torch.inference_mode():
        parts = (module.calibration(part.to(module.device)) for part in outputs.split(calibration.ROWS))
        predicted = [module.task.predictions(part).max(1) for part in parts]
    values, best = (torch.cat(each).cpu() for each in zip(*predicted, strict=True))
    gathered = gather_objects((indices, values.float(), best == classes))
    order, confidences, is_right = (torch.cat(each) for each in zip(*gathered, strict=True))
    order = order.argsort()
    return {"confidences": confidences[order], "is_right": is_right[order]}
