"""docs/own-network.md does what it says: its files in a fresh clone, its commands with one worker and with two."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.guides import Guide, assert_two_workers_train_what_one_does, guides, project_of
from tests.support.harness import ROOT, environ

pytestmark = [pytest.mark.full, pytest.mark.processes]
PAGE = ROOT / "docs" / "own-network.md"
GUIDES = guides(PAGE)
SMALL = (
    *("trainer.max_epochs=2", "trainer.limit_train_batches=2", "trainer.precision=float64", "strategy=cpu"),
    *("callbacks.pictures=null", "callbacks.curves=null"),
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project_of(PAGE, tmp_path_factory.mktemp("project"))


@pytest.mark.parametrize("guide", GUIDES.values(), ids=lambda guide: guide.title)
def test_its_commands_run_and_two_workers_train_what_one_does(project: Path, guide: Guide) -> None:
    for words in guide.commands:
        width = () if any(word.startswith("model=") for word in words) else ("model.width=4",)
        assert_two_workers_train_what_one_does(project, *words, *SMALL, *width)


PARTS = {
    "my_schedule.py": """
from typing import Annotated

from annotated_types import Ge
from torch.optim.lr_scheduler import LambdaLR


def steps(optimizer, total_steps, *, num_drops: Annotated[int, Ge(1)]):
    return LambdaLR(optimizer, lambda step: 0.1 ** (step * num_drops // total_steps))
""",
    "conf/scheduler/steps.yaml": "_target_: my_schedule.steps\nnum_drops: 2\n",
    "my_source.py": """
import torch
from lockstep.data import Images, Splits


def noise(*, num_images: int) -> Splits:
    pixels = torch.randint(0, 256, (num_images, 1, 8, 8), dtype=torch.uint8)
    images = Images(pixels, torch.arange(num_images) % 2, [str(i) for i in range(num_images)])
    return Splits(images, images, images, ("even", "odd"))
""",
    "conf/data/noise.yaml": "_target_: my_source.noise\nnum_images: 8\n",
}


def test_a_schedule_and_a_source_are_two_files_each(tmp_path: Path) -> None:
    for name, text in PARTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    words = ("train", "data=noise", "scheduler=steps", "model.width=4", "strategy=cpu", "trainer.max_epochs=1")

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "lockstep", *words, *more],
            cwd=tmp_path,
            env=environ(),
            capture_output=True,
            text=True,
            check=False,
        )

    wrong = run("scheduler.num_drops=0", "data.num_images=many", "+data.size=3")
    assert (wrong.returncode, wrong.stderr.splitlines()[:3]) == (
        2,
        [
            "config error: data.num_images=many must be int, as noise has it",
            "config error: data.size is not a key: noise has num_images, memory, num_workers, copy_to, copy_remove, "
            "balance, folds, fold",
            "config error: scheduler.num_drops=0 must be int >= 1, as steps has it",
        ],
    )
    assert not list((tmp_path / "outputs").iterdir())
    done = run("scheduler.num_drops=1", "data.num_images=6")
    assert done.returncode == 0, done.stderr
