"""Whether probabilities can be believed: their scores on a split, raw and calibrated, with 95 % intervals."""

from collections.abc import Sequence
from typing import Any

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.assembly.session import Session
from lockstep.assembly.staging import together
from lockstep.callbacks.reliability import Reliability
from lockstep.data.module import ImageData
from lockstep.inference import calibrate
from lockstep.models.outcomes import EDGES, NUM_BINS, Findings, Quality, bins_of
from lockstep.system.terminal import measure, new_table, print_table, say, terminal
from lockstep.system.wording import plural

SCORES = {"nll": "NLL", "brier": "Brier score", "ece": "ECE"}
NUM_RESAMPLES = 1000
MOST_WEIGHTS = 4_000_000  # in memory

Array = NDArray[np.float64]


def report(findings: Findings, groups: Sequence[str] | None, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of the probabilities and their bins, raw and, if there are such, calibrated.

    The expected calibration error (ECE) is that of Guo et al. (2017, https://arxiv.org/abs/1706.04599). Of few images
    it is too large, because it contains their chance. Intervals are from resampled images, or from whole groups of
    them: `groups` of the split, by position. `entry` is the calibration of the checkpoint.
    """
    ways = {"raw": findings.raw} | ({} if findings.calibrated is None else {"calibrated": findings.calibrated})
    units = np.stack([_rows(findings, quality) for quality in ways.values()], axis=1)
    is_grouped = groups is not None and len({*groups}) > 1
    if groups is not None and is_grouped:
        numbers = np.unique([groups[index] for index in findings.indices.tolist()], return_inverse=True)[1]
        rows, units = units, np.zeros((numbers.max() + 1, *units.shape[1:]))
        np.add.at(units, numbers, rows)
    scores = np.stack([_scores(units.sum(0)), *_interval(units)], axis=-1).tolist()
    result: dict[str, Any] = {}
    for (way, quality), of_way in zip(ways.items(), scores, strict=True):
        numbers = [dict(zip(("value", "low", "high"), each, strict=True)) for each in of_way]
        result[way] = {**dict(zip(SCORES, numbers, strict=True)), "bins": _bins(findings, quality)}
    if "calibrated" in result:
        slopes = entry["slope"].tolist()
        result |= {"temperature": 1 / slopes[0]} if len(slopes) == 1 else {}
        result["num_images"] = entry["num_images"]
    result["note"] = entry["note"]
    if is_grouped:
        result["num_groups"] = len(units)
    if num_broken := int((~np.isfinite(findings.raw.nll)).sum()):
        result["not_finite"] = num_broken
    return result


def _bins(findings: Findings, quality: Quality) -> list[dict[str, Any]]:
    """Return the bins that are not empty; of labels they count all of them."""
    rows = zip(EDGES[:-1].tolist(), EDGES[1:].tolist(), *findings.bins(quality).tolist(), strict=True)
    return [
        {"from": low, "to": high, "count": int(count), "confidence": confidences / count, "accuracy": hits / count}
        for low, high, count, confidences, hits in rows
        if count
    ]


def _rows(findings: Findings, quality: Quality) -> Array:
    """Return what scores are sums of, for each image: 1, NLL, Brier score, and the gaps in the bins (N, 3 + bins)."""
    count = len(findings.indices)
    gaps = (quality.confidences - findings.hits).reshape(count, -1)
    at = NUM_BINS * np.arange(count)[:, None] + bins_of(quality.confidences).reshape(count, -1)
    binned = np.bincount(at.ravel(), gaps.ravel() / gaps.shape[1], count * NUM_BINS).reshape(count, NUM_BINS)
    return np.column_stack([np.ones(count), quality.nll, quality.brier, binned]).astype(np.float64)


def _scores(sums: Array) -> Array:
    """Return NLL, Brier score and ECE (..., 3) of sums of rows (..., 3 + bins)."""
    return np.concatenate([sums[..., 1:3], abs(sums[..., 3:]).sum(-1, keepdims=True)], axis=-1) / sums[..., :1]


def _interval(units: Array) -> tuple[Array, Array]:
    """Return the ends of the 95 % intervals (ways, 3) for the rows (units, ways, 3 + bins) of images or groups.

    Percentiles of resampled units. A resample has about twice the chance in its ECE: the interval of that is mirrored
    at its value, which takes it off (the basic bootstrap: Davison and Hinkley 1997, 5.6).
    """
    draw, count = np.random.default_rng(0), len(units)
    flat, left, found = units.reshape(count, -1), NUM_RESAMPLES, []
    while left:
        size = min(left, max(1, MOST_WEIGHTS // count))
        weights = np.stack([np.bincount(draw.integers(count, size=count), minlength=count) for _ in range(size)])
        with np.errstate(invalid="ignore"):  # 0 times an infinite NLL
            found.append(_scores((weights @ flat).reshape(size, *units.shape[1:])))
        left -= size
    low, high = np.percentile(np.concatenate(found), [2.5, 97.5], axis=0)
    twice = 2 * _scores(units.sum(0))[:, 2]
    low[:, 2], high[:, 2] = np.maximum(0, twice - high[:, 2]), np.maximum(0, twice - low[:, 2])
    return low, high


def report_test(here: Session, data: ImageData, module: L.LightningModule) -> None:
    """Give the report of a test to the summary, and what was predicted how confidently to the checkpoint.

    Every rank must call it.
    """
    callbacks: Any = module.trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    found = next((each for each in callbacks if isinstance(each, Reliability)), None)  # a custom module has none
    if found is None or found.findings is None:
        return
    findings, entry = found.findings, found.entry
    path = here.folder.best_checkpoint if here.folder.best_checkpoint.exists() else here.folder.last_checkpoint
    if here.config.calibrate and path.exists():
        entry = torch.load(path, map_location="cpu", weights_only=True, mmap=True).get("calibration", entry)
        if "slope" in entry and not findings.is_multilabel:
            confidences, is_right = torch.from_numpy(findings.probabilities).float(), torch.from_numpy(findings.hits)
            kept = entry | {"test": {"confidences": confidences, "is_right": is_right}}
            together(lambda: calibrate.keep(path, kept) if here.rank == 0 else None)
    if here.rank == 0:
        found.results["calibration"] = report(findings, data.splits.test.groups, entry)


def show(result: dict[str, Any]) -> None:
    """Print a report as a table, and how the probabilities were calibrated."""
    out, ways = terminal(), [way for way in ("raw", "calibrated") if way in result]
    interval = f"95 % interval, {plural(result['num_groups'], 'group')}" if "num_groups" in result else "95 % interval"
    rows = []
    for key, name in SCORES.items():
        *_, last = scores = [result[way][key] for way in ways]
        cells = [measure(score["value"]) for score in scores]
        rows.append([name, *cells, f"{measure(last['low'])} to {measure(last['high'])}"])
    print_table(new_table(["probabilities", *ways, interval], rows, out, right=ways), out)
    say(out, f"calibration: {_summary(result)}")


def summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the report of a test in the table of a finished run."""
    result, texts = summary["calibration"], []
    for key in ("nll", "ece"):
        raw, *own = (measure(result[way][key]["value"]) for way in ("raw", "calibrated") if way in result)
        texts.append(f"{SCORES[key]} {own[0]}, raw {raw}" if own else f"{SCORES[key]} {raw}")
    return [("calibration", _summary(result)), ("", "; ".join(texts))]


def _summary(result: dict[str, Any]) -> str:
    """Return how the probabilities were calibrated, or why they were not."""
    broken = f"{plural(result['not_finite'], 'image')} without finite scores" if "not_finite" in result else ""
    if "calibrated" not in result:
        return "; ".join(filter(None, [f"none: {result['note']}", broken]))
    what = f"temperature {result['temperature']:.3g}" if "temperature" in result else "slope and offset of each label"
    fitted = f"{what}, fitted on {plural(result['num_images'], 'validation image')}"
    return "; ".join(filter(None, [fitted, result["note"], broken]))
