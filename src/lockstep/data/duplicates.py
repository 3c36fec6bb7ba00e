"""Find duplicates and near-duplicates among the images of an inspection.

They can leak between splits or folds, or have contradictory classes.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from lockstep.data.inspection import InspectedImage, Inspection
from lockstep.data.near_duplicates import Pair, Show, near_pairs
from lockstep.data.splits import Splits
from lockstep.system.text import join_names

MAX_IMAGES_NAMED = 4  # images listed in one message
# This is the smallest rounded distance of near-duplicates, because 0 means equal pixels.
MIN_DISTANCE = 0.0001


class Duplicate(NamedTuple):
    """An image that has a duplicate or near-duplicate.

    `split` is the split it is in, which may be that of a fold. `split_position` is its split and
    position in the inspection, and `target` is its target as text. `burst` is the group, split and
    target of the image, or None without groups.
    """

    split: str
    name: str
    target: str
    split_position: tuple[str, int]
    inspected_image: InspectedImage
    burst: tuple[str, str, str] | None


class Duplicates(NamedTuple):
    """Images that are connected by pairs of duplicates.

    The first two images are the nearest pair, or the nearest pair that leaks if there is a leak.
    `distance` is the distance of this pair, 0 for equal pixels. `fold` names the fold whose splits
    are reported, as in "data.fold=1".
    """

    images: list[Duplicate]
    distance: float
    fold: str
    kinds: list[str]

    @property
    def kind(self) -> str:
        if self.kinds:
            return " and ".join(self.kinds)
        return "near-duplicate" if self.distance else "duplicate"

    @property
    def is_equal(self) -> bool:
        return len({image.inspected_image.digest for image in self.images}) == 1

    @property
    def has_targets(self) -> bool:
        """Return whether the targets of the images differ."""
        return len({image.target for image in self.images}) > 1

    @property
    def text(self) -> str:
        """Return the first images with their splits, and with their targets if these differ."""
        template = "{0.split}: {0.name} ({0.target})" if self.has_targets else "{0.split}: {0.name}"
        images = [template.format(image) for image in self.images]
        line = join_names(images, MAX_IMAGES_NAMED, " = " if self.is_equal else " ~ ")
        if self.distance:
            line += f", distance {self.distance:.4f}"
        return f"{line} ({self.fold})" if self.fold else line


def find_duplicates(
    inspection: Inspection,
    folds: Sequence[Splits],
    threshold: float,
    show: Show,
) -> list[Duplicates]:
    """Find duplicates and, with a threshold, near-duplicates from different bursts.

    Images that are in several splits leak. `folds` are the splits of other folds, in which images
    may leak, too. `show` gets the number of compared images and the number of all images. Returns
    the duplicates, the worst first.
    """
    is_class = all(
        targets.dim() == 1 and not targets.is_floating_point()
        for targets in inspection.targets.values()
    )
    images = list(_readable(inspection, is_class=is_class))
    originals, thumbnails, pairs = {}, {}, []
    for number, image in enumerate(images):
        original = originals.setdefault(image.inspected_image.digest, number)
        if original != number:
            pairs.append(Pair(0.0, original, number))
        elif image.inspected_image.thumbnail is not None:
            thumbnails[number] = image.inspected_image.thumbnail
    numbers = list(thumbnails)
    for distance, *ends in near_pairs(list(thumbnails.values()), threshold, show):
        first, second = (numbers[end] for end in ends)
        if images[first].burst is None or images[first].burst != images[second].burst:
            pairs.append(Pair(max(distance, MIN_DISTANCE), first, second))
    fold_splits = {}
    for number, fold in enumerate(folds):
        splits = fold_splits[f"data.fold={number}"] = {}
        for split, fold_images in fold.by_name.items():
            splits |= dict.fromkeys(map(str, fold_images.names), split)
    chains = _chains(pairs, len(images))
    duplicates = [_duplicates(chain, images, fold_splits, is_class=is_class) for chain in chains]
    return sorted(duplicates, key=lambda cluster: (not cluster.kinds, cluster.distance))


def _readable(inspection: Inspection, *, is_class: bool) -> Iterator[Duplicate]:
    class_names = inspection.splits.class_names
    for split, images in inspection.splits.by_name.items():
        for position, result in enumerate(inspection.images[split]):
            if result.errors or result.target is None:
                continue
            target: Any = result.target[0].tolist()
            if is_class and 0 <= target < len(class_names):
                target = class_names[target]
            name, target, burst = str(images.names[position]), str(target), None
            if images.groups is not None:
                burst = str(images.groups[position]), split, target
            yield Duplicate(split, name, target, (split, position), result, burst)


def _chains(pairs: Sequence[Pair], count: int) -> list[list[Pair]]:
    """Group the pairs of `count` images that have images in common, and sort each group."""
    _, first, second = np.array(pairs or np.empty((0, 3))).T.astype(int)
    graph = coo_array((np.ones(len(pairs)), (first, second)), (count, count))
    chains = defaultdict(list)
    numbers = connected_components(graph, directed=False)[1]
    for pair in sorted(pairs):
        chains[numbers[pair.first]].append(pair)
    return list(chains.values())


def _duplicates(
    pairs: Sequence[Pair],
    images: Sequence[Duplicate],
    fold_splits: Mapping[str, Mapping[str, str]],
    *,
    is_class: bool,
) -> Duplicates:
    members = {number: images[number] for pair in pairs for number in pair[1:]}
    members_by_fold = {"": members}
    for fold, splits in fold_splits.items():
        members_by_fold[fold] = {
            number: image._replace(split=splits[image.name]) for number, image in members.items()
        }
    leaks = []
    for fold, fold_members in members_by_fold.items():
        for pair in pairs:
            if fold_members[pair.first].split != fold_members[pair.second].split:
                leaks.append((fold, pair))
    contradictions = [
        ("", pair)
        for pair in pairs
        if is_class and images[pair.first].target != images[pair.second].target
    ]
    fold, worst = [*leaks, *contradictions, ("", pairs[0])][0]
    numbers = dict.fromkeys([*worst[1:], *sorted(members)])
    duplicates = [members_by_fold[fold][number] for number in numbers]
    kinds = [
        kind
        for kind, wrong_pairs in (("leak", leaks), ("contradiction", contradictions))
        if wrong_pairs
    ]
    return Duplicates(duplicates, worst.distance, fold, kinds)
