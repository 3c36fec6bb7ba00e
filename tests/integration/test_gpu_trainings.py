"""Complete trainings on pretended GPUs: N of them compute what one would.

docs/design.md says what else they show.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from lockstep.runs.folder import RunFolder
from tests.support.gpus import PretendedGpus
from tests.support.harness import (
    ACCUMULATE_AUGMENT,
    PHOTOGRAPH_AUGMENT,
    SMALL,
    WATCHED,
    difference,
    train_all,
    write_run,
)
from tests.support.image_files import write_folder

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("four_gpus_here")]

ON_GPU = tuple(override for override in SMALL if override != "strategy=cpu")
RANDOM_CROPS = "augment.random_resized_crop.scale=[0.3,1.0]"
FOLDER = (
    *(override for override in ON_GPU if not override.startswith("data")),
    *("data=image_folder", "data.image_size=8", "data.num_workers=1", RANDOM_CROPS),
)
NEVER_WAITS = (
    *PHOTOGRAPH_AUGMENT,
    "trainer.precision=bfloat16",
    "trainer.max_epochs=1",
    "trainer.log_every_n_steps=3",
    "+callbacks.waits={_target_:tests.support.callbacks.NeverWaits}",
)
RECIPES = {
    "remainder": (),
    # dropout and crops are in SMALL
    "everything": (
        "optimizer=adamw",
        "trainer.deterministic=true",
        *ACCUMULATE_AUGMENT,
        *PHOTOGRAPH_AUGMENT,
        "augment.rand_augment.num_ops=0",
        "callbacks=ema",
        "data.memory=host",
        *WATCHED,
    ),
    # enough samples that copies of indices, crops and boxes, 8 to 96 kB each, would wait
    "never waits": (
        *NEVER_WAITS,
        "callbacks=ema",
        "global_batch_size=9000",
        "data.train_size=70000",
        "data.image_size=4",
        "model.width=1",
        "augment.cutmix=1.0",
    ),
    "never waits, pinned": (*NEVER_WAITS, RANDOM_CROPS, "data.train_size=160", "data.memory=host"),
    "never waits, float16": (
        "trainer.precision=float16",
        *NEVER_WAITS[1:],
        "data.train_size=160",
        "callbacks=ema",
    ),
}
# by number of GPUs: settings of their workers, and recipes
MATRIX = {
    1: (
        ("trainer.devices=1",),
        ("remainder", "everything", "never waits", "never waits, pinned", "never waits, float16"),
    ),
    3: (
        ("trainer.devices=[1,3,0]", "trainer.worker_weights=[2,0,1]"),
        ("remainder", "everything"),
    ),
}
Runs = dict[tuple[int, str], RunFolder]


@pytest.fixture(scope="module")
def matrix(gpus: PretendedGpus, tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, str]:
    """Return runs by number of GPUs and recipe, and the output of all processes.

    Rank 0 also asks CUDA's own kernels.
    """
    root: Path = tmp_path_factory.mktemp("gpus")
    runs, output = {}, ""
    for count, (workers, recipes) in MATRIX.items():
        for recipe in recipes:
            runs[count, recipe] = write_run(
                root / f"{count} {recipe}", [*ON_GPU, *RECIPES[recipe], *workers]
            )
        if count == 1:
            write_folder(root / "images")
            for memory in ("host", "stream"):
                images = (f"data.root={root / 'images'}", f"data.memory={memory}")
                runs[1, memory] = write_run(root / memory, [*FOLDER, *images, *workers])
        folders = [folder for key, folder in runs.items() if key[0] == count]
        output += "".join(train_all(folders, count, **gpus.environ(4, is_asking=True)))
    return runs, output


@pytest.mark.full
@pytest.mark.parametrize("recipe", ["remainder", "everything"])
def test_training_any_workers(matrix: tuple[Runs, str], recipe: str, figure: Any) -> None:
    runs, _ = matrix
    assert runs[3, recipe].read_summary()["device"] == "Pretended GPU"
    worst = difference(runs[1, recipe], runs[3, recipe])
    figure(f"{worst:.1e}")
    assert worst <= 1e-12


@pytest.mark.full
def test_streamed_images(matrix: tuple[Runs, str]) -> None:
    runs, _ = matrix
    assert difference(runs[1, "host"], runs[1, "stream"]) == 0


@pytest.mark.full
def test_cuda_kernel_calls(matrix: tuple[Runs, str]) -> None:
    """A refusal would have ended the training."""
    _, output = matrix
    assert "Warning" not in output
    counts = [
        int(number)
        for number in re.findall(r"(\d+) kinds of calls were put to CUDA's kernels", output)
    ]
    assert max(counts) > 250
