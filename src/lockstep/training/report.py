"""The report of an evaluation: scores of each class, in the terminal, and as numbers and pictures in a folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.callbacks import pictures
from lockstep.config.errors import ConfigError
from lockstep.data.images.splits import Images
from lockstep.models.classifier import Classifier
from lockstep.models.outcomes import Findings
from lockstep.runs.files import atomic_file, write_json
from lockstep.system.terminal import new_table, print_table, terminal
from lockstep.training import explanations

SCORES = ("images", "precision", "recall", "f1")
MOST_CLASSES = 40  # in the terminal
NUM_IMAGES = 24  # in a picture


def scores_of(confusion: NDArray[np.int64], names: Sequence[str]) -> dict[str, Any]:
    """Return images, precision, recall and F1 of each class from counts (C, C), their means, and the counts.

    As scikit-learn's classification_report with zero_division=0: a class without images that was never predicted is
    left out, and each other one counts equally in the mean "classes", as its images in the mean "images".
    """
    right, predicted, true = confusion.diagonal(), confusion.sum(0), confusion.sum(1)
    counted = np.maximum(1, [predicted, true, predicted + true])
    present = np.flatnonzero(predicted + true)
    scores = ([[1], [1], [2]] * right / counted)[:, present]
    total = int(true.sum())

    def row(count: int, values: NDArray[np.float64]) -> dict[str, Any]:
        return dict(zip(SCORES, (count, *values.tolist()), strict=True))

    return {
        "classes": {names[c]: row(int(true[c]), scores[:, i]) for i, c in enumerate(present.tolist())},
        "means": {"classes": row(total, scores.mean(1)), "images": row(total, scores @ true[present] / total)},
        "confusion_matrix": {"classes": list(names), "counts": confusion.tolist()},  # true classes down
    }


def show(result: dict[str, Any]) -> None:
    """Print the scores of each class; of many the lowest."""
    if "classes" not in result:
        return
    classes = list(result["classes"].items())
    if len(classes) > MOST_CLASSES:
        classes = sorted(classes, key=lambda item: item[1]["f1"])[:MOST_CLASSES]
    lines = [*classes, *((f"mean of {name}", row) for name, row in result["means"].items())]
    cells = [[name, f"{row['images']:,}", *(f"{row[score]:.4f}" for score in SCORES[1:])] for name, row in lines]
    out = terminal()
    print_table(new_table(["class", *SCORES], cells, out, right=SCORES), out)
    if len(classes) < len(result["classes"]):
        out.print(f"{len(classes)} of {len(result['classes']):,} classes, those of the lowest f1; --json has all")


def draw(folder: Path, module: Classifier, images: Images, findings: Findings, result: dict[str, Any]) -> None:
    """Write pictures and report.json of an evaluation into a folder, and print that."""
    from lockstep.callbacks import plots

    try:
        layer, remark = explanations.last_maps(module), ""
    except ConfigError:
        layer, remark = None, ", without Grad-CAM: the network does not end with maps"

    def explained(rows: NDArray[np.int64]) -> NDArray[np.uint8] | None:
        if layer is None:
            return None
        inputs = images.pixels[torch.from_numpy(findings.indices[rows])].to(module.device)
        classes = torch.from_numpy(findings.predictions[rows]).to(module.device)
        return explanations.overlays(inputs, explanations.heat_maps(module, layer, inputs, classes))

    folder.mkdir(parents=True, exist_ok=True)
    names, what = module.image_format.class_names, f"{plots.short(Path(result['data']).name)}, {result['split']}"
    with plots.style():
        for name, figure in pictures.figures(images.pixels, names, findings, NUM_IMAGES, what, explained):
            with atomic_file(folder / f"{name}.png") as file:
                figure.savefig(file, format="png", dpi=pictures.DPI)
    write_json(folder / "report.json", result)
    print(f"pictures and report.json in {folder}{remark}", flush=True)
