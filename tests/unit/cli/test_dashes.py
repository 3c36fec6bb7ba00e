"""Settings that were typed as options are told apart from Hydra's, and each error says what to write."""

import pytest
from hydra._internal.utils import get_args_parser

from lockstep.cli import dashes
from lockstep.config.compose import DEFAULT
from lockstep.config.errors import ConfigError


def errors(*words: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        dashes.refuse(words, get_args_parser(), DEFAULT)
    return caught.value.errors


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--batch-size", "32"], "--batch-size 32: unknown key batch_size: write global_batch_size=..."),
        (["--batch_size=32"], "--batch_size=32: unknown key batch_size: write global_batch_size=..."),
        (["--gpus", "2", "seed=1"], "--gpus 2: unknown key gpus: write trainer.devices=..."),
        (["--test-only"], "--test-only: unknown key test_only: write lockstep eval latest"),
        (["--test-only", "seed=1"], "--test-only: unknown key test_only: write lockstep eval latest"),
        (["--lr", "0.1"], "--lr 0.1: unknown key lr: did you mean optimizer.lr?"),
        (["-j4"], "-j4: unknown key j4: remove it; --help lists the keys"),
        (["--seed", "1"], "--seed 1: settings have no dashes: write seed=1"),
        (["--trainer.devices=2"], "--trainer.devices=2: settings have no dashes: write trainer.devices=2"),
        (["-m", "--seed", "1,2"], "--seed 1,2: settings have no dashes: write seed=1,2"),
    ],
    ids=" ".join,
)
def test_a_setting_with_dashes_is_one_fault_with_what_to_write(words: list[str], error: str) -> None:
    told = errors(*words)
    assert len(told) == 1
    assert told[0].startswith(error)


def test_all_of_them_are_told_at_once() -> None:
    assert [error.partition(":")[0] for error in errors("--epochs", "3", "model.width=4", "--lr=1")] == [
        "--epochs 3",
        "--lr=1",
    ]


@pytest.mark.parametrize(
    "words",
    [
        *(["--help"], ["-h"], ["-m", "seed=0,1"], ["--multirun"], ["--multi"], ["--cfg", "job"], ["-cjob"]),
        *(["--config-name=other"], ["-cn", "other"], ["model.width=4", "optimizer.lr=-1"], ["~callbacks.timer"]),
        *(["-"], ["--"], []),
    ],
    ids=" ".join,
)
def test_options_of_hydra_and_settings_pass(words: list[str]) -> None:
    dashes.refuse(words, get_args_parser(), DEFAULT)
