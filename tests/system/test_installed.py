"""Lockstep installed as a wheel, beside projects of their own: the same commands, in any folder.

The wheel is built from this tree and installed into an environment in which nothing else is but what it depends on.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import lockstep
from lockstep.runs.folder import EXIT_CONFIG, EXIT_STOPPED, RunFolder
from tests.support.harness import ROOT, difference
from tests.support.wheels import environment, lend, run, source

pytestmark = pytest.mark.processes
AT_ONCE, ENDLESS = "trainer.max_time_s=0.001", "trainer.max_time_s=null"
BRIEF = ("strategy=cpu", "trainer.max_epochs=1", "model.width=4", "callbacks.pictures=null", "callbacks.curves=null")
EXACT = (*BRIEF, "trainer.max_epochs=2", "trainer.precision=float64")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel of this Lockstep."""
    folder = tmp_path_factory.mktemp("installed")
    return environment(folder / "environment", source(folder / "source"))


def latest(folder: Path) -> RunFolder:
    return RunFolder((folder / "outputs" / "latest").resolve())


@pytest.fixture(scope="module")
def project(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new project, whose environment is that of the wheel."""
    folder = tmp_path_factory.mktemp("projects")
    text = run(folder, installed / "lockstep", "new", "flowers")
    assert text.startswith("flowers is a project, ")
    assert "  cd flowers\n  make train" in text
    project = folder / "flowers"
    lend(installed, project)
    return project


# -- the wheel ---------------------------------------------------------------------------------------------------------


def test_a_wheel_has_all_of_conf_and_of_a_new_project(installed: Path) -> None:
    (home,) = installed.parent.glob("lib/python3.*/site-packages/lockstep")

    def files(folder: Path) -> dict[str, bytes]:
        paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}

    assert files(home / "conf") == files(ROOT / "conf")
    starter = Path("starter", "files")
    assert files(home / starter) == files(ROOT / "src" / "lockstep" / starter)
    assert run(home, installed / "lockstep", "--version") == f"lockstep {lockstep.__version__}\n"


def test_lockstep_trains_in_an_empty_folder_and_goes_on(installed: Path, tmp_path: Path) -> None:
    command = installed / "lockstep"
    stopped = run(tmp_path, command, "train", *BRIEF, "trainer.devices=2", AT_ONCE, code=EXIT_STOPPED)
    assert "  lockstep train resume=outputs/" in stopped, "there is no train.py here"
    assert "Finished 1 epoch" in run(tmp_path, command, "train", "resume=outputs/latest", "trainer.devices=1", ENDLESS)
    home = run(tmp_path, installed / "python", "-c", "import lockstep; print(lockstep.__file__)")
    assert str(installed.parent) in home, "it is not this source tree that trained"
    assert "test accuracy" not in run(tmp_path, command, "status")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outputs"]


def test_help_and_faults_are_those_of_the_source(installed: Path, tmp_path: Path) -> None:
    command = installed / "lockstep"
    said = run(tmp_path, command, "train", "--help")
    assert "  experiment   cifar10, d2l_fashion_mnist, fashion_mnist\n" in said
    error = run(tmp_path, command, "train", "optimizer.lrr=1", "data=digit", code=EXIT_CONFIG)
    assert "unknown key optimizer.lrr: did you mean optimizer.lr?" in error
    assert "data=digit is no option, did you mean digits?" in error
    assert list(tmp_path.iterdir()) == []


def test_other_applications_of_hydra_see_nothing_of_lockstep(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "mine.yaml").write_text("a: 1\n")
    (tmp_path / "conf" / "config.yaml").write_text("defaults: [model: mine]\n")
    (tmp_path / "app.py").write_text(
        "import hydra\n"
        "@hydra.main(version_base='1.3', config_path='conf', config_name='config')\n"
        "def main(cfg): print('ran', cfg)\n"
        "main()\n"
    )
    assert "ran {'model': {'a': 1}}" in run(tmp_path, installed / "python", "app.py")
    assert "Could not find 'model/resnet18'" in run(tmp_path, installed / "python", "app.py", "model=resnet18", code=1)


# -- a project ---------------------------------------------------------------------------------------------------------


def test_the_two_commands_of_a_new_project_pass(project: Path) -> None:
    said = run(project, "make", "train")
    assert "Lockstep: Net on images" in said
    assert "Finished 20 epochs" in said
    summary = latest(project).read_summary()
    assert summary["test_accuracy"] > 0.95, "0.9889 on 2026-11-23 (seed 0, bfloat16)"
    assert "1 passed" in run(project, "make", "test")


def test_the_files_of_a_project_have_its_name_and_no_other(installed: Path, tmp_path: Path) -> None:
    run(tmp_path, installed / "lockstep", "new", "some/red-roses")
    project = tmp_path / "some" / "red-roses"
    texts = {path.relative_to(project).as_posix(): path.read_text() for path in project.rglob("*") if path.is_file()}
    assert not [name for name, text in texts.items() if "flowers" in name + text]
    assert {"src/red_roses/network.py", ".gitignore", ".github/workflows/check.yml", "outputs/.gitkeep"} <= texts.keys()
    assert texts["conf/data/images.yaml"].startswith("_target_: red_roses.data.images\n")
    said = run(project, installed / "lockstep", "train", *BRIEF)
    assert "Finished 1 epoch" in said, "without pip install of the project: its src is searched"


def test_two_workers_train_a_project_as_one_does_and_it_is_evaluated_from_anywhere(
    project: Path, tmp_path: Path
) -> None:
    python = project / ".venv" / "bin" / "python"
    folders = []
    for num_workers in (1, 2):
        run(project, python, "train.py", "experiment=wide", *EXACT, f"trainer.devices={num_workers}")
        folders.append(latest(project))
    assert difference(*folders) <= 1e-12
    said = run(tmp_path, project / ".venv" / "bin" / "lockstep", "eval", "--trust", folders[0].path)
    assert f"{folders[0].read_summary()['test_f1']:.6f}" in said


def test_a_file_of_a_project_takes_the_place_of_lockstep_s(project: Path, tmp_path: Path) -> None:
    other = shutil.copytree(project, tmp_path / "other", symlinks=True, ignore=shutil.ignore_patterns("outputs"))
    (other / "conf" / "trainer").mkdir()
    text = (
        (ROOT / "conf" / "trainer" / "default.yaml").read_text().replace("log_every_n_steps: ", "log_every_n_steps: 1")
    )
    (other / "conf" / "trainer" / "default.yaml").write_text(text)
    (other / "conf" / "config.yaml").unlink()
    said = run(other, other / ".venv" / "bin" / "lockstep", "train", *BRIEF, "data=images", "--cfg", "job")
    assert "log_every_n_steps: 1" in said
    assert "_target_: flowers.data.images" in said
    assert "_target_: lockstep.models.ResNet18" in said, "without a config.yaml of its own it has Lockstep's defaults"


def test_a_job_of_a_project_has_a_copy_of_its_files(project: Path, tmp_path: Path) -> None:
    other = shutil.copytree(project, tmp_path / "other", symlinks=True, ignore=shutil.ignore_patterns("outputs"))
    command = other / ".venv" / "bin" / "lockstep"
    run(other, command, "train", *BRIEF, "cluster=local")
    with open(other / "src" / "flowers" / "network.py", "a") as network:
        network.write("raise RuntimeError('an edit')\n")  # too late for the job
    folder = latest(other)
    run(other, command, "jobs", "wait", json.loads((folder.path / "job.json").read_text())["id"])
    assert folder.read_summary()["epochs"] == 1
    copies = sorted(path.relative_to(folder.code / "1").as_posix() for path in (folder.code / "1").rglob("*.py"))
    assert copies == [
        *("src/flowers/__init__.py", "src/flowers/data.py", "src/flowers/network.py", "src/flowers/task.py"),
        *("tests/test_exact.py", "train.py"),
    ]
    python = other / ".venv" / "bin" / "python"
    said = run(other, python, "train.py", "resume=outputs/latest", "trainer.max_epochs=2", "cluster=none", code=2)
    assert "model._target_=flowers.network.Net cannot be imported: RuntimeError: an edit" in said, (
        "who goes on here has the files that are here"
    )


# -- another version ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with a newer Lockstep: another default, a public name that is another one now."""
    folder = tmp_path_factory.mktemp("newer")
    newer = source(folder / "source")

    def change(name: str, before: str, after: str) -> None:
        path = newer / name
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))

    change("src/lockstep/__init__.py", f'"{lockstep.__version__}"', '"99.0.0"')
    change("conf/optimizer/sgd.yaml", "momentum: 0.9", "momentum: 0.8")
    change("src/lockstep/tasks/__init__.pyi", "import Accuracy as Accuracy", "import Accuracies as Accuracies")
    change("src/lockstep/tasks/scores.py", "class Accuracy(", "Accuracies = None\n\n\nclass Accuracy(")
    return environment(folder / "environment", newer)


