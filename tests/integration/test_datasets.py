"""Torch Datasets with random transforms: the same training on any workers, and from any place where it was cut."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep.config import storage, validation
from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support.exact import assert_same_end, cut_after, train
from tests.support.harness import SMALL, difference, train_all, write_run

PLAIN = tuple(override for override in SMALL if not override.startswith(("data", "augment")))
TURNED = "tests.support.sources.Turned"


def overrides(num_workers: int = 1, **train: Any) -> list[str]:
    """Of a training on turned digits; validation and test are Datasets of their own."""

    def section(**arguments: Any) -> str:
        return yaml.safe_dump({"_target_": TURNED, **arguments}, default_flow_style=True, width=1000).strip()

    parts = [f"data.train={section(**train)}", f"data.val={section(**train | {'split': 'val', 'count': 23})}"]
    return [*PLAIN, "data=dataset", *parts, f"data.num_workers={num_workers}"]


BYTES = (*overrides(), "augment.flip=true", "augment.mixup=0.4")  # Lockstep's own changes on top; with partners
CUT = [override for override in overrides(is_float=True) if not override.startswith("data.val=")]
RECIPES = {"bytes": BYTES, "floats": (*overrides(is_float=True), "trainer.accumulate_grad_batches=2"), "cut": CUT}
# of two decoding processes each sample's neighbours are others
WORKERS = {1: (), 2: ("trainer.loads=[3,1]", "data.num_workers=2"), 3: ("trainer.loads=[2,0,1]",)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], RunFolder]:
    root = tmp_path_factory.mktemp("datasets")
    found = {}
    for world_size, extra in WORKERS.items():
        for name, recipe in RECIPES.items():
            settings = [*recipe, *extra, f"trainer.devices={world_size}"]
            found[world_size, name] = write_run(root / f"{name} {world_size}", settings)
        train_all([folder for (size, _), folder in found.items() if size == world_size], world_size)
    return found


@pytest.mark.processes
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_dataset_with_random_transforms_ends_with_the_weights_of_one_process(
    runs: dict[tuple[int, str], RunFolder], world_size: int, name: str, figure: Any
) -> None:
    assert_same_end(runs[1, name], runs[world_size, name], figure)
    alone, other = (runs[size, name].read_summary() for size in (1, world_size))
    assert other["test_loss"] == pytest.approx(alone["test_loss"], rel=1e-12)
    assert other["test_images"] == alone["test_images"] > 0


@pytest.mark.processes
@pytest.mark.parametrize("num_decoding", [1, 2])
def test_a_dataset_goes_on_in_the_middle_of_an_epoch_with_the_same_bits(
    runs: dict[tuple[int, str], RunFolder], tmp_path: Path, num_decoding: int
) -> None:
    for step in (1, 5):  # of 4 in an epoch
        cut = write_run(tmp_path / f"cut{step}", BYTES)
        cut_after(cut, step)
        tree = storage.to_tree(storage.load(cut.config))
        tree["data"]["num_workers"] = num_decoding
        storage.save(validation.check_tree(tree), cut.config)
        assert train(cut) == 0
        assert difference(runs[1, "bytes"], cut) == 0, f"cut after the request in step {step}"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (overrides(broken=5), r"data.train: sample 5 cannot be made (OSError: half a file, in "),
        (
            [*overrides(is_float=True), "augment.flip=true"],
            "augment.flip=true changes uint8 images, and data._target_=lockstep.data.dataset gives floats",
        ),
        (overrides(count=0), "data.train (Turned) has no samples: correct its paths or its selection."),
    ],
    ids=["broken", "augment", "empty"],
)
def test_a_dataset_that_cannot_be_used_ends_the_run_with_one_line(
    tmp_path: Path, settings: list[str], line: str
) -> None:
    folder = write_run(tmp_path / "run", settings)
    assert train(folder) == EXIT_CONFIG
    text = folder.failure.read_text()
    assert line in text
    assert "Traceback" not in text
