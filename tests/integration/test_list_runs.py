"""Trainings of listed images end with the same weights wherever the pixels are, for any workers and any stop."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.runs.folder import RunFolder
from tests.support.exact import assert_same_end, cut_after, train
from tests.support.harness import SMALL, difference, train_all, write_run
from tests.support.image_files import write_listed

RECIPE = (
    *(override for override in SMALL if not override.startswith("data")),
    *("data=list", "data.image_size=16", "data.num_workers=1", "data.split_column=split"),
)
RUNS = {
    "memory": (1, ("data.cache=null",)),
    "cache": (2, ("trainer.loads=[3,1]",)),
    "stream": (3, ("data.memory=stream", "trainer.loads=[2,0,1]")),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("list_runs")
    write_listed(root / "images", count=70)
    write_listed(root / "images", count=70, suffix=".parquet")
    return root


@pytest.fixture(scope="module")
def runs(root: Path) -> dict[str, RunFolder]:
    found = {}
    for name, (num_workers, extra) in RUNS.items():
        suffix = "parquet" if name == "cache" else "csv"
        places = [f"data.file={root}/images/list.{suffix}", f"data.cache={root}/cache"]
        found[name] = write_run(root / name, [*RECIPE, *places, *extra, f"trainer.devices={num_workers}"])
        train_all([found[name]], num_workers)
    return found


@pytest.mark.processes
@pytest.mark.parametrize("name", ["cache", "stream"])
def test_a_list_on_any_workers_ends_with_the_weights_of_one_process_that_has_all_in_memory(
    runs: dict[str, RunFolder], name: str, figure: Any
) -> None:
    assert_same_end(runs["memory"], runs[name], figure, " in memory")
    alone, other = runs["memory"].read_summary(), runs[name].read_summary()
    assert other["test_loss"] == pytest.approx(alone["test_loss"], rel=1e-12)


@pytest.mark.processes
def test_a_list_goes_on_in_the_middle_of_an_epoch_with_the_same_bits(
    root: Path, runs: dict[str, RunFolder], tmp_path: Path
) -> None:
    places = [f"data.file={root}/images/list.csv", "data.memory=stream", "data.cache=null"]
    cut = write_run(tmp_path / "cut", [*RECIPE, *places])
    cut_after(cut, 1)
    assert train(cut) == 0
    assert difference(runs["memory"], cut) == 0
