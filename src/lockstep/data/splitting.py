"""Split images into splits and folds by hashes of their names, and keep groups together."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lockstep.data.splits import Fold, Kept, refuse_empty

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Unsplit:
    """Images to split, with their `names` (N), `classes` (N,) and optional `groups` (N).

    `classes` can be any integers. The images of a group stay in one split. `kept` maps names to
    their earlier splits. These images stay in their split, and new images of their groups join
    them.
    """

    names: Sequence[str]
    classes: Rows
    seed: int
    groups: Sequence[str] | None = None
    kept: Kept = None

    def take(self, rows: Rows) -> "Unsplit":
        groups = None if self.groups is None else [self.groups[row] for row in rows]
        return replace(
            self, names=[self.names[row] for row in rows], classes=self.classes[rows], groups=groups
        )

    @cached_property
    def units(self) -> Rows:
        """Return the number of the group, or else the name, of each image (N,).

        Groups and names are numbered in the order of their hashes.
        """
        draws = name_draws(self.names if self.groups is None else self.groups, self.seed)
        return np.unique(draws, return_inverse=True)[1]

    def recorded_parts(self, parts: Sequence[str]) -> Rows:
        """Return the number of the part in which each image or its group was kept (N,).

        The number is -1 for new images. Splits that are not among the parts, and groups that were
        in several splits, count as the last part.
        """
        if self.kept is None:
            return np.full(len(self.names), -1)
        numbers = {None: -1} | {part: number for number, part in enumerate(parts)}
        known = np.array(
            [numbers.get(self.kept.get(name), len(parts) - 1) for name in self.names], np.int64
        )
        of_units = np.full(self.units.max() + 1, -1)
        np.maximum.at(of_units, self.units, known)
        return np.where(known < 0, of_units[self.units], known)


def split_images(
    images: Unsplit, fractions: Mapping[str, float], tested: Fold | Mask | None = None
) -> dict[str, Rows]:
    """Split positions into one sorted split for each of `fractions`, and "train" for the rest.

    `tested` is the split "test", if it is given. Each class has its fractions up to one image, if
    one image remains for training. A class with three images or more is in every split. Groups are
    not divided, and come as close to these numbers as possible. Images of the same name are in the
    same split. The order of the images does not matter. Raises ValueError for an empty split, and
    for a class with fewer images or groups than folds.
    """
    parts, rest = dict[str, Rows](), np.arange(len(images.names))
    if tested is not None:
        known = images.recorded_parts(["test", "train"])
        is_tested = np.where(
            known < 0,
            _fold_mask(images, tested) if isinstance(tested, Fold) else tested,
            known == 0,
        )
        parts["test"], rest = np.flatnonzero(is_tested), np.flatnonzero(~is_tested)
        fractions = {name: fraction for name, fraction in fractions.items() if name != "test"}
        images = images.take(rest)
    if not fractions:
        return parts | {"train": rest}
    every = np.array([*fractions.values(), 1 - sum(fractions.values())])
    known = images.recorded_parts([*fractions, "train"])
    if images.groups is None:
        found = _split_by_hash(images, every, known)
    else:
        from lockstep.data.group_splitting import deal_groups

        found = deal_groups(images.units, images.classes, every, known)
    text = f"{len(rest)} images" + (
        f" in {len({*images.groups})} groups" if images.groups is not None else ""
    )
    refuse_empty(text, fractions, np.bincount(found, minlength=len(every)).tolist())
    return parts | {
        name: rest[found == number] for number, name in enumerate([*fractions, "train"])
    }


def name_draws(names: Sequence[str], seed: int) -> NDArray[np.float64]:
    """Hash every name, together with `seed`, to a number in [0, 1]."""
    key = str(seed).encode()
    digests = b"".join(
        [hashlib.blake2b(os.fsencode(name), digest_size=8, key=key).digest() for name in names]
    )
    return np.frombuffer(digests, ">u8") / 2.0**64


def class_sizes(count: int, fractions: Sequence[float]) -> list[int]:
    """Return how many of `count` images of a class each split gets.

    Training keeps at least one image. With three images or more, each split gets at least one.
    """
    sizes, left = list[int](), count - 1
    for number, fraction in enumerate(fractions, 1):
        most = max(left - (len(fractions) - number), min(left, 1))
        sizes.append(min(max(1, round(count * fraction)), most))
        left -= sizes[-1]
    return sizes


def _fold_mask(images: Unsplit, fold: Fold) -> Mask:
    """Return which images are in the fold (N,).

    Without groups, the numbers of images of a class in two folds differ by at most one. Raises
    ValueError for a class with fewer names or groups than folds.
    """
    kinds, labels = np.unique(images.classes, return_inverse=True)
    fewest = np.bincount(np.unique(images.units * len(kinds) + labels) % len(kinds)).min()
    if fewest < fold.num_folds and images.kept is None:
        what = "images" if images.groups is None else "groups"
        problem = f"needs as many {what} of each class, and the smallest has {fewest}"
        raise ValueError(f"data.folds={fold.num_folds} {problem}: use fewer folds, or add images.")
    if images.groups is None:
        by_class = np.argsort(_unit_classes(images), kind="stable")
        return np.isin(images.units, by_class[fold.number :: fold.num_folds])
    equal = np.full(fold.num_folds, 1 / fold.num_folds)
    from lockstep.data.group_splitting import deal_groups

    return deal_groups(images.units, images.classes, equal, np.full(len(labels), -1)) == fold.number


def _unit_classes(images: Unsplit) -> Rows:
    """Return the class of each unit, or the lowest if a list repeats an image with several."""
    found = np.full(images.units.max() + 1, images.classes.max())
    np.minimum.at(found, images.units, images.classes)
    return found


def _split_by_hash(images: Unsplit, fractions: NDArray[np.float64], known: Rows) -> Rows:
    """Return the part of each image, where the images of a class are ordered by their hashes.

    Training is the last part, and comes second in this order. An image that is added or removed
    therefore moves at most one other image across each border.
    """
    classes, last = _unit_classes(images), len(fractions) - 1
    parts = np.full(len(classes), -1)
    parts[images.units] = known
    by_class = np.argsort(classes, kind="stable")
    for rows in np.split(by_class, np.flatnonzero(np.diff(classes[by_class])) + 1):
        new, sizes = rows[parts[rows] < 0], np.zeros(last + 1, np.int64)
        for part, size in enumerate(class_sizes(len(rows), fractions[:last].tolist())):
            lacking = max(0, size - np.count_nonzero(parts[rows] == part))
            sizes[part] = min(lacking, len(new) - sizes.sum())
        sizes[last] = len(new) - sizes.sum()
        order = [0, last, *range(1, last)]
        parts[new] = np.repeat(order, sizes[order])
    return parts[images.units]
