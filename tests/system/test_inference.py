"""Inference by workers, under torchrun and srun, and as jobs: the same bytes, also after a kill."""

import csv
import io
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lockstep.runs import files
from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED, GRACE_S, RunFolder
from tests.support.commands import Command, copy_with_rule, lockstep, output_of, run
from tests.support.harness import (
    PATIENCE_S,
    ROOT,
    environ,
    own_network,
    train_all,
    wait_until,
    write_run,
)
from tests.support.image_files import write_image
from tests.support.slurm import Slurm
from tests.support.slurm_jobs import CLUSTER, Shell, Submitted

pytestmark = pytest.mark.processes
NUM_PHOTOS = 45
# each image is a chunk
OVERRIDES = ("eval_batch_size=1",)
VARIABLES = {**environ(), "PYTHONPATH": str(ROOT)}
OneWorker = Callable[[str], dict[str, bytes]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    overrides = [*own_network("WaitsInTheThirdBatch"), "trainer.max_epochs=1"]
    folder = write_run(tmp_path_factory.mktemp("trained") / "run", overrides)
    train_all([folder], 1)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(NUM_PHOTOS):
        write_image(
            folder / f"{number % 3}" / f"{number}.png", seed=number, height=9 + number, width=20
        )
    return folder


OUTPUT = ("--output", "out.csv", "--trust", *OVERRIDES)
COMMANDS = {
    "predict": (("predict", "RUN", "PHOTOS", *OUTPUT), ("out.csv",)),
    "eval": (("eval", "RUN", *OUTPUT, "--top-k", "3"), ("out.csv",)),
    "labels": (("labels", "RUN", *OUTPUT), ("out.csv", "out.png")),
    "embed": (
        ("embed", "RUN", "PHOTOS", *OUTPUT, "--output", "out.npy"),
        ("out.npy", "out.npy.csv"),
    ),
}


def typed(name: str, run: RunFolder, photos: Path) -> list[str]:
    places = {"RUN": str(run.path), "PHOTOS": str(photos)}
    return [places.get(str(word), str(word)) for word in COMMANDS[name][0]]


def written(cwd: Path) -> dict[str, bytes]:
    """The files that a command wrote in a folder, where nothing else is."""
    return {path.name: path.read_bytes() for path in cwd.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def by_one(trained: RunFolder, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> OneWorker:
    """What one worker writes, by the command."""
    found = {}

    def run_once(name: str) -> dict[str, bytes]:
        if name not in found:
            cwd = tmp_path_factory.mktemp("one")
            output_of(cwd, *typed(name, trained, photos), "--devices", "1")
            found[name] = written(cwd)
            assert sorted(found[name]) == [*COMMANDS[name][1]]
        return found[name]

    return run_once


@pytest.fixture(scope="module")
def alone(by_one: OneWorker) -> bytes:
    """The predictions of one worker."""
    return by_one("predict")["out.csv"]


def words(folder: RunFolder, source: Path, output: Path) -> list[str]:
    return [
        "predict",
        str(folder.path),
        str(source),
        "--output",
        str(output),
        "--trust",
        *OVERRIDES,
    ]


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "lockstep")


def hidden_files(output: Path) -> list[Path]:
    return [path for path in output.parent.glob(".*") if files.LEFTOVER.fullmatch(path.name)]


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("predict", "2"),
        pytest.param("labels", "3", marks=pytest.mark.full),
        pytest.param("eval", "torchrun", marks=pytest.mark.full),
    ],
)
def test_bytes_on_any_workers(
    trained: RunFolder, photos: Path, by_one: OneWorker, tmp_path: Path, name: str, devices: str
) -> None:
    """Three workers for the other commands: test_bytes_after_a_signal."""
    words = typed(name, trained, photos)
    done = (
        run([*TORCHRUN, *words], tmp_path, VARIABLES)
        if devices == "torchrun"
        else lockstep(tmp_path, *words, "--devices", devices)
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert written(tmp_path) == by_one(name)


def test_images_without_answer(
    trained: RunFolder, photos: Path, alone: bytes, tmp_path: Path
) -> None:
    plain = list(csv.DictReader(alone.decode().splitlines()))
    middle = sorted(float(row["probability"]) for row in plain)[NUM_PHOTOS // 2] + 5e-7
    copy, output = copy_with_rule(trained, tmp_path / "run", middle), tmp_path / "out.csv"
    expected = [row["class"] if float(row["probability"]) > middle else "unknown" for row in plain]
    assert 0 < expected.count("unknown") < NUM_PHOTOS
    for devices in ("1", "3"):
        output_of(
            tmp_path, *words(copy, photos, output), "--max-error", "0.05", "--devices", devices
        )
        rows = list(csv.DictReader(output.read_text().splitlines()))
        assert [row["class"] for row in rows] == expected
        assert [row["probability"] for row in rows] == [row["probability"] for row in plain]
    refused = lockstep(tmp_path, *words(copy, photos, tmp_path / "no.csv"), "--max-error", "0.001")
    assert refused.returncode == EXIT_CONFIG
    assert not list(tmp_path.glob("no.csv*"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "number", "code"),
    [
        ("predict", signal.SIGINT, 130),
        ("eval", signal.SIGTERM, 128 + signal.SIGTERM),
        ("embed", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_bytes_after_a_signal(
    trained: RunFolder,
    photos: Path,
    by_one: OneWorker,
    tmp_path: Path,
    name: str,
    number: int,
    code: int,
) -> None:
    output, hold = tmp_path / COMMANDS[name][1][0], tmp_path / "hold"
    hold.touch()
    words = typed(name, trained, photos)
    process = Command(
        [sys.executable, "-m", "lockstep", *words, "--devices", "2"], tmp_path, VARIABLES
    )
    wait_until(lambda: len(hidden_files(output)) == 2, "both workers write")
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == code
    assert not output.exists()
    wait_until(lambda: not any(map(files.is_locked, hidden_files(output))), "the workers end, too")
    hold.unlink()
    output_of(tmp_path, *words, "--devices", "3")
    assert written(tmp_path) == by_one(name)


@pytest.mark.parametrize(
    ("name", "more", "part"),
    [
        ("eval", "hydra.run.dir=mine", "hydra.run.dir=mine is for a training"),
        ("predict", "--output=folder", "--output folder is a folder"),
        ("embed", "init_from=run", "init_from=run is for a training"),
        ("embed", "--output=out.csv", "--output out.csv is not named as an array"),
        ("embed", "--output=taken.npy", "--output taken.npy.csv is a folder"),
    ],
)
def test_inference_refused(
    trained: RunFolder, photos: Path, tmp_path: Path, name: str, more: str, part: str
) -> None:
    for folder in ("folder", "taken.npy.csv"):
        (tmp_path / folder).mkdir()
    done = lockstep(tmp_path, *typed(name, trained, photos), more)
    assert (done.returncode, part in done.stderr) == (EXIT_CONFIG, True), done.stderr
    assert written(tmp_path) == {}


@pytest.mark.full
def test_embed_unreadable(
    trained: RunFolder, photos: Path, by_one: OneWorker, tmp_path: Path
) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "1" / "4.png").write_bytes(b"no image")
    words = typed("embed", trained, tmp_path / "photos")
    assert lockstep(tmp_path, *words, "--strict").returncode == EXIT_CONFIG
    assert written(tmp_path) == {}
    assert lockstep(tmp_path, *words).returncode == EXIT_FAILED
    names = by_one("embed")["out.npy.csv"]
    assert written(tmp_path)["out.npy.csv"] == names.replace(b"1/4.png\n", b"")
    place = names.decode().splitlines().index("1/4.png") - 1
    before = np.load(io.BytesIO(by_one("embed")["out.npy"]))
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), np.delete(before, place, 0))


@pytest.fixture
def shell(slurm: Slurm, tmp_path: Path) -> Shell:
    slurm.environ["PYTHONPATH"] = str(ROOT)
    return Shell(slurm, tmp_path)


def submitted(shell: Shell, *words: str) -> Submitted:
    done = shell.slurm.run(sys.executable, "-m", "lockstep", *words, *CLUSTER, cwd=shell.cwd)
    (job,) = re.findall(r"^job +(\d+)$", done.stdout, re.MULTILINE)
    (folder,) = (
        path.parent
        for path in shell.cwd.glob("outputs/*/*/job.json")
        if json.loads(path.read_text())["id"] == job
    )
    return Submitted(shell, RunFolder(folder))


@pytest.mark.full
def test_jobs_of_two_nodes(trained: RunFolder, photos: Path, alone: bytes, shell: Shell) -> None:
    """A prediction as a job: test_job_interrupted_and_requeued."""
    output, place = shell.cwd / "out.csv", ("trainer.num_nodes=2", "trainer.devices=1")
    evaluation = submitted(shell, "eval", str(trained.path), "--trust", *place)
    shell.jobs("wait", evaluation.id)
    here = lockstep(shell.cwd, "eval", str(trained.path), "--trust").stdout
    assert here in evaluation.log
    step = ("srun", "--nodes=2", "--ntasks-per-node=1", sys.executable, "-m", "lockstep")
    shell.slurm.run(*step, *words(trained, photos, output), cwd=shell.cwd)
    assert output.read_bytes() == alone


@pytest.mark.full
def test_job_interrupted_and_requeued(
    trained: RunFolder, photos: Path, alone: bytes, shell: Shell
) -> None:
    output, hold = shell.cwd / "out.csv", shell.cwd / "hold"
    hold.touch()
    job = submitted(
        shell, *words(trained, photos, output), "trainer.num_nodes=2", "trainer.devices=1"
    )
    wait_until(lambda: len(hidden_files(output)) == 2, "both workers write", lambda: job.log)
    first = {*hidden_files(output)}
    slow = int(job.folder.heartbeat(1).read_text().split()[1])
    os.kill(slow, signal.SIGSTOP)
    shell.slurm.run("scancel", "--signal=USR1", job.id)  # as SLURM warns of the time limit
    wait_until(lambda: not job.folder.heartbeat(0).exists(), "rank 0 has ended", lambda: job.log)
    # srun exits with the code of a task that it kills: the job would not be requeued
    time.sleep(GRACE_S + 3)
    os.kill(slow, signal.SIGCONT)
    wait_until(
        lambda: len({*hidden_files(output)} - first) == 2, "both write again", lambda: job.log
    )
    shell.jobs("cancel", job.id)
    job.wait(state="CANCELLED")
    assert not output.exists()
    hold.unlink()
    shell.jobs("requeue", job.id)
    shell.jobs("wait", job.id)
    assert output.read_bytes() == alone
    assert not hidden_files(output)
    assert json.loads(shell.jobs("result", job.id).stdout)["predictions"] == NUM_PHOTOS
