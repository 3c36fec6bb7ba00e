"""Folds: stratified as scikit-learn's, disjoint, and every image tested once."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedKFold
from torch.utils.data import Subset

from lockstep.assembly.run_parts import refuse_unfit_images, source
from lockstep.config.errors import ConfigError
from lockstep.config.overrides import plan
from lockstep.data.sources.builtin import digits
from lockstep.data.sources.datasets import dataset
from lockstep.data.splits import Fold, Images, Splits
from lockstep.data.splitting import Unsplit, split_images
from tests.support.image_files import read, write_folder, write_image
from tests.support.sources import SETTINGS, Turned


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.integers(5, 30), min_size=2, max_size=6), st.integers(2, 5), st.integers(0, 5))
def test_folds_as_scikit_learn(counts: list[int], num_folds: int, seed: int) -> None:
    classes = np.repeat(np.arange(len(counts)), counts)
    names = [f"{number}.png" for number in range(len(classes))]
    images = Unsplit(names, classes, seed)
    parts = [split_images(images, {}, Fold(number, num_folds)) for number in range(num_folds)]
    cuts = [(part["train"], part["test"]) for part in parts]
    assert sorted(np.concatenate([tested for _, tested in cuts])) == list(range(len(classes)))
    oracle = StratifiedKFold(num_folds, shuffle=True, random_state=seed).split(names, classes)
    for (rest, tested), (other_rest, other_tested) in zip(cuts, oracle, strict=True):
        assert sorted([*rest, *tested]) == list(range(len(classes)))
        found, expected = (
            np.bincount(classes[part], minlength=len(counts)) for part in (tested, other_tested)
        )
        assert found.tolist() == expected.tolist()
        assert len(rest) == len(other_rest)


def of_dataset(path: Path) -> Callable[..., Splits]:
    rest: Any = dict.fromkeys(("val", "test", "class_names", "mean", "std"))
    return partial(dataset, train=Turned(count=300), **SETTINGS, **rest)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: partial(read, write_folder(path)),
        lambda path: partial(digits, **SETTINGS),
        of_dataset,
    ],
    ids=["folder", "digits", "dataset"],
)
def test_images_tested_once(tmp_path: Path, make: Callable[[Path], Callable[..., Splits]]) -> None:
    load = make(tmp_path)
    every = names_of(load().by_name.values())
    folds = [load(fold=Fold(number, 4)) for number in range(4)]
    assert names_of(splits.test for splits in folds) == every
    for splits in folds:
        assert names_of(splits.by_name.values()) == every
        assert min(len(part) for part in splits.by_name.values()) > 0


def names_of(parts: Iterable[Images]) -> list[str]:
    return sorted(name for part in parts for name in part.names)


def test_folds_predefined_splits(tmp_path: Path) -> None:
    for split, count in (("train", 4), ("val", 2), ("test", 2)):
        write_folder(tmp_path / split, count=count)
    folds = [read(tmp_path, fold=Fold(number, 4)) for number in range(4)]
    train = names_of([*folds[0].by_name.values()][0::2])
    assert {name.partition("/")[0] for name in train} == {"train"}
    assert names_of(splits.test for splits in folds) == train
    for splits in folds:
        assert {name.partition("/")[0] for name in splits.val.names} == {"val"}
        assert (len(splits.val), len(splits.train)) == (4, 6)


def test_folds_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the smallest has 4"):
        read(write_folder(tmp_path / "images", count=4), fold=Fold(0, 5))
    relabeled = Turned()
    relabeled.target_transform = abs  # pyright: ignore[reportAttributeAccessIssue]
    for unknown in (relabeled, Subset(Turned(), range(50))):
        with pytest.raises(ValueError, match="give it `targets`"):
            of_dataset(tmp_path)(train=unknown, class_names=Turned.classes, fold=Fold(0, 5))


class Visits(Turned):
    """Digits of 60 patients, five each."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.groups = np.arange(len(self)) // 5


@pytest.mark.parametrize("fold", [None, Fold(0, 3), Fold(2, 3)])
def test_dataset_group_in_one_split(tmp_path: Path, fold: Fold | None) -> None:
    load = partial(of_dataset(tmp_path), train=Visits(count=300))
    found = set[tuple[str, str]]()
    for split, part in load(fold=fold).by_name.items():
        assert part.groups == [str(int(name.removeprefix("train/")) // 5) for name in part.names]
        found |= {(group, split) for group in part.groups or ()}
    assert len(found) == 60
    short = Visits(count=300)
    short.groups = short.groups[:7]
    with pytest.raises(
        ValueError, match=r"data\.train\.groups \(Visits\) has 7 groups for 300 samples"
    ):
        load(train=short)


def refuse_unfit(*overrides: str) -> None:
    sizes = ["data.val_fraction=0.4", "data.cache=null", "data.image_size=8"]
    (config,) = plan([*overrides, *sizes]).configs
    refuse_unfit_images(config, source(config.data))


@pytest.mark.parametrize(
    ("names", "links", "group", "error"),
    [
        (
            [
                *(f"train/{name}" for name in ("a/p1_1", "a/p3_1", "a/p4_1", "b/p2_1", "b/p5_1")),
                *("test/a/p1_2", "test/b/p2_2"),
            ],
            {},
            [r"data.group='/(p\d+)_'"],
            r"data\.shared_groups.*p1 \(train/a/p1_1.png, test/a/p1_2.png\)",
        ),
        (
            ["train/a/1", "train/a/2", "train/b/1", "train/b/2", "test/a/2", "test/b/1"],
            {"test/a/1.png": "../../train/a/1.png"},
            [],
            r"\(train/a/1\.png, test/a/1\.png\).*data\.shared_groups=accept",
        ),
    ],
    ids=["group", "file"],
)
def test_shared_group_refused(
    tmp_path: Path, names: list[str], links: dict[str, str], group: list[str], error: str
) -> None:
    for name in names:
        write_image(tmp_path / f"{name}.png")
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    overrides = ["data=image_folder", f"data.root={tmp_path}", *group]
    with pytest.raises(ConfigError, match=error):
        refuse_unfit(*overrides)
    refuse_unfit(*overrides, "data.shared_groups=accept")
