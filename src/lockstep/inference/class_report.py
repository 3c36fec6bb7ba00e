"""The report of an evaluation, with scores of each class.

It is printed in the terminal, and written into a folder as numbers and figures.
"""

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lockstep.callbacks import pictures
from lockstep.data.splits import Images
from lockstep.models.predictions import Findings, Floats
from lockstep.runs.files import JsonObject, move, write_json
from lockstep.system.terminal import new_table, print_table, terminal
from lockstep.system.text import plural

SCORES = ("images", "precision", "recall", "f1")
MAX_CLASSES_SHOWN = 40  # in the terminal
NUM_IMAGES = 24  # in a figure
NUM_RESAMPLES = 10_000


def scores_of(
    findings: Findings, class_names: Sequence[str], groups: Sequence[str] | None = None
) -> JsonObject:
    """Return images, precision, recall and F1 of each class, and their means.

    The result also has the confusion matrix without its zeros. With two or more `groups` of the
    images, it has the interval of the accuracy, too.

    The scores are those of scikit-learn's classification_report with zero_division=0. A class
    without images that was never predicted is left out. Every other class counts equally in the
    mean "classes", and by its images in the mean "images".
    """
    labels, predictions = findings.labels, findings.predictions
    label_arrays = labels[labels == predictions], predictions, labels
    num_correct, num_predicted, num_true = (
        np.bincount(numbers, minlength=len(class_names)) for numbers in label_arrays
    )
    denominators = np.maximum(1, [num_predicted, num_true, num_predicted + num_true])
    present = np.flatnonzero(num_predicted + num_true)
    scores = ([[1], [1], [2]] * num_correct / denominators)[:, present]
    # Nested dictionaries of true class, predicted class and count avoid C x C numbers.
    matrix: dict[str, dict[str, int]] = {}
    pairs: Counter[tuple[int, int]] = Counter(
        zip(labels.tolist(), predictions.tolist(), strict=True)
    )
    for (label, prediction), count in sorted(pairs.items()):
        matrix.setdefault(class_names[label], {})[class_names[prediction]] = count

    def row(count: int, values: Floats) -> JsonObject:
        return dict(zip(SCORES, (count, *values.tolist()), strict=True))

    report: JsonObject = {}
    if groups and len({*groups}) > 1:
        report["accuracy_interval"] = accuracy_interval(findings, groups)
    present_names = [class_names[number] for number in present.tolist()]
    rows = map(row, num_true[present].tolist(), scores.T)
    report["classes"] = dict(zip(present_names, rows, strict=True))
    report["means"] = {
        "classes": row(len(labels), scores.mean(1)),
        "images": row(len(labels), scores @ num_true[present] / len(labels)),
    }
    return report | {"confusion_matrix": matrix}


def accuracy_interval(findings: Findings, groups: Sequence[str]) -> JsonObject:
    """Return the 95 % interval of the accuracy, by resampling groups with replacement.

    It is the percentile interval of the cluster bootstrap (Field and Welsh 2007,
    doi.org/10.1111/j.1467-9868.2007.00593.x). `groups` are those of the images of the split, by
    position. With fewer than two groups it is Wilson's interval (1927).
    """
    if len({*groups}) < 2:
        from scipy.stats import binomtest  # This import takes 0.4 s.

        interval = binomtest(int(findings.hits.sum()), len(findings.hits)).proportion_ci(
            method="wilson"
        )
        return {"low": float(interval.low), "high": float(interval.high)}
    units, numbers = np.unique(
        [groups[index] for index in findings.indices.tolist()], return_inverse=True
    )
    sums = np.stack(
        [np.bincount(numbers, findings.labels == findings.predictions), np.bincount(numbers)]
    )
    # Groups with the same sums are drawn as one type.
    kinds, counts = np.unique(sums, axis=1, return_counts=True)
    num_correct, num_images = (
        kinds
        @ np.random.default_rng(0).multinomial(len(units), counts / len(units), NUM_RESAMPLES).T
    )
    low, high = np.percentile(num_correct / num_images, [2.5, 97.5]).tolist()
    return {"low": low, "high": high, "num_groups": len(units)}


def show_report(result: JsonObject) -> None:
    """Print the scores of each class, or the lowest ones of many classes."""
    if "classes" not in result:
        return
    out = terminal()
    if (bounds := result.get("accuracy_interval")) is not None:
        out.print(
            f"95 % interval of the accuracy: {bounds['low']:.4f} to {bounds['high']:.4f}, "
            f"resampling {plural(bounds['num_groups'], 'group')}"
        )
    classes = list(result["classes"].items())
    if len(classes) > MAX_CLASSES_SHOWN:
        classes = sorted(classes, key=lambda item: item[1]["f1"])[:MAX_CLASSES_SHOWN]
    lines = [*classes, *((f"mean of {name}", row) for name, row in result["means"].items())]
    cells = [
        [name, f"{row['images']:,}", *(f"{row[score]:.4f}" for score in SCORES[1:])]
        for name, row in lines
    ]
    print_table(new_table(["class", *SCORES], cells, out, right=SCORES), out)
    if len(classes) < len(result["classes"]):
        out.print(
            f"{len(classes)} of {len(result['classes']):,} classes, those of the lowest f1; "
            "--json has all"
        )


def draw(
    folder: Path,
    class_names: tuple[str, ...],
    images: Images,
    findings: Findings,
    result: JsonObject,
) -> None:
    """Write figures and report.json of an evaluation into a folder, and print the folder."""
    from lockstep.callbacks import plots

    title = f"{plots.short_name(Path(result['data']).name)}, {result['split']}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=".lockstep-", dir=folder.parent) as hidden_folder,
        plots.style(),
    ):
        (staging_folder := Path(hidden_folder, folder.name)).mkdir()
        for name, figure in pictures.figures(
            images.pixels, class_names, findings, NUM_IMAGES, title
        ):
            figure.savefig(staging_folder / f"{name}.png", dpi=plots.DPI)
        write_json(staging_folder / "report.json", result)
        move(staging_folder, folder)
    print(f"pictures and report.json in {folder}", flush=True)
