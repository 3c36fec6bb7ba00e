"""data.validate_on_test: no source splits off a validation, and a given test or fold is kept."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.assembly.run_parts import refuse_unfit_images, source
from lockstep.config.errors import ConfigError
from lockstep.config.overrides import plan
from lockstep.config.schema.configuration import Config
from lockstep.data.inspection import inspect
from lockstep.sweeps.start import check_inputs
from tests.support.image_files import write_folder, write_list

FOLDER = ("data=image_folder", "data.root=images", "data.cache=null")
DATASET = ("data=dataset", "data.train={_target_:tests.support.sources.Turned}")
WITH_TEST = {
    "digits in folds": ("data=digits", "data.folds=3", "data.fold=1"),
    "folder": (*FOLDER, "data.root=given"),
    "streamed folder": (*FOLDER, "data.root=given", "data.memory=stream"),
    "list": ("data=list", "data.file=given.csv", "data.split_column=split", "data.cache=null"),
    "synthetic": ("data=synthetic", "data.val_size=1"),
    "dataset": (*DATASET, "data.test={_target_:tests.support.sources.Turned,split:test}"),
}
WITHOUT_TEST = {
    "digits": ("data=digits",),
    "folder of groups": (*FOLDER, "data.group=/(.*)[.]"),
    "dataset": DATASET,
}


def config_of(*overrides: str, is_used: bool = True) -> Config:
    used = [f"++data.validate_on_test={str(is_used).lower()}"]
    (config,) = plan([*overrides, *used, "calibrate=false"]).configs
    return config


@pytest.fixture(autouse=True)
def files(in_tmp_path: None, tmp_path: Path) -> None:
    write_folder(tmp_path / "images")
    for part, count in (("train", 12), ("test", 4)):
        write_folder(tmp_path / "given" / part, count=count)
    names = sorted(path.relative_to(tmp_path) for path in (tmp_path / "images").rglob("*.png"))
    rows = [
        {"path": name, "label": name.parts[1], "split": "train" if i % 4 else "test"}
        for i, name in enumerate(names)
    ]
    write_list(tmp_path / "given.csv", rows)


@pytest.mark.parametrize("overrides", WITH_TEST.values(), ids=WITH_TEST)
def test_given_test(overrides: tuple[str, ...]) -> None:
    usual = source(config_of(*overrides, is_used=False).data)
    splits = source(config_of(*overrides).data)
    made = overrides[0] == "data=synthetic"  # Its val has images of its own.
    every = [*usual.train.names, *(() if made else usual.val.names)]
    assert sorted(splits.train.names) == sorted(every)
    assert list(splits.test.names) == list(usual.test.names)
    assert len(usual.val) > len(splits.val) == 0


@pytest.mark.parametrize("overrides", WITHOUT_TEST.values(), ids=WITHOUT_TEST)
def test_split_test(overrides: tuple[str, ...]) -> None:
    usual = source(config_of(*overrides, is_used=False).data)
    config = config_of(*overrides)
    splits = source(config.data)
    refuse_unfit_images(config, splits)
    every = [
        [name for part in each.by_name.values() for name in part.names] for each in (usual, splits)
    ]
    assert sorted(every[0]) == sorted(every[1])
    assert len(splits.test) > len(splits.val) == 0
    images = inspect(splits, lambda *_: None, is_near=False).images
    assert [len(part) for part in images.values()] == [len(splits.train), 0, len(splits.test)]


def refusal(refuse: Callable[..., object], *given: object) -> tuple[str, str]:
    """The code and the key of the only error."""
    with pytest.raises(ConfigError) as caught:
        refuse(*given)
    (error,) = caught.value.errors
    return error.code, error.key


@pytest.mark.parametrize(
    ("override", "is_used", "expected"),
    [
        ("data.root=three", True, ("conflict", "data.validate_on_test=true")),
        ("data.val_fraction=0", False, ("missing", "data._target_=lockstep.data.image_folder")),
    ],
    ids=["given val", "no val"],
)
def test_val_refused(override: str, is_used: bool, expected: tuple[str, str]) -> None:
    for part in ("train", "val", "test"):
        write_folder(Path("three") / part, count=2)
    config = config_of(*FOLDER, override, is_used=is_used)
    assert refusal(refuse_unfit_images, config, source(config.data)) == expected


def test_best_trial_refused() -> None:
    check_inputs([config_of("data=digits", "sweep.test=all")])
    assert refusal(check_inputs, [config_of("data=digits")]) == ("conflict", "sweep.test=best")
