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
from lockstep.models.outcomes import Findings, Outcomes, labels_of


def calibrate(here: Session, data: ImageData, module: L.LightningModule, best: Path | None) -> None:
    """Fit the calibration of a finished training on its validation images; add it to its checkpoint and to `module`.

    The module gets the weights of `best`, as for the test; without it the last checkpoint has those of the module.
    Tasks whose predictions are not the softmax or the sigmoid of outputs (B, C) get none. Every rank must call it.
    """
    if not isinstance(module, Classifier) or not calibration.has_probabilities(module.task):
        return
    if best is not None:
        module.load_state_dict(_read(best)["state_dict"])
    own = _own_outputs(module.to(here.device).eval(), data)
    if not all(gather_objects(own is not None)):
        return
    assert own is not None
    names = module.image_format.class_names
    entry = calibration.fit(*own[:2], names, here.device)
    calibration.restore(module, {"calibration": entry})
    outcomes = Outcomes(module.task, module.calibration, len(names))
    for part in zip(*(each.split(calibration.ROWS) for each in own), strict=True):
        outcomes.update(*(each.to(here.device) for each in part))
    add(here, module, best, "val", outcomes.findings())


def add(here: Session, module: Classifier, best: Path | None, split: str, findings: Findings | None) -> None:
    """Write the calibration of a module into `best`, with the predictions of a split; every rank must call it.

    Without `best` into the last checkpoint, if that has the weights of the module: the same step.
    """
    own = module.calibration
    if not isinstance(own, calibration.Calibration):
        return
    if findings is not None and not findings.is_multilabel:
        confidences, is_right = torch.from_numpy(findings.probabilities).float(), torch.from_numpy(findings.hits)
        own.entry = {**own.entry, split: {"confidences": confidences, "is_right": is_right}}
    path, entry = best or here.folder.last_checkpoint, own.entry

    def write() -> None:
        saved = _read(path) if path.exists() else {}
        if best is not None or saved.get("global_step") == module.global_step:
            checkpoint_io.write(saved | {"calibration": entry}, path)

    together(lambda: write() if here.rank == 0 else None)


def _read(path: Path) -> dict[str, Any]:
    return torch.load(path, map_location="cpu", weights_only=True)


def _own_outputs(module: Classifier, data: ImageData) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return outputs (n, C), labels (n,) or (n, C) and positions (n,) of this rank's validation images; None for maps.

    They are in host memory. Images whose class is no number from 0 to C - 1, which a custom loss may ignore, are left
    out.
    """
    found = []
    with torch.inference_mode():
        for batch in data.val_dataloader():
            if found and not len(batch.indices):
                continue
            moved = data.transfer_batch_to_device(batch, module.device, 0)
            outputs = module(moved.inputs).cpu()
            labels = labels_of(module.task, outputs, batch.targets.cpu())
            if labels is None:
                return None
            is_known = slice(None) if labels.dim() == 2 else (labels >= 0) & (labels < outputs.shape[1])
            found.append((outputs[is_known], labels[is_known], batch.indices[is_known]))
    outputs, labels, indices = (torch.cat(parts) for parts in zip(*found, strict=True))
    return outputs, labels, indices