def test_a_newer_version_says_what_it_does_not_know_any_more_and_a_run_keeps_its_settings(
    installed: Path, newer: Path, tmp_path: Path, change_metrics: Callable[[Path], None]
) -> None:
    run(tmp_path, installed / "lockstep", "new", "tulips")
    project = tmp_path / "tulips"
    run(project, installed / "lockstep", "train", *BRIEF, AT_ONCE, code=EXIT_STOPPED)
    with_old_name = latest(project)
    error = run(project, newer / "lockstep", "train", *BRIEF, code=EXIT_CONFIG)
    name = "task.metrics.accuracy._target_=lockstep.tasks.Accuracy: 'lockstep.tasks' has no 'Accuracy'"
    assert f"{name}: did you mean lockstep.tasks.Accuracies?" in error

    change_metrics(project)
    error = run(project, newer / "lockstep", "train", f"resume={with_old_name.path}", code=EXIT_CONFIG)
    assert name in error, "of the run, no more of the project"
    assert f"was trained by Lockstep {lockstep.__version__} (this is 99.0.0): resume with that version" in error
    run(project, installed / "lockstep", "train", *BRIEF, AT_ONCE, code=EXIT_STOPPED)
    said = run(project, newer / "lockstep", "train", "resume=outputs/latest", ENDLESS)
    assert f"keeps its settings of Lockstep {lockstep.__version__} (this is 99.0.0)" in said
    assert "Finished 1 epoch" in said
    assert "momentum: 0.9\n" in latest(project).config.read_text()
    said = run(project, newer / "lockstep", "train", "--cfg", "job")
    assert "momentum: 0.8\n" in said, "a new run has the new default"


@pytest.fixture
def change_metrics() -> Callable[[Path], None]:
    """Takes the metric out of a project that the newer version does not have."""

    def change(project: Path) -> None:
        path = project / "conf" / "task" / "focal.yaml"
        text = path.read_text()
        path.write_text(text.replace("  accuracy:\n    _target_: lockstep.tasks.Accuracy\n", ""))
        assert path.read_text() != text

    return change
