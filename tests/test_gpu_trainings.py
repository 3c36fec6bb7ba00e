"""Whole trainings on pretended GPUs: CUDA tensors in host memory, on which gloo stands in for NCCL.

They show devices, dtypes, missing kernels, buffers that are read too early, and that N GPUs compute what one would.
What they cannot show stands in docs/testing.md.
"""

from pathlib import Path
from typing import Any

import pytest

from lockstep.run_folder import RunFolder
from tests.harness import SMALL, difference, train_all, write_run
from tests.support.gpus import PretendedGpus

pytestmark = [pytest.mark.processes]

ON_GPU = tuple(override for override in SMALL if override != "strategy=cpu")
# all that there is, at once; dropout and crops are in SMALL
EVERYTHING = (
    "optimizer=adamw",
    "trainer.deterministic=true",
    "global_batch_size=24",
    "trainer.accumulate_grad_batches=4",
    "data.train_size=67",
    "data.channels=3",
    "augment.trivial=true",
    "augment.flip=alternating",
    "augment.erasing=0.5",
    "augment.mixup=0.4",
    "augment.cutmix=1.0",
    "callbacks=ema",
    "flip_test=true",
    "data.memory=host",
)
RECIPES = {"remainder": (), "everything": EVERYTHING}
LOADS = {1: [None], 2: [None, [3, 1]], 3: [[2, 0, 1]]}


@pytest.fixture(scope="module")
def runs(gpus: PretendedGpus, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str, str], RunFolder]:
    """Every recipe on 1, 2 and 3 GPUs, by number, loads and recipe."""
    root: Path = tmp_path_factory.mktemp("gpus")
    found = {}
    for count, all_loads in LOADS.items():
        for loads in all_loads:
            split = "even" if loads is None else "-".join(map(str, loads))
            extra = [f"trainer.devices={count}"]
            if loads is not None:
                extra.append(f"trainer.loads=[{','.join(map(str, loads))}]")
            for recipe, overrides in RECIPES.items():
                path = root / f"{count} {split} {recipe}"
                found[count, split, recipe] = write_run(path, [*ON_GPU, *overrides, *extra])
        train_all([folder for key, folder in found.items() if key[0] == count], count, gpus.environ(count))
    return found


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("count", "split"), [(2, "even"), (2, "3-1"), (3, "2-0-1")])
def test_several_gpus_end_like_one(
    runs: dict[tuple[int, str, str], RunFolder], count: int, split: str, recipe: str, figure: Any
) -> None:
    worst = difference(runs[1, "even", recipe], runs[count, split, recipe])
    figure(f"{worst:.1e}")
    assert worst <= 1e-12
