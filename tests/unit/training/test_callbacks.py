"""Callbacks and loggers of your own, some derived from Lightning's."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lockstep.config.errors import ConfigError
from lockstep.config.schema.target_sections import Open
from lockstep.runs.folder import RunFolder
from lockstep.training import observers
from lockstep.training.observers import build_callbacks
from tests.support.composed import config_of
from tests.support.harness import SMALL


class Bar(TQDMProgressBar):
    """Does what it is derived from."""


def test_unusable_base_class_refused() -> None:
    config = config_of(*SMALL, f"+callbacks.x._target_={__name__}.Bar")
    with pytest.raises(ConfigError, match=rf"callbacks\.x\._target_={__name__}\.Bar"):
        build_callbacks(config)


class MyTensorBoardLogger(TensorBoardLogger):
    """Passes its other arguments on."""


class Ranked(CSVLogger):
    """Has other parameters than Lightning's."""

    def __init__(self, save_dir: str, rank: str = "") -> None:
        super().__init__(save_dir)


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("lightning.pytorch.loggers.TensorBoardLogger", {"purge_step"}),
        (f"{__name__}.MyTensorBoardLogger", {"purge_step"}),
        ("lockstep.callbacks.SplitTensorBoardLogger", {"purge_step"}),
        (f"{__name__}.Ranked", set()),
    ],
)
def test_logger_arguments(
    target: str, names: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Any = SimpleNamespace(folder=RunFolder(tmp_path), rank=1)
    monkeypatch.setattr(observers.build, "build", lambda section, **given: given)
    given: Any = observers._logger(here, "x", Open.model_validate({"_target_": target}), 7)
    assert given == {"save_dir": str(tmp_path), **dict.fromkeys(names, 7)}


def test_mlflow_service_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    (tmp_path / "run").mkdir()
    overrides = [*SMALL, "logger=mlflow", f"logger.mlflow.tracking_uri={tmp_path / 'mlruns'}"]
    config = config_of(*overrides)
    here: Any = SimpleNamespace(
        folder=RunFolder(tmp_path / "run"), rank=0, config=config, exit_stack=contextlib.ExitStack()
    )
    section: Any = config.logger["mlflow"]
    logger: Any = observers._logger(here, "mlflow", section, 0)
    monkeypatch.setattr(type(logger), "run_id", "gone")
    for step in (1, 2):
        logger.log_metrics({"val/loss": 0.5}, step)
    logger.finalize("success")
    assert capsys.readouterr().err.count("logger.mlflow no longer gets metrics") == 1
