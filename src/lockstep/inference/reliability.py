"""Whether the probabilities of a network are calibrated.

This module calibrates a finished training, and scores probabilities with 95 % intervals.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor

from lockstep.assembly import checkpoint_io
from lockstep.assembly.session import Session
from lockstep.callbacks import reliability
from lockstep.data.module import ImageData
from lockstep.distributed.collectives import gather_objects
from lockstep.inference import class_report
from lockstep.models import calibration
from lockstep.models.classifier import Classifier
from lockstep.models.predictions import (
    NUM_BINS,
    Findings,
    FindingsCollector,
    Floats,
    Integers,
    Quality,
    bins_of,
    labels_of,
)
from lockstep.runs.files import JsonObject
from lockstep.system.terminal import measure, new_table, print_line, print_table, terminal
from lockstep.system.text import plural

SCORES = {"nll": "NLL", "brier": "Brier score", "ece": "ECE"}
NUM_RESAMPLES = 1000
UNCALIBRATED = {"note": "calibrate=false, or not the best checkpoint of a finished training"}
AVERAGED = {"note": "each network is calibrated, and their average is not"}


def calibrate(
    session: Session, data: ImageData, module: L.LightningModule, best: Path | None
) -> None:
    """Fit the calibration of a finished training on its validation images.

    It is added to the checkpoint and to `module`. Every rank must call it. The module gets the
    weights of `best`, as for the test. Without `best`, the last checkpoint has the weights of the
    module. Tasks whose predictions are not the softmax or the sigmoid of outputs (B, C) get no
    calibration.
    """
    if not isinstance(module, Classifier) or not calibration.has_probabilities(module.task):
        return
    if best is not None:
        module.load_state_dict(checkpoint_io.read(best)["state_dict"])
    outputs = _own_outputs(module.to(session.device).eval(), data)
    if not all(gather_objects(outputs is not None)):
        return
    assert outputs is not None
    class_names = module.image_format.class_names
    entry = calibration.fit(*outputs[:2], class_names, session.device)
    calibration.restore(module, {"calibration": entry})
    collector = FindingsCollector(module.task, module.calibration, len(class_names))
    for chunk in zip(*(tensor.split(calibration.ROWS) for tensor in outputs), strict=True):
        collector.update(*(tensor.to(session.device) for tensor in chunk))
    store(session, module, best, "val", collector.findings())


def store(
    session: Session, module: Classifier, best: Path | None, split: str, findings: Findings | None
) -> None:
    """Store the calibration in the best checkpoint, with the predictions of a split.

    Without `best` it is stored in the last checkpoint, if that is of the same step. Every rank must
    call it.
    """
    module_calibration = module.calibration
    if not isinstance(module_calibration, calibration.Calibration):
        return
    if findings is not None and not findings.is_multilabel:
        samples = {
            "confidences": torch.from_numpy(findings.probabilities).float(),
            "is_right": torch.from_numpy(findings.hits),
        }
        module_calibration.entry = {**module_calibration.entry, split: samples}
    path = best or session.folder.last_checkpoint

    def write() -> None:
        contents = checkpoint_io.read(path) if path.exists() else {}
        if best is not None or contents.get("global_step") == module.global_step:
            checkpoint_io.write(contents | {"calibration": module_calibration.entry}, path)

    session.on_rank_0(write)


def _own_outputs(module: Classifier, data: ImageData) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return outputs (n, C), labels and positions (n,) of this rank's validation images.

    Labels are (n,) or (n, C). All of them are in host memory. Images whose class is not a number
    from 0 to C - 1, which a custom loss may ignore, are left out. Returns None for outputs that are
    maps.
    """
    batches = []
    with torch.inference_mode():
        for batch in data.val_dataloader():
            if batches and not len(batch.indices):
                continue
            device_batch = data.transfer_batch_to_device(batch, module.device, 0)
            outputs = module(device_batch.inputs).cpu()
            labels = labels_of(module.task, outputs, batch.targets.cpu())
            if labels is None:
                return None
            tensors = outputs, labels, batch.indices
            if labels.dim() == 1:
                is_known = (labels >= 0) & (labels < outputs.shape[1])
                tensors = outputs[is_known], labels[is_known], batch.indices[is_known]
            batches.append(tensors)
    outputs, labels, indices = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
    return outputs, labels, indices


