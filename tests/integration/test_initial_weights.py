"""New runs that start with the weights of another one: after a NaN loss, or to train further."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lockstep.assembly import checkpoints
from lockstep.config.errors import ConfigError
from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support import commands
from tests.support.exact import train, trained
from tests.support.harness import command, write_run
from tests.support.recipes import INITIAL

pytestmark = pytest.mark.full

STILL = ("optimizer.lr=1e-300", "scheduler=constant")  # no weight moves by it, only statistics do


def weights(path: Path) -> dict[str, Tensor]:
    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    return {
        name: value
        for name, value in state.items()
        if "running" not in name and "num_batches" not in name
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("source") / "run", INITIAL)


def test_init_from_best_checkpoint(source: RunFolder, tmp_path: Path) -> None:
    """The other run may be gone by then."""
    other = shutil.copytree(source.path, tmp_path / "other")
    folder = write_run(tmp_path / "new", [*INITIAL, f"init_from={other}", *STILL])
    checkpoints.copy_initial_checkpoint(folder, checkpoints.initial_checkpoint(str(other)))
    shutil.rmtree(other)
    assert train(folder) == 0
    before, after = weights(source.best_checkpoint), weights(folder.last_checkpoint)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    fresh = trained(tmp_path / "fresh", [*INITIAL, *STILL])
    assert not torch.equal(
        before["net.conv1.weight"], weights(fresh.last_checkpoint)["net.conv1.weight"]
    )


def test_missing_weights_refused(source: RunFolder, tmp_path: Path) -> None:
    empty = write_run(tmp_path / "empty", INITIAL)
    broken = tmp_path / "broken.ckpt"
    broken.write_bytes(source.last_checkpoint.read_bytes()[:-100])
    for name, reason in (
        (str(tmp_path / "nowhere"), "nowhere is not a run folder"),
        (str(empty.path), "has no checkpoint yet"),
        (str(broken), "is damaged"),
    ):
        with pytest.raises(ConfigError, match=f"init_from=.*{reason}"):
            checkpoints.initial_checkpoint(name)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (("init_from={source}/nowhere",), "init_from={source}/nowhere"),
        (("-m", "seed=0,1", "init_from={source}/nowhere"), "init_from={source}/nowhere"),
        (
            ("model.width=4", "trainer.devices=2", "init_from={source}"),
            "init_from={source}: the weights are of another network: conv1.weight",
        ),
        (("task.class_weights=[1,2]", "hydra.run.dir=mine"), "task.class_weights has 2 numbers"),
    ],
)
def test_wrong_settings_refused(
    source: RunFolder, tmp_path: Path, more: tuple[str, ...], error: str
) -> None:
    """A refused run leaves no files, and outputs/latest stays as it was."""
    before = tmp_path / "outputs/2026-11-20/before"
    for folder in (before, tmp_path / "mine"):
        folder.mkdir(parents=True)
        (folder / "notes.txt").touch()
    (tmp_path / "outputs/latest").symlink_to("2026-11-20/before")
    texts = [text.format(source=source.path) for text in (*more, error)]
    done = commands.run(command(*INITIAL, *texts[:-1]), tmp_path)
    assert done.returncode == EXIT_CONFIG
    assert texts[-1] in done.stderr
    files = [
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if not path.is_dir()
    ]
    assert sorted(files) == ["mine/notes.txt", "outputs/2026-11-20/before/notes.txt"]
    assert (tmp_path / "outputs/latest").resolve() == before
