"""trainer.loads=auto: workers of unequal speed are measured, and compute what one worker would."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from lockstep.runs.folder import RunFolder
from tests.support.commands import run as run_command
from tests.support.harness import command, difference, environ, own_network, train_all, write_run

pytestmark = pytest.mark.processes
UNEVEN = own_network("Uneven")  # rank 0 is three times as fast as the others
MEASURED = (*UNEVEN, "trainer.devices=2", "trainer.loads=auto")


def loads_of(folder: RunFolder) -> list[int]:
    return yaml.safe_load(folder.config.read_text())["trainer"]["loads"]


def assert_is_as_timed(loads: list[int]) -> None:
    """The first of two gets three quarters of a batch of 16, more or less two images."""
    assert 10 / 16 <= loads[0] / sum(loads) <= 14 / 16


@pytest.mark.parametrize(
    "more",
    [
        (),
        pytest.param(("trainer.accumulate_grad_batches=2", "augment.mixup=0.4"), marks=pytest.mark.full),
    ],
    ids=["whole batches", "micro-batches"],
)
def test_the_measured_split_has_the_bits_of_the_same_split_by_hand_and_the_weights_of_one_worker(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    measured = write_run(tmp_path / "measured", [*MEASURED, *more])
    (output, _) = train_all([measured], 2)
    loads = loads_of(measured)
    assert_is_as_timed(loads)
    assert f"loads       {json.dumps(loads, separators=(',', ':'))}, measured: " in output
    by_hand = write_run(tmp_path / "by-hand", [*MEASURED, *more, f"trainer.loads={loads}"])
    alone = write_run(tmp_path / "alone", [*UNEVEN, *more])
    train_all([by_hand], 2)
    train_all([alone], 1)
    assert difference(measured, by_hand) == 0  # nothing of the measurement is left
    assert difference(measured, alone) <= 1e-12


@pytest.mark.full
def test_a_resume_repeats_the_loads_and_measures_other_workers(tmp_path: Path) -> None:
    def run(*overrides: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = run_command(command(*overrides), cwd=tmp_path, env=environ())
        assert done.returncode == code, done.stdout + done.stderr
        return done

    run(*MEASURED)
    folder = RunFolder((tmp_path / "outputs/latest").resolve())
    loads = loads_of(folder)
    assert_is_as_timed(loads)
    done = run("resume=outputs/latest", "--trust", "trainer.max_epochs=4")
    assert loads_of(folder) == loads
    assert "measured: " not in done.stdout
    more = ("resume=outputs/latest", "--trust", "trainer.max_epochs=5", "trainer.devices=3")
    assert "give one load for each, or auto" in run(*more, code=2).stderr
    done = run(*more, "trainer.loads=auto")
    assert "measured: " in done.stdout
    first, *others = loads_of(folder)
    assert len(others) == 2
    assert max(others) < first