def report(
    findings: Findings, groups: Sequence[str] | None, entry: Mapping[str, Any]
) -> JsonObject:
    """Return the scores of the probabilities and their bins, raw and calibrated if possible.

    The expected calibration error (ECE) is that of Guo et al. (2017,
    https://arxiv.org/abs/1706.04599). For few images it is too large, because it contains their
    random error. Intervals come from resampled images, or from resampled groups: `groups` of the
    split, by position. `entry` is the calibration of the checkpoint.
    """
    result: JsonObject = {}
    units = findings.indices
    if groups and len({*groups}) > 1:
        units = np.array([groups[index] for index in units.tolist()])
        result["num_groups"] = len({*units.tolist()})
    units = np.unique(units, return_inverse=True)[1]
    for way, quality in (("raw", findings.raw), ("calibrated", findings.calibrated)):
        if quality is not None:
            counts, confidences, hits = findings.bins(quality).tolist()
            bins = {"count": [*map(int, counts)], "confidence": confidences, "accuracy": hits}
            result[way] = {**_scores(_sums(findings, quality, units)), "bins": bins}
    if "calibrated" in result:
        result |= {"temperature": 1 / entry["slope"].item()} if not findings.is_multilabel else {}
        result["num_images"] = entry["num_images"]
    return {**result, "note": entry["note"]}


def _sums(findings: Findings, quality: Quality, units: Integers) -> Floats:
    """Return the terms of the scores, summed over each unit (U, 3 + bins).

    The columns are the number of images, the NLL, the Brier score, and the gaps in the bins.
    `units` (N,) are those of the images.
    """
    gaps = (quality.confidences - findings.hits).reshape(len(units), -1)
    at = NUM_BINS * units[:, None] + bins_of(quality.confidences).reshape(gaps.shape)
    gaps_of = np.bincount(
        at.ravel(), gaps.ravel() / gaps.shape[1], NUM_BINS * (units.max() + 1)
    ).reshape(-1, NUM_BINS)
    scores = np.stack([np.ones(len(units)), quality.nll, quality.brier])
    return np.column_stack([*(np.bincount(units, values) for values in scores), gaps_of]).astype(
        np.float64
    )


def _scores(sums: Floats) -> dict[str, dict[str, float]]:
    """Return NLL, Brier score and ECE of `_sums`, with percentiles of resampled units as intervals.

    The ECE of a resample contains about twice the random error. So its interval is mirrored at its
    value, which removes this error (the basic bootstrap: Davison and Hinkley 1997, 5.6).
    """
    draw, count = np.random.default_rng(0), len(sums)
    resamples = (draw.integers(count, size=count) for _ in range(NUM_RESAMPLES))
    with np.errstate(invalid="ignore"):  # An infinite NLL may be multiplied by 0.
        totals = np.stack(
            [sums.sum(0), *(np.bincount(units, minlength=count) @ sums for units in resamples)]
        )
    scores = np.column_stack([totals[:, 1:3], abs(totals[:, 3:]).sum(1)]) / totals[:, :1]
    value, (low, high) = scores[0], np.percentile(scores[1:], [2.5, 97.5], axis=0)
    low[2], high[2] = np.maximum(0, 2 * value[2] - [high[2], low[2]])
    rows = zip(SCORES, value.tolist(), low.tolist(), high.tolist(), strict=True)
    return {name: {"value": mean, "low": lower, "high": upper} for name, mean, lower, upper in rows}


def report_test(session: Session, data: ImageData, module: L.LightningModule) -> JsonObject:
    """Print the report of a test and return it for summary.json.

    It also adds the confidences to the checkpoint. Every rank must call it.
    """
    trainer = module.trainer
    callback = reliability.callback_of(trainer)
    if callback is None or callback.findings is None:
        return {}
    assert isinstance(module, Classifier)
    findings, groups = callback.findings, data.splits.test.groups
    checkpoint = Path(trainer.ckpt_path) if trainer.ckpt_path else None
    store(session, module, checkpoint, "test", findings)
    if session.rank > 0:
        return {}
    result = report(findings, groups, getattr(module.calibration, "entry", UNCALIBRATED))
    if not session.config.silent:
        show(result, "test probabilities")
    if findings.is_multilabel:
        return {"calibration": result}
    interval = class_report.accuracy_interval(findings, groups or ())
    return {"calibration": result, "accuracy_interval": interval}


def show(result: JsonObject, title: str = "probabilities") -> None:
    """Print a report as a table below `title`.

    The last line describes how the probabilities were calibrated, or why they were not.
    """
    out, ways = terminal(), [way for way in ("raw", "calibrated") if way in result]
    interval = (
        f"95 % interval, {plural(result['num_groups'], 'group')}"
        if "num_groups" in result
        else "95 % interval"
    )
    rows = []
    for key, name in SCORES.items():
        *_, last_score = scores = [result[way][key] for way in ways]
        cells = [measure(score["value"]) for score in scores]
        rows.append(
            [name, *cells, f"{measure(last_score['low'])} to {measure(last_score['high'])}"]
        )
    print_table(new_table([title, *ways, interval], rows, out, right=ways), out)
    if "calibrated" in result:
        parameters = (
            f"temperature {result['temperature']:.3g}"
            if "temperature" in result
            else "slope and offset of labels"
        )
        fit = f"{parameters}, fitted on {plural(result['num_images'], 'validation image')}"
        description = "; ".join(filter(None, [fit, result["note"]]))
    else:
        description = f"none: {result['note']}"
    print_line(out, f"calibration: {description}")
