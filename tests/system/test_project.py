"""Custom networks are next to train.py or in the folder of the command.

Every process finds them, from anywhere. The project is a copy of this one with a package in it, as
a person has it; commands are typed somewhere else.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support import commands
from tests.support.commands import latest
from tests.support.harness import PATIENCE_S, ROOT, environ, wait_until, without_network
from tests.support.pages import write_project

pytestmark = pytest.mark.processes
TINY = (*without_network(), "trainer.max_epochs=1", "data.train_size=40")
NETWORK = """\
import torch
from torch import nn

from my_package.sizes import HIDDEN


class Net(nn.Module):
    def __init__(self, in_channels, num_classes):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, HIDDEN, 3)
        self.norm = nn.BatchNorm2d(HIDDEN)
        self.fc = nn.Linear(HIDDEN, num_classes)

    def forward(self, x):
        return self.fc(torch.relu(self.norm(self.conv(x))).mean((2, 3)))
"""
OWN = "model._target_=my_package.networks.Net"


def write_package(folder: Path, hidden: int = 3) -> None:
    package = folder / "my_package"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()  # a folder without is data
    (package / "networks.py").write_text(NETWORK)
    (package / "sizes.py").write_text(f"HIDDEN = {hidden}\n")


def run(
    cwd: Path, *words: str | Path, python_path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of python in a folder.

    Modules are nowhere but where Python and Lockstep look by themselves.
    """
    variables = {name: value for name, value in environ().items() if name != "PYTHONPATH"}
    if python_path is not None:
        variables["PYTHONPATH"] = str(python_path)
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def lockstep(cwd: Path, *words: str | Path, code: int = 0) -> str:
    """What a command of `lockstep` says that must leave with this code."""
    variables = {name: value for name, value in environ().items() if name != "PYTHONPATH"}
    done = commands.run([Path(sys.executable).parent / "lockstep", *words], cwd, variables)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def train(project: Path, cwd: Path, *overrides: str) -> str:
    """What `python train.py` of a project says when it is called in a folder and finishes."""
    done = run(cwd, project / "train.py", *TINY, OWN, *overrides, python_path=project / "src")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def wait_for_job(folder: RunFolder) -> None:
    wait_until(lambda: folder.read_summary() or folder.failure.exists(), "the end of the job")
    wait_until(lambda: not folder.has_job_here(), "the job is gone")
    assert not folder.failure.exists(), folder.failure.read_text()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_project(tmp_path_factory.mktemp("project"))
    write_package(folder)
    return folder


@pytest.fixture(scope="module")
def trained(project: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose network lies beside train.py, and whose command was typed elsewhere."""
    cwd = tmp_path_factory.mktemp("typed here")
    train(project, cwd)
    return latest(cwd)


def test_network_from_other_folder(trained: RunFolder, tmp_path: Path) -> None:
    said = lockstep(tmp_path, "eval", trained.path, "--devices", "2", code=EXIT_CONFIG)
    assert "add --trust" in said
    said = lockstep(tmp_path, "eval", trained.path, "--devices", "2", "--trust")
    assert f"{trained.read_summary()['test_accuracy']:.6f}" in said
    lockstep(
        tmp_path,
        "predict",
        trained.path,
        "test",
        "--output",
        "out.csv",
        "--devices",
        "2",
        "--trust",
    )
    folder = RunFolder(shutil.copytree(trained.path, tmp_path / "run"))
    folder.claim()
    more = ("trainer.max_epochs=2", "trainer.devices=2", "--trust")
    done = run(tmp_path, ROOT / "train.py", f"resume={folder.path}", *more)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
def test_network_in_current_folder(project: Path, tmp_path: Path) -> None:
    bare = write_project(tmp_path / "bare")
    write_package(tmp_path / "here")
    train(bare, tmp_path / "here", "trainer.devices=2")
    (tmp_path / "elsewhere").mkdir()
    assert "test images" in lockstep(tmp_path / "here", "eval", "latest")
    assert "test images" in lockstep(
        tmp_path / "elsewhere", "eval", latest(tmp_path / "here").path, "--trust"
    )


@pytest.mark.full
def test_project_moved(tmp_path: Path) -> None:
    project = write_project(tmp_path / "old place")
    write_package(project)
    (tmp_path / "here").mkdir()
    train(project, tmp_path / "here")
    folder = latest(tmp_path / "here")
    project.rename(tmp_path / "new place")
    said = lockstep(tmp_path, "eval", folder.path, "--trust", code=EXIT_CONFIG)
    assert f"package 'my_package' was not found in {project}" in said
    assert "test images" in lockstep(tmp_path / "new place", "eval", folder.path)


@pytest.mark.full
def test_job_submitted_code(tmp_path: Path) -> None:
    """A job trains the code it was submitted with."""
    project = write_project(tmp_path / "project")
    write_package(project)
    (tmp_path / "here").mkdir()
    settings = (
        "cluster=local",
        'cluster.setup=["while ! test -e edited; do sleep 0.1; done"]',
        "trainer.devices=2",
    )
    train(project, tmp_path / "here", *settings)
    folder = latest(tmp_path / "here")
    write_package(project, hidden=5)
    (tmp_path / "here" / "edited").touch()
    wait_for_job(folder)
    moved = RunFolder(folder.path.rename(tmp_path / "moved"))
    said = lockstep(tmp_path, "eval", moved.path, "--trust")
    # of the network it has trained, not of the edited one
    assert f"{moved.read_summary()['test_accuracy']:.6f}" in said
