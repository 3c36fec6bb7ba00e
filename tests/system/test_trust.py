"""A run folder is data: no command runs the code that it names without --trust."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import lockstep
from lockstep.cluster.record import Record
from lockstep.config.saved import config_file
from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support import job_records
from tests.support.harness import ROOT, SMALL, environ, train_all, wait_until, write_run
from tests.support.strangers import TOUCH, edit, typed

pytestmark = [pytest.mark.full, pytest.mark.processes]
RESUME = ("train", "resume=theirs", "trainer.max_epochs=3")
EVAL = ("eval", "theirs")
PREDICT = ("predict", "theirs", "test", "--output", "out.csv")
CALL = {"command": TOUCH}
VARIABLES = {"variables": {"OWN_X": "1"}}
OPENS = {"_target_": "logging.FileHandler", "filename": "ran"}  # what Hydra itself does not refuse
LAMBDA = {"_target_": "lightning.pytorch.callbacks.LambdaCallback"}
CHAIN = "lightning.pytorch.callbacks.model_checkpoint.logging.FileHandler"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = write_run(tmp_path_factory.mktemp("trained") / "run", SMALL)
    train_all([folder], 1)
    return folder


@pytest.fixture
def theirs(trained: RunFolder, tmp_path: Path) -> RunFolder:
    """A run with another project's code. It was made here: that of a stranger is not resumed whatever it names."""
    folder = RunFolder(shutil.copytree(trained.path, tmp_path / "theirs"))
    folder.claim()
    return folder


def refused(cwd: Path, words: tuple[str, ...], what: str) -> None:
    """The command ends with a line that names `what` and --trust, and has run nothing."""
    done = typed(cwd, *words)
    assert not (cwd / "ran").exists(), done.stderr
    assert done.returncode == EXIT_CONFIG, done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "--trust" in line]
    assert what in line


def test_modules_of_the_folders_that_a_run_records_are_not_found(theirs: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    for module in ("PIL", "torchmetrics"):
        (tmp_path / "modules" / f"{module}.py").write_text("import os\nos.system('touch ran')\nraise SystemExit(3)\n")
    theirs.note(project={"modules": [str(tmp_path / "modules")], "started_in": []})
    for more in ((), ("--trust",)):
        new = [sys.executable, "-m", "lockstep", *PREDICT, *more]  # a fork has imported these before
        done = subprocess.run(new, cwd=tmp_path, env=environ(), capture_output=True, text=True)
        assert not (tmp_path / "ran").exists()
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "sections", "what"),
    [
        (EVAL, {"data": {"_target_": "os.system", **CALL}}, "data._target_=os.system"),
        (RESUME, {"callbacks": {"x": OPENS}}, "callbacks.x._target_=logging.FileHandler"),
        (RESUME, {"callbacks": {"x": {**OPENS, "_target_": CHAIN}}}, f"callbacks.x._target_={CHAIN}"),
        (RESUME, {"callbacks": {"x": {**LAMBDA, "on_fit_start": [OPENS]}}}, "callbacks.x.on_fit_start.0._target_="),
        (RESUME, {"strategy": VARIABLES}, "strategy.variables.OWN_X of theirs is of neither the command line"),
        ((*RESUME, "strategy={interface:lo}"), {"strategy": VARIABLES}, "strategy.variables.OWN_X"),
        (EVAL, {"strategy": {"variables": {"LD_PRELOAD": "x.so"}}}, "strategy.variables.LD_PRELOAD"),
    ],
)
def test_what_a_run_names_is_refused_by_a_line(
    theirs: RunFolder, tmp_path: Path, words: tuple[str, ...], sections: dict[str, Any], what: str
) -> None:
    edit(theirs, **sections)
    refused(tmp_path, words, what)


@pytest.mark.parametrize(
    ("words", "has_own", "value"),
    [(["--trust"], False, "1"), (["strategy.variables.OWN_X=2"], False, "2"), ([], True, "1")],
    ids=["trusted", "typed again", "of the project"],
)
def test_variables(theirs: RunFolder, tmp_path: Path, words: list[str], has_own: bool, value: str) -> None:
    if has_own:
        (tmp_path / "conf").mkdir()
        text = (ROOT / "conf" / "config.yaml").read_text() + "strategy:\n  variables:\n    OWN_X: '1'\n"
        (tmp_path / "conf" / "config.yaml").write_text(text)
    edit(theirs, strategy=VARIABLES)
    typed(tmp_path, *RESUME, *words, code=0)
    assert str(config_file.load(theirs.config).strategy.variables["OWN_X"]) == value


def test_trust_without_run(tmp_path: Path) -> None:
    assert "--trust" in typed(tmp_path, "train", "--trust", *SMALL, code=EXIT_CONFIG).stderr


def test_a_job_of_somebody_else_is_not_requeued(theirs: RunFolder, tmp_path: Path) -> None:
    (theirs.code / "1").mkdir(parents=True)
    cluster = {**config_file.load(theirs.config).cluster.model_dump(), "name": "local", "setup": [TOUCH]}
    places = {"log": str(theirs.path / "log"), "code": str(theirs.code / "1"), "cwd": str(tmp_path)}
    Record(**job_records.fields(cluster=cluster, cancelled=True, **places)).save(theirs)
    theirs.update_status(state="stopped", exit_code=75)
    (theirs.path / "summary.json").unlink()
    theirs.note(inode=0)  # a copy
    refused(tmp_path, ("jobs", "requeue", "theirs"), "theirs was not made here")
    typed(tmp_path, "jobs", "requeue", "theirs", "--trust", code=0)
    wait_until(lambda: (tmp_path / "ran").exists(), "the job has begun")
    wait_until(lambda: not theirs.has_job_here(), "the end of the job")


def test_a_command_inside_of_a_run_takes_nothing_there_for_a_project(theirs: RunFolder) -> None:
    (theirs.path / "PIL.py").write_text("import os\nos.system('touch ran')\n")
    refused(theirs.path, ("predict", ".", "test", "--output", "/tmp/out.csv"), "inside the run")
    refused(theirs.path, ("train", "resume=.", "trainer.max_epochs=3"), "inside the run")


@pytest.mark.parametrize(
    ("call", "argument"), [(lockstep.train, ["resume=theirs", "trainer.max_epochs=3"]), (lockstep.load, "theirs")]
)
def test_trust_in_python(
    theirs: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., object], argument: Any
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "trusted_images.py").write_text("from lockstep.data import synthetic\n")
    theirs.note(project={"modules": [str(tmp_path / "modules")], "started_in": []})
    data = yaml.safe_load(theirs.config.read_text())["data"]
    edit(theirs, data={**data, "_target_": "trusted_images.synthetic"})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(lockstep.ConfigError, match="trusted_images"):
        call(argument)
    call(argument, trust=True)
