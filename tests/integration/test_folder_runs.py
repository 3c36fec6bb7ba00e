"""Trainings of a folder of images end with the same weights wherever the pixels are, for any workers and any stop."""

import time
from pathlib import Path
from typing import Any

import pytest

from lockstep.config import storage, validation
from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support.exact import assert_same_end, cut_after, train
from tests.support.harness import difference, train_all, write_run
from tests.support.image_files import write_folder

RECIPE = (
    "data=image_folder",
    "data.image_size=16",
    "data.val_fraction=0.2",
    "data.test_fraction=0.2",
    "data.num_workers=1",
    "model.width=2",
    "model.dropout=0.2",
    "trainer.precision=float64",
    "trainer.max_epochs=2",
    "trainer.log_every_n_steps=1",
    "global_batch_size=16",
    "eval_batch_size=7",
    "augment.crop_padding=2",
    "augment.flip=true",
    "augment.cutout=4",
    "strategy=cpu",
    "strategy.timeout_s=300",
)
# 42 training images: batches of 16, 16 and 10; the share of a worker with load 0 is always empty
PLACES = {
    "memory": ("data.cache=null", "data.memory=host"),
    "cache": ("data.memory=auto",),
    "stream": ("data.memory=stream", "data.cache=null"),
}
ALONE = (1, "memory", "even")
RUNS = (
    ALONE,
    (1, "cache", "even"),
    (1, "stream", "even"),
    (2, "cache", "3-1"),
    (3, "stream", "2-0-1"),
)


def overrides(root: Path, place: str, cache: str = "cache") -> list[str]:
    return [*RECIPE, f"data.root={root / 'images'}", f"data.cache={root / cache}", *PLACES[place]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folder_runs")
    write_folder(root / "images", count=35)
    return root


@pytest.fixture(scope="module")
def runs(root: Path) -> dict[tuple[int, str, str], RunFolder]:
    found = {}
    for world_size, place, loads in RUNS:
        extra = [f"trainer.devices={world_size}"]
        if loads != "even":
            extra.append(f"trainer.loads=[{loads.replace('-', ',')}]")
        path = root / f"{world_size} {place} {loads}"
        # a cache for each: the ranks of a run meet there for the first time
        settings = [*overrides(root, place, f"cache {world_size}"), *extra]
        found[world_size, place, loads] = write_run(path, settings)
    for size in (1, 2, 3):
        train_all([folder for (world_size, _, _), folder in found.items() if world_size == size], size)
    return found


@pytest.mark.processes
@pytest.mark.parametrize("run", RUNS[1:], ids=lambda run: "_".join(map(str, run)))
def test_any_place_and_any_split_end_with_the_weights_of_one_process_that_has_all_in_memory(
    runs: dict[tuple[int, str, str], RunFolder], run: tuple[int, str, str], figure: Any
) -> None:
    assert_same_end(runs[ALONE], runs[run], figure, " in memory")
    alone, other = runs[ALONE].read_summary(), runs[run].read_summary()
    for name in ("test_loss", "test_accuracy", "test_images"):
        assert other[name] == pytest.approx(alone[name], rel=1e-12)


@pytest.mark.processes
@pytest.mark.parametrize("later", ["stream", "cache"])
def test_a_streamed_run_cut_in_the_middle_goes_on_with_the_same_bits_streamed_or_not(
    root: Path, tmp_path: Path, later: str
) -> None:
    alone = write_run(tmp_path / "alone", overrides(root, "memory"))
    assert train(alone) == 0
    for step in (1, 4):
        cut = write_run(tmp_path / f"cut{step}", overrides(root, "stream"))
        cut_after(cut, step)
        tree = storage.to_tree(storage.load(cut.config))
        tree["data"] |= {"memory": "auto", "cache": str(root / "cache later")} if later == "cache" else {}
        storage.save(validation.check_tree(tree), cut.config)
        time.sleep(1 - time.time() % 1)  # TensorBoard orders files by the second they were begun in
        assert train(cut) == 0
        assert difference(alone, cut) == 0, f"cut after the request in step {step}"


@pytest.mark.processes
def test_an_image_that_breaks_while_it_is_streamed_ends_the_run_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = write_folder(tmp_path / "images", count=35)
    # of the validation and test images nothing is read before they are needed
    for part in ("train", "val"):
        write_folder(images / part, count=10)
    for name in ("red fox", "ärger 狐"):
        (images / name).rename(tmp_path / name)
    (images / "val" / "red fox" / "bild ü 07.png").write_bytes(b"no image")
    folder = write_run(tmp_path / "run", overrides(tmp_path, "stream"))
    assert train(folder) == EXIT_CONFIG
    text = capsys.readouterr().err
    assert "val/red fox/bild ü 07.png cannot be read (not an image): replace or delete it." in text
    assert "Traceback" not in text
