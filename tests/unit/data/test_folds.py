"""Folds: stratified as scikit-learn's, disjoint, and every image tested once."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedKFold
from torch.utils.data import Subset

from lockstep.assembly.run_parts import source
from lockstep.assembly.try_out import refuse_shared_groups, refuse_unfit_images
from lockstep.config.errors import ConfigError
from lockstep.config.overrides import plan
from lockstep.data.cuts import Uncut, cut
from lockstep.data.sources.builtin import digits
from lockstep.data.sources.datasets import dataset
from lockstep.data.splits import Fold, Images, Splits, describe_groups
from tests.support.image_files import read, write_folder, write_image, write_list
from tests.support.sources import SETTINGS, Turned


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(5, 30), min_size=2, max_size=6), st.integers(2, 5), st.integers(0, 5))
def test_folds_have_as_many_of_each_class_as_those_of_scikit_learn(
    counts: list[int], num_folds: int, seed: int
) -> None:
    classes = np.repeat(np.arange(len(counts)), counts)
    names = [f"{number}.png" for number in range(len(classes))]
    images = Uncut(names, classes, seed)
    parts = [cut(images, {}, Fold(number, num_folds)) for number in range(num_folds)]
    cuts = [(part["train"], part["test"]) for part in parts]
    assert sorted(np.concatenate([tested for _, tested in cuts])) == list(range(len(classes)))
    oracle = StratifiedKFold(num_folds, shuffle=True, random_state=seed).split(names, classes)
    for (rest, tested), (other_rest, other_tested) in zip(cuts, oracle, strict=True):
        assert sorted([*rest, *tested]) == list(range(len(classes)))
        found, expected = (np.bincount(classes[part], minlength=len(counts)) for part in (tested, other_tested))
        assert found.tolist() == expected.tolist()
        assert len(rest) == len(other_rest)


def test_an_image_that_a_list_repeats_is_in_one_fold_only() -> None:
    names, classes = [f"{number % 20}.png" for number in range(50)], np.arange(50) % 20 % 2
    for number in range(4):
        parts = cut(Uncut(names, classes, 0), {}, Fold(number, 4))
        assert len({names[at] for at in parts["test"]}) == 5
        assert not {names[at] for at in parts["train"]} & {names[at] for at in parts["test"]}


def of_folder(path: Path, **more: Any) -> Callable[..., Splits]:
    return partial(read, write_folder(path), **more)


def of_digits(path: Path) -> Callable[..., Splits]:
    return partial(digits, **SETTINGS)


def of_dataset(path: Path) -> Callable[..., Splits]:
    rest: dict[str, Any] = {"val": None, "test": None, "class_names": None, "mean": None, "std": None}
    return partial(dataset, train=Turned(count=300), **{**SETTINGS, **rest})


@pytest.mark.parametrize("make", [of_folder, of_digits, of_dataset])
def test_every_image_of_a_source_is_tested_once_and_validation_is_cut_off_the_rest(
    tmp_path: Path, make: Callable[[Path], Callable[..., Splits]]
) -> None:
    load = make(tmp_path)
    plain, folds = load(), [load(fold=Fold(number, 4)) for number in range(4)]
    every = sorted(name for part in plain.parts.values() for name in part.names)
    assert sorted(name for splits in folds for name in splits.test.names) == every
    counts = []
    for splits in folds:
        assert sorted(name for part in splits.parts.values() for name in part.names) == every
        assert min(len(part) for part in splits.parts.values()) > 0
        classes = splits.test.classes
        assert classes is not None
        counts.append(torch.bincount(classes, minlength=len(splits.class_names)))
    spread = torch.stack(counts)
    assert int((spread.amax(0) - spread.amin(0)).max()) <= 1
    assert load(fold=Fold(1, 4)).test.names == folds[1].test.names


def test_a_test_set_of_its_own_is_left_out_and_a_validation_set_kept(tmp_path: Path) -> None:
    for split, count in (("train", 8), ("val", 2), ("test", 2)):
        for name in ("a", "b"):
            for number in range(count):
                write_image(tmp_path / split / name / f"{number}.png", seed=number)
    folds = [read(tmp_path, fold=Fold(number, 4)) for number in range(4)]
    assert all(len(splits.val) == 4 and all(name.startswith("val/") for name in splits.val.names) for splits in folds)
    tested = sorted(name for splits in folds for name in splits.test.names)
    assert tested == sorted(f"train/{name}/{number}.png" for name in "ab" for number in range(8))
    assert all(len(splits.train) == 12 for splits in folds)


def test_folds_that_cannot_be_stratified_are_refused(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "images", count=4)
    with pytest.raises(ValueError, match="needs as many images of each class, and the smallest has 4: use"):
        read(root, fold=Fold(0, 5))
    relabelled = Turned()
    relabelled.target_transform = abs  # pyright: ignore[reportAttributeAccessIssue]
    for unknown in (relabelled, Subset(Turned(), range(50))):
        with pytest.raises(ValueError, match="does not list: give it `targets`, no target_transform"):
            of_dataset(tmp_path)(train=unknown, class_names=Turned.classes, fold=Fold(0, 5))
    (config,) = plan(["data=synthetic", "+data.folds=5"]).configs
    with pytest.raises(
        ConfigError, match=r"data.folds=5, but data._target_=lockstep.data.synthetic has no parameter `fold`"
    ):
        source(config.data)


def test_images_and_groups_of_each_split_are_described() -> None:
    def images(groups: list[str] | None, count: int) -> Images:
        return Images(torch.zeros(count, 1, 2, 2), torch.zeros(count).long(), ["a"] * count, groups)

    splits = Splits(images(["x", "y"] * 602, 1204), images(["z"], 1), images(["v", "w"], 2), ("cat",))
    assert describe_groups(splits) == "train 2 (images: 1,204), val 1 (images: 1), test 2 (images: 2)"
    one = replace(splits, train=images(None, 3), test=images(None, 3))
    assert describe_groups(one) == "val 1 (images: 1)"
    assert describe_groups(replace(one, val=images(None, 1))) == ""


class Visits(Turned):
    """Digits of 60 patients, five each."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.groups = np.arange(len(self)) // 5


