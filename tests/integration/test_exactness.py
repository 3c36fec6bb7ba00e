"""N workers compute what one worker would, in float64 to 1e-12: weights, statistics, momentum, metrics.

Each mechanism was broken once on purpose, and these tests failed; the list is in docs/testing.md.
"""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.runs.folder import RunFolder
from tests.support.harness import ACCUMULATE_AUGMENT, SMALL, difference, own_network, train_all, write_run

# what is trained: a last batch of two (empty shares); one that takes in a last sample, which batch norm could not
# normalize alone, with averaged weights; and in micro-batches
RECIPES = {
    "remainder": (*SMALL, "data.train_size=66"),
    "one_more_average": (
        *own_network("NormalizesSingleValues"),
        "data.train_size=65",
        "callbacks=ema",
        "flip_test=true",
    ),
    "accumulate_augment": (*SMALL, *ACCUMULATE_AUGMENT),
}
# without batch norm micro-batches change nothing: in parts of 6 and of 1, with a last step of 19 and of 25 samples
ACCUMULATED = {
    f"{size}_in_{parts}": (
        *own_network("Unnormalized"),
        *ACCUMULATE_AUGMENT,
        f"data.train_size={size}",
        f"trainer.accumulate_grad_batches={parts}",
    )
    for size in (67, 49)
    for parts in (1, 4, 24)
}
FULL = ("model.width=64", "data.train_size=20", "data.image_size=8", "trainer.max_epochs=1")
LOADS = {1: [None], 2: [None, [3, 1]], 3: [None, [2, 0, 1]]}


def _name(recipe: str, loads: list[int] | None) -> str:
    return f"{recipe}_{'even' if loads is None else '-'.join(map(str, loads))}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], RunFolder]:
    root: Path = tmp_path_factory.mktemp("exactness")
    found = {}
    for world_size, all_loads in LOADS.items():
        for loads in all_loads:
            for recipe, overrides in RECIPES.items():
                name = _name(recipe, loads)
                extra = [f"trainer.devices={world_size}"]
                if loads is not None:
                    extra.append(f"trainer.loads=[{','.join(map(str, loads))}]")
                found[world_size, name] = write_run(root / str(world_size) / name, [*overrides, *extra])
        for name, overrides in ACCUMULATED.items():
            loads = [] if world_size < 3 else ["trainer.loads=[2,0,1]"]
            extra = [f"trainer.devices={world_size}", *loads]
            found[world_size, name] = write_run(root / str(world_size) / name, [*overrides, *extra])
        if world_size < 3:
            overrides = [*SMALL, *FULL, f"trainer.devices={world_size}"]
            found[world_size, "full"] = write_run(root / str(world_size) / "full", overrides)
        if world_size == 2:
            for dtype in ("same", "bfloat16"):
                overrides = [*SMALL, "trainer.devices=2", f"strategy.gradient_dtype={dtype}"]
                found[world_size, dtype] = write_run(root / str(world_size) / dtype, overrides)
        train_all([folder for (size, _), folder in found.items() if size == world_size], world_size)
    return found


@pytest.mark.processes
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("world_size", "loads"), [(w, loads) for w in (2, 3) for loads in LOADS[w]])
def test_any_split_ends_with_the_weights_of_one_process(
    runs: dict[tuple[int, str], RunFolder], recipe: str, world_size: int, loads: list[int] | None, figure: Any
) -> None:
    worst = difference(runs[1, _name(recipe, None)], runs[world_size, _name(recipe, loads)])
    figure(f"largest difference to one process {worst:.1e}")
    assert worst <= 1e-12


@pytest.mark.processes
@pytest.mark.parametrize("world_size", LOADS)
@pytest.mark.parametrize("name", ACCUMULATED)
def test_micro_batches_change_nothing_without_batch_norm(
    runs: dict[tuple[int, str], RunFolder], name: str, world_size: int, figure: Any
) -> None:
    """With every augmentation, mixing and dropout; on three workers by uneven loads."""
    worst = difference(runs[1, f"{name.partition('_')[0]}_in_1"], runs[world_size, name])
    figure(f"largest difference to one process and one part {worst:.1e}")
    assert worst <= 1e-12


@pytest.mark.processes
def test_gradients_that_travel_as_bfloat16_are_rounded_and_no_more(runs: dict[tuple[int, str], RunFolder]) -> None:
    assert 1e-8 < difference(runs[2, "same"], runs[2, "bfloat16"]) < 0.05


@pytest.mark.processes
def test_evaluation_agrees_and_counts_every_sample_once(runs: dict[tuple[int, str], RunFolder]) -> None:
    alone = runs[1, "remainder_even"].read_summary()
    assert alone["test_images"] == 31
    for (_, name), folder in runs.items():
        if name.startswith("remainder_"):
            summary = folder.read_summary()
            assert summary["test_accuracy"] == alone["test_accuracy"]
            assert summary["test_loss"] == pytest.approx(alone["test_loss"], rel=1e-12)


@pytest.mark.processes
def test_the_full_resnet18_ends_with_the_same_weights_on_two_workers(
    runs: dict[tuple[int, str], RunFolder], figure: Any
) -> None:
    worst = difference(runs[1, "full"], runs[2, "full"])
    figure(f"largest difference to one process {worst:.1e}")
    assert worst <= 1e-12


def test_a_weight_that_is_not_a_number_is_no_small_difference(
    runs: dict[tuple[int, str], RunFolder], tmp_path: Path
) -> None:
    """`max` alone would pass over it."""
    one = runs[1, _name("remainder", None)]
    other = RunFolder(shutil.copytree(one.path, tmp_path / "other"))
    saved = torch.load(other.last_checkpoint, weights_only=True)
    saved["state_dict"]["net.fc.bias"][0] = float("nan")
    torch.save(saved, other.last_checkpoint)
    assert math.isnan(difference(one, other))
