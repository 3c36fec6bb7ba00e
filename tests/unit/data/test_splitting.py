"""Cuts: sizes that are met, few moves, whole groups, and images that stay where they were."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold

from lockstep.data.splits import Fold
from lockstep.data.splitting import Unsplit, split_images

FRACTIONS = {"val": 0.1, "test": 0.2}
COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=4)
SIZES = st.tuples(st.floats(0.02, 0.45), st.floats(0.02, 0.45)).map(
    lambda pair: {"val": round(pair[0], 2), "test": round(pair[1], 2)}
)


def images(counts: list[int], seed: int = 0, **more: Any) -> Unsplit:
    classes = np.repeat(np.arange(len(counts)), counts)
    return Unsplit([f"{number}.png" for number in range(len(classes))], classes, seed, **more)


def grouped(random: np.random.Generator) -> Unsplit:
    """Draw 20 to 160 groups of several sizes.

    Each has one class, or several classes with frequencies of its own.
    """
    num_classes, num_groups = random.integers(2, 8), random.integers(20, 160)
    groups = np.repeat(
        np.arange(num_groups), random.geometric(1 / random.integers(2, 20), num_groups)
    )
    frequencies = random.dirichlet(np.full(num_classes, 2.0))
    chances = random.dirichlet(frequencies * num_classes / 2 + 1e-3, num_groups)
    of_groups = random.choice(num_classes, num_groups, p=frequencies)
    classes = np.array([random.choice(num_classes, p=chances[group]) for group in groups])
    classes = np.unique(
        of_groups[groups] if random.random() < 0.4 else classes, return_inverse=True
    )[1]
    return Unsplit(
        [f"{row}.png" for row in range(len(groups))], classes, 0, [f"p{group}" for group in groups]
    )


def split_of(unsplit: Unsplit, *more: Any) -> dict[str, str]:
    parts = split_images(unsplit, *more)
    assert sorted(np.concatenate([*parts.values()])) == list(range(len(unsplit.names)))
    return {str(unsplit.names[int(row)]): split for split, rows in parts.items() for row in rows}


def counts_of(unsplit: Unsplit, parts: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """Images (classes, parts)."""
    kinds = unsplit.classes.max() + 1
    return np.stack(
        [np.bincount(unsplit.classes[rows], minlength=kinds) for rows in parts.values()], 1
    )


def units_of(unsplit: Unsplit) -> NDArray[np.int64]:
    """Groups of each class."""
    pairs = {*zip(unsplit.groups or (), unsplit.classes.tolist(), strict=True)}
    return np.bincount([number for _, number in pairs])


def usable(unsplit: Unsplit, fractions: dict[str, float]) -> bool:
    try:
        split_images(unsplit, fractions)
    except ValueError:  # too small for the fractions
        return False
    return True


@settings(max_examples=40, deadline=None, derandomize=True)
@given(COUNTS, SIZES, st.integers(0, 5))
def test_class_fractions(counts: list[int], fractions: dict[str, float], seed: int) -> None:
    unsplit = images(counts, seed)
    if not usable(unsplit, fractions):
        return
    parts = split_images(unsplit, fractions)
    assert [*parts] == ["val", "test", "train"]
    for count, found in zip(counts, counts_of(unsplit, parts), strict=True):
        assert found.sum() == count
        assert min(found[2], count) >= 1
        assert count < 3 or found.min() >= 1
        assert count != 2 or found.tolist() == [1, 0, 1]
        if count >= 3 and count * (1 - sum(fractions.values())) >= 1:
            wanted = [count * fractions["val"], count * fractions["test"]]
            assert all(
                abs(size - exact) <= max(0.5, 1 - exact)
                for size, exact in zip(found, wanted, strict=False)
            )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(COUNTS, SIZES, st.integers(0, 5), st.data())
def test_new_image_moves_few(
    counts: list[int], fractions: dict[str, float], seed: int, data: st.DataObject
) -> None:
    more = images(counts, seed)
    row = data.draw(st.integers(0, len(more.names) - 1))
    less = more.take(np.delete(np.arange(len(more.names)), row))
    if not usable(more, fractions) or not usable(less, fractions):
        return
    before, after = split_of(less, fractions), split_of(more, fractions)
    moved = [(before[name], after[name]) for name in before if before[name] != after[name]]
    # in the order val, train, test: each pair of neighbors has one border
    assert len(moved) <= 2
    assert len({frozenset(move) for move in moved}) == len(moved)
    assert all("train" in move for move in moved)


@pytest.mark.parametrize("has_groups", [False, True])
@pytest.mark.parametrize("fold", [None, Fold(1, 3)])
def test_order_ignored(has_groups: bool, fold: Fold | None) -> None:
    for seed in range(4):
        random = np.random.default_rng(seed)
        unsplit = grouped(random)
        unsplit = unsplit if has_groups else replace(unsplit, groups=None)
        if has_groups and units_of(unsplit).min() < 3:
            continue
        shuffled = unsplit.take(random.permutation(len(unsplit.names)))
        assert split_of(unsplit, FRACTIONS, fold) == split_of(shuffled, FRACTIONS, fold)
        assert split_of(unsplit, FRACTIONS, fold) != split_of(
            replace(unsplit, seed=1), FRACTIONS, fold
        )


def test_group_folds_as_scikit_learn() -> None:
    num_folds, ours, oracle = 3, list[Any](), list[Any]()

    def deviations(unsplit: Unsplit, parts: Mapping[str, NDArray[np.int64]]) -> tuple[float, float]:
        counts = counts_of(unsplit, parts)
        totals = counts.sum(1, keepdims=True)
        return abs(counts / totals - 1 / num_folds).max(), abs(
            counts.sum(0) / counts.sum() - 1 / num_folds
        ).max()

    for seed in range(25):
        unsplit = grouped(np.random.default_rng(seed))
        if units_of(unsplit).min() < num_folds or unsplit.groups is None:
            continue
        groups, tested = (
            dict(zip(unsplit.names, unsplit.groups, strict=True)),
            dict[str, NDArray[np.int64]](),
        )
        for number in range(num_folds):
            split = split_of(unsplit, {}, Fold(number, num_folds))
            assert len({(groups[name], part) for name, part in split.items()}) == len(
                {*unsplit.groups}
            )
            tested[str(number)] = np.flatnonzero([split[name] == "test" for name in unsplit.names])
        assert counts_of(unsplit, tested).min() >= 1
        ours.append(deviations(unsplit, tested))
        split = StratifiedGroupKFold(num_folds, shuffle=True, random_state=0).split
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a class with fewer members than folds
            folds = list(split(unsplit.names, unsplit.classes, unsplit.groups))
        oracle.append(
            deviations(unsplit, {str(number): rows for number, (_, rows) in enumerate(folds)})
        )
    assert len(ours) > 10
    assert (np.mean(ours, 0) <= np.mean(oracle, 0)).all()


def test_fewer_groups_than_folds_refused() -> None:
    unsplit = Unsplit(
        [f"{row}" for row in range(40)],
        np.arange(40) % 2,
        0,
        [f"p{row // 10}" for row in range(40)],
    )
    with pytest.raises(
        ValueError,
        match=r"data\.folds=5 needs as many groups of each class, and the smallest has 4",
    ):
        split_images(unsplit, {}, Fold(0, 5))


def test_group_fractions() -> None:
    sizes = np.arange(1, 25)  # of groups, whose classes alternate
    groups = np.repeat([f"p{number}" for number in range(24)], sizes).tolist()
    classes = np.repeat(np.arange(24) % 2, sizes)
    unsplit = Unsplit([f"{row}" for row in range(len(groups))], classes, 0, groups)
    counts = counts_of(unsplit, split_images(unsplit, FRACTIONS))
    expected = np.bincount(classes)[:, None] * [0.1, 0.2, 0.7]
    assert abs(counts - expected).max() <= 3


def test_fewer_groups_than_splits_refused() -> None:
    unsplit = images([20, 20], groups=[f"p{row % 2}" for row in range(40)])
    with pytest.raises(ValueError, match=r"data\.test_fraction=0\.2 .* 2 groups"):
        split_images(unsplit, FRACTIONS)
    for whole in (unsplit, replace(unsplit, groups=None), images([21, 20])):
        with pytest.raises(ValueError, match=r"val_fraction=0\.5 and data\.test_fraction=0\.5"):
            split_images(whole, {"val": 0.5, "test": 0.5})


@pytest.mark.parametrize("has_groups", [False, True])
@pytest.mark.parametrize("fold", [None, Fold(2, 3)])
def test_known_images_stay(has_groups: bool, fold: Fold | None) -> None:
    for seed in range(6):
        random = np.random.default_rng(seed)
        every = grouped(random)
        every = every if has_groups else replace(every, groups=None)
        order = random.permutation(len(every.names))
        old = every.take(np.sort(order[: len(order) * 2 // 3]))
        if (units_of(old) if has_groups else np.bincount(old.classes)).min() < 3:
            continue
        before = split_of(old, FRACTIONS, fold)
        after = split_of(replace(every, kept=before), FRACTIONS, fold)
        assert before.items() <= after.items()
        assert {after[name] for name in after if name not in before} == {"train", "val", "test"}
        if every.groups is not None:
            found = {
                (group, after[name]) for group, name in zip(every.groups, every.names, strict=True)
            }
            assert len(found) == len({*every.groups})


def test_previous_split_kept() -> None:
    unsplit = images([30, 30])
    before = split_of(unsplit, FRACTIONS)
    after = split_of(replace(unsplit, kept=before), {"val": 0.1})
    assert all(
        after[name] == ("train" if split == "test" else split) for name, split in before.items()
    )