def test_samples_of_a_group_of_a_dataset_are_in_one_split_and_one_fold(tmp_path: Path) -> None:
    load = partial(of_dataset(tmp_path), train=Visits(count=300))
    for fold in (None, *(Fold(number, 3) for number in range(3))):
        splits = load(fold=fold)
        groups = [{*part.groups} for part in splits.parts.values() if part.groups is not None]
        assert len(groups) == 3
        assert sum(map(len, groups)) == len(set.union(*groups)) == 60
        for part in splits.parts.values():
            assert part.groups == [str(int(name.removeprefix("train/")) // 5) for name in part.names]
    short = Visits(count=300)
    short.groups = short.groups[:7]
    with pytest.raises(
        ValueError, match=r"data\.train\.groups \(Visits\) has 7 groups for 300 samples: give one for each"
    ):
        load(train=short)


@pytest.mark.parametrize("kind", [Turned, Visits])
def test_samples_of_an_earlier_cut_of_a_dataset_stay_where_they_were(tmp_path: Path, kind: type[Turned]) -> None:
    for fold in (None, Fold(1, 3)):
        first = of_dataset(tmp_path)(train=kind(count=300), fold=fold)
        before = {name: split for split, part in first.parts.items() for name in part.names}
        more = of_dataset(tmp_path)(train=kind(count=400), fold=fold, kept=before)
        after = {name: split for split, part in more.parts.items() for name in part.names}
        assert before.items() <= after.items()
        assert len(after) == 400
        assert {after[name] for name in after if name not in before} >= {"train", "test"}


def test_a_group_in_two_given_splits_is_refused_unless_it_is_accepted(tmp_path: Path) -> None:
    trained, tested = ("a/p1_1", "a/p3_1", "a/p4_1", "b/p2_1", "b/p5_1"), ("a/p1_2", "b/p2_2")
    for name in (*(f"train/{name}" for name in trained), *(f"test/{name}" for name in tested)):
        write_image(tmp_path / f"{name}.png")
    settings = ["data=image_folder", f"data.root={tmp_path}", r"data.group='/(p\d+)_'", "data.val_fraction=0.4"]
    (config,) = plan([*settings, "data.cache=null", "data.image_size=8"]).configs
    both = r"1 group in both train and test, such as p1 \(train/a/p1_1.png, test/a/p1_2.png\): move"
    with pytest.raises(ConfigError, match=rf"data\.shared_groups=refuse forbids {both}.*data\.shared_groups=accept"):
        refuse_unfit_images(config, source(config.data))
    (accepted,) = plan([*settings, "data.cache=null", "data.image_size=8", "data.shared_groups=accept"]).configs
    refuse_unfit_images(accepted, source(accepted.data))
    splits = of_dataset(tmp_path)(train=Visits(count=300), test=Visits(split="test", count=50))
    both = r"\d groups in both train and test, such as \d+ \(train/\d+, test/\d+\)"
    with pytest.raises(ConfigError, match=both):
        refuse_shared_groups(config, splits)


@pytest.mark.parametrize("source_name", ["image_folder", "list"])
def test_a_file_in_two_given_splits_is_refused_unless_it_is_accepted(tmp_path: Path, source_name: str) -> None:
    for name in ("train/a/1", "train/a/2", "train/b/1", "train/b/2", "test/b/1"):
        write_image(tmp_path / f"{name}.png")
    (tmp_path / "test/a").mkdir()
    (tmp_path / "test/a/1.png").symlink_to("../../train/a/1.png")
    rows = [
        {"path": path.relative_to(tmp_path), "label": path.parent.name, "split": path.parts[-3]}
        for path in sorted(tmp_path.rglob("*.png"))
    ]
    file = write_list(tmp_path / "list.csv", rows)
    place = (
        [f"data.root={tmp_path}"] if source_name == "image_folder" else [f"data.file={file}", "data.split_column=split"]
    )
    sizes = ["data.val_fraction=0.4", "data.cache=null", "data.image_size=8"]
    (config,) = plan([f"data={source_name}", *place, *sizes]).configs
    both = r"1 file in both train and test, such as test/a/1\.png \(train/a/1\.png, test/a/1\.png\)"
    with pytest.raises(ConfigError, match=rf"{both}.*data\.shared_groups=accept"):
        refuse_unfit_images(config, source(config.data))
    (accepted,) = plan([f"data={source_name}", *place, *sizes, "data.shared_groups=accept"]).configs
    refuse_unfit_images(accepted, source(accepted.data))
