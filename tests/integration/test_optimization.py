"""Schedules of every kind and parts of a network with rules of their own: what they do.

The arithmetic is that of tests/unit/models/test_parameter_groups.py, a resume that of
test_exactness.py.
"""

from pathlib import Path

import pytest

from tests.support.exact import refusal, trained
from tests.support.recipes import OPTIMIZATION, SHORT, TORCHS

pytestmark = pytest.mark.full


@pytest.mark.processes
def test_rates_of_schedules(tmp_path: Path) -> None:
    rates: dict[str, list[float]] = {}
    for name in ("schedule of epochs", "plateau", "warm restarts"):
        run = trained(tmp_path / name, OPTIMIZATION[name])
        rates[name] = [float(row["learning_rate"]) for row in run.read_metrics()]
    assert rates["schedule of epochs"] == [0.05, 0.025, 0.0125]
    assert rates["plateau"] == [0.1, 0.05, 0.025], "no accuracy is twice the first"
    assert len(set(rates["warm restarts"])) > 1


# -- what does not fit, before the first step ------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (
            ("+parameters.head={pattern:fcc}",),
            "parameters.head.pattern=fcc matches no parameter",
        ),
        (
            ("+parameters.all={pattern:weight}", "+parameters.head={pattern:fc.weight}"),
            "parameters.head.pattern=fc.weight matches only what parameters.all matches before it",
        ),
        (
            ("+parameters.norm={pattern:bn1,weight_decay:0.1}",),
            "parameters.norm.pattern=bn1 matches norms and biases only",
        ),
        (
            ("+parameters.all={pattern:'.',frozen_epochs:null}",),
            "parameters freezes the whole network",
        ),
        (
            ("model._target_=torchvision.models.resnet18",),
            "model._target_=torchvision.models.resnet18: ",
        ),
        (
            (
                "scheduler=constant",
                f"scheduler._target_={TORCHS}.CosineAnnealingWarmRestarts",
                "+scheduler.T_0=0",
            ),
            f"scheduler._target_={TORCHS}.CosineAnnealingWarmRestarts: ",
        ),
    ],
)
def test_wrong_settings_refused(tmp_path: Path, overrides: tuple[str, ...], error: str) -> None:
    assert f"config error: {error}" in refusal(tmp_path / "run", [*SHORT, *overrides])
