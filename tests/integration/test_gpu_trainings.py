"""Whole trainings on pretended GPUs: CUDA tensors in host memory, on which gloo stands in for NCCL.

They show devices, dtypes, missing kernels, buffers that are read too early, and that N GPUs compute what one would.
What they cannot show stands in docs/testing.md.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.runs.folder import RunFolder
from lockstep.system import hardware
from tests.support.gpus import PretendedGpus
from tests.support.harness import ACCUMULATE_AUGMENT, SMALL, WATCHED, difference, train_all, write_run
from tests.support.image_files import write_folder

pytestmark = [pytest.mark.processes]

ON_GPU = tuple(override for override in SMALL if override != "strategy=cpu")
WAITS_NEVER = (
    "trainer.precision=bfloat16",
    "trainer.log_every_n_steps=20",
    "+callbacks.waits={_target_:tests.support.callbacks.NeverWaits}",
)
RECIPES = {
    "remainder": (),
    # dropout and crops are in SMALL
    "everything": (
        "optimizer=adamw",
        "trainer.deterministic=true",
        *ACCUMULATE_AUGMENT,
        "callbacks=ema",
        "flip_test=true",
        "data.memory=host",
        *WATCHED,
    ),
    # more samples than CUDA copies numbers of without waiting: indices, crops and boxes of 8 to 96 kB each
    "waits never": (
        *WAITS_NEVER,
        "callbacks=ema",
        "flip_test=true",
        "global_batch_size=9000",
        "data.train_size=70000",
        "data.image_size=4",
        "model.width=1",
        "augment.cutmix=1.0",
        "trainer.max_epochs=1",
    ),
    "waits never, pinned": (*WAITS_NEVER, "data.train_size=160", "data.memory=host"),
}
# loads, numbers of GPUs, recipes
TRAININGS = {
    1: [(None, None, ("remainder", "everything", "waits never", "waits never, pinned"))],
    2: [(None, [1, 3], ("remainder", "waits never, pinned")), ([3, 1], None, ("everything",))],
    3: [([2, 0, 1], None, ("remainder", "everything"))],
}


def _typed(numbers: list[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"


@pytest.fixture(scope="module")
def four_gpus_in_this_process() -> Iterator[None]:
    """Configurations are checked here, where there are none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "num_visible_gpus", lambda: 4)
        yield


@pytest.fixture(scope="module")
def trained(
    gpus: PretendedGpus, four_gpus_in_this_process: None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[tuple[int, str], RunFolder], dict[int, str]]:
    """Every run by number of GPUs and recipe, and what its processes said. Rank 0 of one GPU and of two asks CUDA."""
    root: Path = tmp_path_factory.mktemp("gpus")
    images = write_folder(root / "images")
    runs, said = {}, {}
    for count, trainings in TRAININGS.items():
        for loads, numbers, recipes in trainings:
            extra = [f"trainer.devices={count if numbers is None else _typed(numbers)}"]
            extra += [] if loads is None else [f"trainer.loads={_typed(loads)}"]
            for recipe in recipes:
                runs[count, recipe] = write_run(root / f"{count} {recipe}", [*ON_GPU, *RECIPES[recipe], *extra])
        if count == 1:
            kept = [override for override in ON_GPU if not override.startswith("data")]
            folder = ["data=image_folder", f"data.root={images}", "data.image_size=8"]
            for memory in ("host", "stream"):
                runs[1, memory] = write_run(
                    root / memory, [*kept, *folder, f"data.memory={memory}", "data.num_workers=1", "trainer.devices=1"]
                )
        environ = gpus.environ(4 if count == 2 else count, is_asking=count < 3)
        folders = [folder for key, folder in runs.items() if key[0] == count]
        said[count] = "".join(train_all(folders, count, **environ))
    return runs, said


@pytest.mark.parametrize(
    ("count", "recipe"), [(2, "remainder"), (2, "everything"), (3, "remainder"), (3, "everything")]
)
def test_several_gpus_end_like_one(trained: Any, count: int, recipe: str, figure: Any) -> None:
    runs, _ = trained
    worst = difference(runs[1, recipe], runs[count, recipe])
    figure(f"{worst:.1e}")
    assert worst <= 1e-12


def test_images_that_are_streamed_to_a_gpu_are_those_in_memory(trained: Any) -> None:
    runs, _ = trained
    assert difference(runs[1, "host"], runs[1, "stream"]) == 0


def test_the_gpu_alone_is_trained_on_and_named(trained: Any) -> None:
    runs, _ = trained
    for (count, _), folder in runs.items():
        summary = folder.read_summary()
        assert (summary["device"], summary["workers"]) == ("Pretended GPU", count)
    places = set()
    with open(runs[1, "everything"].last_checkpoint, "rb") as file:
        torch.load(file, weights_only=True, map_location=lambda storage, place: (places.add(place), storage)[1])
    assert "cuda:0" in places


@pytest.mark.parametrize("count", TRAININGS)
def test_no_process_on_gpus_is_warned(trained: Any, count: int) -> None:
    """Of a device the process group has to guess, for example, or of gradients on another stream than the network."""
    _, said = trained
    assert "Warning" not in said[count]


@pytest.mark.parametrize("count", [1, 2])
def test_cudas_own_kernels_were_asked(trained: Any, count: int) -> None:
    """A refusal would have ended the training; that they were asked shows that it could have."""
    _, said = trained
    asked = [int(number) for number in re.findall(r"(\d+) kinds of calls were put to CUDA's kernels", said[count])]
    assert asked
    assert max(asked) > 250
