"""Torch Datasets with random transforms: the same training from any place where it was cut, and what is refused."""

from pathlib import Path

import pytest

from lockstep.config.checks import validation
from lockstep.config.saved import config_file
from lockstep.runs.folder import EXIT_CONFIG
from tests.support.exact import cut_after, train
from tests.support.harness import difference, write_run
from tests.support.recipes import TURNED, turned

pytestmark = pytest.mark.full


@pytest.mark.processes
@pytest.mark.parametrize("num_decoding", [1, 2])
def test_a_dataset_goes_on_in_the_middle_of_an_epoch_with_the_same_bits(tmp_path: Path, num_decoding: int) -> None:
    alone = write_run(tmp_path / "alone", TURNED)
    assert train(alone) == 0
    for step in (1, 5):  # of 4 in an epoch
        cut = write_run(tmp_path / f"cut{step}", TURNED)
        cut_after(cut, step)
        tree = config_file.to_tree(config_file.load(cut.config))
        tree["data"]["num_workers"] = num_decoding
        config_file.save(validation.check_tree(tree), cut.config)
        assert train(cut) == 0
        assert difference(alone, cut) == 0, f"cut after the request in step {step}"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (turned(broken=5), "data.train: sample 5 cannot be made"),
        (turned(count=0), "data.train (Turned) has no samples"),
    ],
    ids=["broken", "empty"],
)
def test_a_dataset_that_cannot_be_used_ends_the_run_with_one_line(
    tmp_path: Path, settings: list[str], line: str
) -> None:
    folder = write_run(tmp_path / "run", settings)
    assert train(folder) == EXIT_CONFIG
    assert line in folder.failure.read_text()
