"""Callbacks and loggers of your own, some derived from Lightning's."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.callbacks import EMAWeightAveraging, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import Open
from lockstep.runs.folder import RunFolder
from lockstep.training import observers
from lockstep.training.observers import built_callbacks
from tests.support.harness import SMALL


class Bar(TQDMProgressBar):
    """Does what it is derived from."""


class Average(EMAWeightAveraging):
    """Works."""


def config_with(kind: type[L.Callback]) -> Config:
    return validation.check_config(
        compose.compose_config([*SMALL, f"+callbacks.x._target_={__name__}.{kind.__name__}"])
    )


def test_one_that_derives_from_what_does_not_work_is_refused() -> None:
    expected = rf"^callbacks\.x\._target_={__name__}\.Bar: TQDMProgressBar does not work .*: remove it"
    with pytest.raises(ConfigError, match=expected):
        built_callbacks(config_with(Bar))


def test_one_that_derives_from_what_works_is_built() -> None:
    assert isinstance(built_callbacks(config_with(Average))[-1], Average)


class MyTensorBoardLogger(TensorBoardLogger):
    """Passes its other arguments on."""


class Ranked(CSVLogger):
    """Has parameters with the names of those of Lockstep's loggers."""

    def __init__(self, save_dir: str, rank: str, held: str = "") -> None:
        super().__init__(save_dir)


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("lightning.pytorch.loggers.TensorBoardLogger", {"purge_step"}),
        (f"{__name__}.MyTensorBoardLogger", {"purge_step"}),
        ("lockstep.callbacks.SplitTensorBoardLogger", {"purge_step"}),
        ("lockstep.callbacks.ResumableCSVLogger", {"purge_step"}),
        ("lockstep.callbacks.ResumableWandbLogger", {"rank", "held"}),
        (f"{__name__}.Ranked", set()),
    ],
)
def test_a_logger_is_given_the_run_folder_and_what_its_kind_needs(
    target: str, names: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"rank": 1, "held": contextlib.ExitStack(), "purge_step": 7}
    here: Any = SimpleNamespace(folder=RunFolder(tmp_path), rank=1, held=known["held"])
    monkeypatch.setattr(observers.build, "build", lambda section, **given: given)
    given: Any = observers._logger(here, Open.model_validate({"_target_": target}), 7)
    assert given == {"save_dir": str(tmp_path), **{name: known[name] for name in names}}
