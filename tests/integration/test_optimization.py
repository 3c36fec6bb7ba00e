"""Schedules of every kind and parts of a network with rules of their own: what they do, and across a cut.

The arithmetic is that of tests/unit/models/test_parameter_groups.py.
"""

from pathlib import Path

import pytest
import torch

from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support.exact import cut_after, train
from tests.support.harness import difference, own_network, train_all, write_run
from tests.support.recipes import OPTIMIZATION, SHORT, TORCHS

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    root = tmp_path_factory.mktemp("optimization")
    found = {name: write_run(root / name, recipe) for name, recipe in OPTIMIZATION.items()}
    train_all(list(found.values()), 1)
    return found


@pytest.mark.processes
def test_the_rates_of_a_run_are_those_of_its_schedule(runs: dict[str, RunFolder]) -> None:
    rates = {name: [float(row["learning_rate"]) for row in runs[name].read_metrics()] for name in OPTIMIZATION}
    assert rates["schedule of epochs"] == [0.05, 0.025, 0.0125]
    assert rates["plateau"] == [0.1, 0.05, 0.025], "no accuracy is twice the first"
    assert len(set(rates["warm restarts"])) > 1


@pytest.mark.processes
@pytest.mark.parametrize("name", ["plateau", "parameter groups"])
def test_a_cut_before_and_after_a_change_changes_no_bit(runs: dict[str, RunFolder], tmp_path: Path, name: str) -> None:
    """The change is that of the second epoch, from step 5 on."""
    per_epoch = 66 // 16
    for step in (1, per_epoch, per_epoch + 1, 2 * per_epoch):
        cut = write_run(tmp_path / f"cut{step}", OPTIMIZATION[name])
        cut_after(cut, step)
        assert train(cut) == 0
        assert difference(runs[name], cut) == 0, f"cut after the request in step {step}"


@pytest.mark.processes
def test_frozen_weights_are_the_first_ones_also_in_the_average(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    still = write_run(tmp_path / "still", [*SHORT, "optimizer.lr=1e-300", "scheduler=constant", "trainer.max_epochs=1"])
    assert train(still) == 0
    first, last = (
        torch.load(folder.last_checkpoint, weights_only=True)["state_dict"]
        for folder in (still, runs["parameter groups"])
    )
    frozen = [name for name in first if name.startswith(("net.conv1", "net.bn1")) and "running" not in name]
    assert len(frozen) == 4
    for name in frozen:
        if "num_batches" not in name:
            torch.testing.assert_close(last[name], first[name], rtol=0, atol=1e-200)
    assert last["net.bn1.num_batches_tracked"] == 0
    assert not torch.equal(first["net.layer1.0.conv1.weight"], last["net.layer1.0.conv1.weight"])


# -- what does not fit, before the first step --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (
            ("+parameters.head={pattern:fcc}",),
            "parameters.head.pattern=fcc matches no parameter: the network has conv1, bn1, layer1",
        ),
        (
            ("+parameters.all={pattern:weight}", "+parameters.head={pattern:fc.weight}"),
            "parameters.head.pattern=fc.weight matches only what parameters.all matches before it: put it first",
        ),
        (
            ("+parameters.norm={pattern:bn1,weight_decay:0.1}",),
            "parameters.norm.pattern=bn1 matches norms and biases only, which are not decayed: remove its weight_decay",
        ),
        (
            ("+parameters.all={pattern:'.',frozen_epochs:null}",),
            "parameters freezes the whole network permanently: leave something to train",
        ),
        (
            ("scheduler=constant", f"scheduler._target_={TORCHS}.CosineAnnealingWarmRestarts", "+scheduler.T_0=0"),
            f"scheduler._target_={TORCHS}.CosineAnnealingWarmRestarts: Expected positive integer T_0, but got 0",
        ),
    ],
)
def test_what_cannot_be_trained_is_one_line_with_its_setting(
    tmp_path: Path, overrides: tuple[str, ...], error: str
) -> None:
    folder = write_run(tmp_path / "run", [*SHORT, *overrides])
    assert train(folder) == EXIT_CONFIG
    (line,) = folder.failure.read_text().splitlines()
    assert line.startswith(f"config error: {error}")


def test_a_network_that_cannot_be_built_is_one_line_with_its_target(tmp_path: Path) -> None:
    network = [text for text in own_network("Plain") if "_target_" not in text and "hidden" not in text]
    folder = write_run(tmp_path / "run", [*network, "model._target_=torchvision.models.resnet18"])
    assert train(folder) == EXIT_CONFIG
    (line,) = folder.failure.read_text().splitlines()
    assert line.startswith("config error: model._target_=torchvision.models.resnet18: ")
    assert "unexpected keyword argument 'in_channels'" in line
