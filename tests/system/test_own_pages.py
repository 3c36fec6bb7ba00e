"""The pages about a user's own data, network, loss and module: their files in a fresh clone, and their commands."""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support import commands
from tests.support.guides import Guide, assert_two_workers_train_what_one_does, guides, project_of, run, trained
from tests.support.harness import PATIENCE_S, ROOT, environ

pytestmark = [pytest.mark.full, pytest.mark.processes]

EXACT = ("trainer.max_epochs=2", "trainer.precision=float64", "strategy=cpu")
EXACT += ("callbacks.pictures=null", "callbacks.curves=null")
BRIEF = ("trainer.max_epochs=2", "trainer.limit_train_batches=4", "strategy=cpu", "trainer.devices=2")
BRIEF += ("trainer.loads=[2,1]",)


def page(name: str) -> Path:
    return ROOT / "docs" / f"own-{name}.md"


def sections(name: str) -> pytest.MarkDecorator:
    found = [guide for guide in guides(page(name)).values() if guide.commands]
    return pytest.mark.parametrize("guide", found, ids=lambda guide: guide.title)


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a fresh clone with the files of a page."""
    return cache(lambda name: project_of(page(name), tmp_path_factory.mktemp(name)))


@sections("data")
def test_two_workers_train_on_own_data_what_one_does(projects: Callable[[str], Path], guide: Guide) -> None:
    assert sum(words[1] == "train.py" for words in guide.commands) == 1
    small = (*EXACT, "model.width=2", "global_batch_size=64", "++data.num_workers=1")
    for words in guide.commands:
        if words[1] == "train.py":
            assert_two_workers_train_what_one_does(projects("data"), *words, *small)
        else:
            run(projects("data"), *words)


@sections("network")
def test_two_workers_train_an_own_network_as_one_does(projects: Callable[[str], Path], guide: Guide) -> None:
    for words in guide.commands:
        width = () if any(word.startswith("model=") for word in words) else ("model.width=4",)
        small = (*EXACT, "trainer.limit_train_batches=2", *width)
        assert_two_workers_train_what_one_does(projects("network"), *words, *small)


@sections("loss")
def test_trainings_with_an_own_loss_end_and_are_exact(projects: Callable[[str], Path], guide: Guide) -> None:
    width = () if "model=segments" in guide.commands[0] else ("model.width=2",)
    for words in guide.commands:
        if words[1] == "verify":
            assert "Exact: nothing differs by more than " in run(projects("loss"), *words, *width)
            continue
        summary = trained(projects("loss"), *words, *BRIEF, "callbacks.curves=null", *width).read_summary()
        tested = [value for name, value in summary.items() if name.startswith("test_") and name != "test_images"]
        assert len(tested) >= 2
        assert all(isinstance(value, float) for value in tested)


def test_the_test_of_an_own_loss_passes(projects: Callable[[str], Path]) -> None:
    project = projects("loss")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_exact.py"]
    variables = {**environ(), "PYTHONPATH": f"{project / 'src'}:{project}"}
    done = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout


@sections("module")
def test_trainings_of_an_own_module_end_and_are_exact(projects: Callable[[str], Path], guide: Guide) -> None:
    train, verify = guide.commands
    project, small = projects("module"), (*BRIEF, "model.width=2")
    assert "Exact: nothing differs by more than " in run(project, *verify, "model.width=2")
    assert trained(project, *train, *small).read_summary()["epochs"] == 2


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

    wrong = commands.lockstep(tmp_path, *words, "scheduler.num_drops=0", "data.num_images=many", "+data.size=3")
    assert (wrong.returncode, wrong.stderr.splitlines()[:3]) == (
        2,
        [
            "config error: data.num_images=many must be int, as noise has it",
            "config error: data.size is not a setting: noise has num_images, memory, num_workers, copy_to, "
            "balance, near_duplicates, folds, fold, shared_groups",
            "config error: scheduler.num_drops=0 must be int >= 1, as steps has it",
        ],
    )
    assert not list((tmp_path / "outputs").iterdir())
    done = commands.lockstep(tmp_path, *words, "scheduler.num_drops=1", "data.num_images=6")
    assert done.returncode == 0, done.stderr


def test_the_commands_against_a_low_accuracy_run(tmp_path: Path) -> None:
    page = ROOT / "docs" / "tuning.md"
    project = project_of(page, tmp_path / "project")
    small = ("model.width=2", "strategy=cpu", "callbacks.pictures=null", "callbacks.curves=null")
    for words in (words for guide in guides(page).values() for words in guide.commands):
        shorter = ("search.num_trials=2",) if "search=tpe" in words else ()
        shorter += () if "debug=overfit" in words else ("trainer.max_epochs=1", "trainer.limit_train_batches=2")
        fewer = [word for word in words if not word.startswith("seed=")]
        run(project, *fewer, *(() if words[0] == "lockstep" else (*small, *shorter)))
