"""Distribute groups of images over splits or folds, with classes as even as groups allow.

This module does not import torch.
"""

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def deal_groups(
    units: Rows, classes: Rows, fractions: NDArray[np.float64], earlier_subsets: Rows
) -> Rows:
    """Return the subset of each image (N,), with all images of a unit (N,) in the same subset.

    Subsets are splits or folds. `earlier_subsets` (N,) has the subset of images that are assigned
    already, and -1 for new images. First, every class gets into every subset. The rarest class
    comes first, with its smallest groups, and training is filled before the other subsets. Then
    groups, largest first, go to the subset where sum((count - quota)^2 / (quota * total)) grows
    least, over subsets and classes. All images together count as one more class. A second pass
    moves the groups that are not the last one of a class in their subset. Sums are elementwise and
    in a fixed order, so that all machines compute the same bits.
    """
    subsets = earlier_subsets.copy()
    new_rows = np.flatnonzero(earlier_subsets < 0)
    last_subset = len(fractions) - 1
    kinds, labels = np.unique(classes, return_inverse=True)
    total_row, is_assigned = len(kinds), earlier_subsets >= 0
    totals = np.append(np.bincount(labels), len(labels))[:, None]
    quotas, num_images = totals * fractions, np.zeros((total_row + 1, last_subset + 1))
    np.add.at(num_images, (labels[is_assigned], earlier_subsets[is_assigned]), 1)
    num_images[total_row] = num_images.sum(0)
    num_groups = num_images.copy()  # of each class in each subset, where assigned images stay

    order = new_rows[np.argsort(units[new_rows], kind="stable")]
    groups = np.split(order, np.flatnonzero(np.diff(units[order])) + 1) if len(new_rows) else []
    groups.sort(key=len)
    class_counts, members = list[tuple[Rows, Rows]](), [list[int]() for _ in num_images]
    for number, rows in enumerate(groups):
        kinds, counts = np.unique(labels[rows], return_counts=True)
        class_counts.append((np.append(kinds, total_row), np.append(counts, len(rows))[:, None]))
        for row in class_counts[number][0].tolist():
            members[row].append(number)

    def add(group: int, subset: int, sign: int = 1) -> None:
        rows, counts = class_counts[group]
        num_images[rows, subset] += sign * counts[:, 0]
        num_groups[rows, subset] += sign
        subsets[groups[group]] = subset

    for row in sorted(range(len(num_images)), key=lambda row: len(members[row])):
        empty_subsets = [
            subset for subset in (last_subset, *range(last_subset)) if not num_groups[row, subset]
        ]
        candidates = [group for group in members[row] if subsets[groups[group][0]] < 0][
            : len(empty_subsets)
        ]
        for group, subset in zip(
            candidates,
            sorted(empty_subsets[: len(candidates)], key=lambda subset: fractions[subset]),
            strict=True,
        ):
            add(group, subset)
    by_size = np.argsort([-len(rows) for rows in groups], kind="stable").tolist()
    # A third pass improves the result by less than 1 % (272 random data sets, 2026-11-27).
    for is_first in (True, False):
        for group in by_size:
            (rows, counts), subset = class_counts[group], int(subsets[groups[group][0]])
            if subset >= 0:
                if is_first or (num_groups[rows, subset] == 1).any():
                    continue
                add(group, subset, -1)
            cost = (
                counts
                * (counts + 2 * (num_images[rows] - quotas[rows]))
                / (quotas[rows] * totals[rows])
            )
            add(group, int(cost.sum(0).argmin()))
    return subsets
