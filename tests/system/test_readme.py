"""Every command of the README runs as it stands, on smaller data and networks, with the variables of a user."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from lockstep.runs.folder import EXIT_STOPPED
from tests.support import commands as forks
from tests.support.harness import PATIENCE_S, ROOT, environ, wait_until
from tests.support.screens import on_terminal
from tests.support.trainings import training

pytestmark = pytest.mark.processes
BIN = Path(sys.executable).parent
SMALL = (
    *("data=synthetic", "data.train_size=70", "model.width=2", "eval_batch_size=64"),
    *("callbacks.pictures=null", "callbacks.curves=null"),
)
# as many threads as cores: what works only with one thread of the other tests fails here
VARIABLES = {name: value for name, value in environ().items() if name != "OMP_NUM_THREADS"}
COMMANDS = [
    line.partition(" # ")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]


def run(cwd: Path, *words: str, is_new: bool = False) -> str:
    """Run a command as a fork, or as a new process, and return its output."""
    line = [str(BIN / words[0]), *words[1:]]
    pipes: dict[str, Any] = {"capture_output": True, "text": True, "timeout": PATIENCE_S}
    done = subprocess.run(line, cwd=cwd, env=VARIABLES, **pipes) if is_new else forks.run(line, cwd, VARIABLES)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def commands(start: str) -> list[list[str]]:
    """README commands that begin with `start`, as words, with train.py at its place."""
    found = [shlex.split(command) for command in COMMANDS if command.startswith(start)]
    return [[str(ROOT / word) if word == "train.py" else word for word in words] for words in found]


def smaller(words: list[str]) -> list[str]:
    """A training command on data and a network that take a second; folders stay what they are."""
    keeps_data = any(word.startswith(("data", "resume=")) for word in words)
    extra = [word for word in SMALL if not (keeps_data and word.startswith("data"))]
    if "flowers" in words:  # without pretrained weights, which would be downloaded
        kept = [word for word in extra if not word.startswith(("data", "model"))]
        extra = ["model.pretrained=false", "data.image_size=32", *kept]
    return [*words, *extra, "debug=fast"]


def images(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        noise = torch.randint(0, 256, (40, 50, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(number))
        Image.fromarray(noise.numpy()).save(folder / f"{number}.jpg")


def test_every_command_is_known_here() -> None:
    known = ("make ", "python train.py", "lockstep ", "torchrun ", "srun ", "python -m benchmarks")
    assert [command for command in COMMANDS if not command.startswith(known)] == []
    assert len(COMMANDS) > 15


@pytest.mark.parametrize("words", commands("make "), ids=" ".join)
def test_make_targets_exist(words: list[str]) -> None:
    subprocess.run([*words, "-n"], cwd=ROOT, check=True, capture_output=True)


def test_training_commands_run(tmp_path: Path) -> None:
    for species in ("rose", "tulip", "daisy"):
        images(tmp_path / "flowers" / species, 12)
    for words in (*commands("python train.py"), *commands("lockstep train")):
        if "--help" in words:
            assert "global_batch_size" in run(tmp_path, *words)
        elif "-m" not in words and not any(word.startswith(("resume=", "cluster=")) for word in words):
            assert "test/accuracy" in run(tmp_path, *smaller(words))


def test_a_fold_is_trained_and_predicted_by_several_threads(tmp_path: Path) -> None:
    words = [str(BIN / "lockstep"), "train", "data=digits", "model.width=2", "trainer.max_epochs=1"]
    run(tmp_path, *words, "data.folds=5", "data.fold=1", is_new=True)
    rows = (tmp_path / "outputs" / "latest" / "fold_predictions.csv").read_text().splitlines()
    run(tmp_path, "lockstep", "predict", "latest", "test", "--output", "test.csv", is_new=True)
    assert len((tmp_path / "test.csv").read_text().splitlines()) == len(rows) > 300


def test_sweeps_run(tmp_path: Path) -> None:
    for number, words in enumerate(commands("python train.py -m")):
        if not any(word.startswith("cluster=") for word in words):
            # one of the lists is enough, and two draws of a search
            kept = [word for word in words if "," not in word] + [word for word in words if "," in word][-1:]
            fewer = ["search.num_trials=2"] if any(word.startswith("search=") for word in words) else []
            out = run(tmp_path, *smaller(kept), *fewer, f"sweep.name=s{number}")
            assert re.search(r"Testing (the best trial|\d trials of the best setting)", out)
            assert len(list(tmp_path.glob(f"outputs/*/*_s{number}/table.*"))) == 3


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="no sbatch: tests/support/slurm.sh install has not been run")
def test_what_goes_to_a_cluster_can_be_submitted(tmp_path: Path) -> None:
    found = [words for words in commands("python train.py") if any(word.startswith("cluster=") for word in words)]
    assert len(found) > 1
    for words in found:
        script = run(tmp_path, *words, "dry_run=true")
        assert "#SBATCH --time" in script
        assert ("--array=0-2%3" in script) == ("-m" in words)


def test_images_are_prepared(tmp_path: Path) -> None:
    for species in ("rose", "tulip"):
        images(tmp_path / "flowers" / species, 3)
    (words,) = commands("lockstep data prepare")
    assert "Decoded 6 images of flowers" in run(tmp_path, *words)
    assert "Up to date" in run(tmp_path, *words)


def test_images_are_checked(tmp_path: Path) -> None:
    for number, species in enumerate(("rose", "tulip")):
        (tmp_path / "flowers" / species).mkdir(parents=True)
        for shade in range(20):
            image = Image.new("RGB", (8, 8), (100 * number, 10 * shade, 0))
            image.save(tmp_path / "flowers" / species / f"{shade}.png")
    (words,) = commands("lockstep data check")
    assert "40" in run(tmp_path, *words)


def test_the_promise_is_verified(tmp_path: Path) -> None:
    (words,) = commands("lockstep verify")
    assert "Exact: nothing differs by more than " in run(tmp_path, *words)


def test_stop_watch_and_go_on_then_use_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = [*SMALL, "global_batch_size=16", "trainer.max_epochs=2000"]
    with training(tmp_path, *long) as started:
        started.wait_for_step(3)
        (stop,) = commands("lockstep stop")
        assert "Stop requested" in run(tmp_path, *stop)
        assert started.exit_code() == EXIT_STOPPED
    (status,) = commands("lockstep status")
    assert "stopped" in run(tmp_path, *status)
    (compare,) = commands("lockstep compare")
    assert "results" in run(tmp_path, *compare[:-1], str(started.folder.path))
    (watch,) = commands("lockstep runs")
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        with on_terminal(100, *watch[1:]) as shown:
            shown.wait_for("stopped")
            shown.type("\x03")  # Ctrl-C
            assert shown.end() == 0
    epochs = int(started.folder.read_status()["epoch"])
    for number, words in enumerate(commands("python train.py resume")):
        assert "Finished" in run(tmp_path, *words, f"trainer.max_epochs={epochs + 1 + number}")
    images(tmp_path / "photos", 3)
    for words in commands("lockstep eval") + commands("lockstep predict") + commands("lockstep labels"):
        run(tmp_path, *words)
    (embed,) = commands("lockstep embed")
    assert run(tmp_path, *embed) == f"3 images in {tmp_path}/features.npy\n"
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 4
    (export,) = commands("lockstep export")
    assert "differences up to" in run(tmp_path, *export)


def test_a_benchmark_reports(tmp_path: Path) -> None:
    (words,) = commands("lockstep benchmark")
    small = [*SMALL, "debug=fast", "benchmark.budget_s=1"]
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # one thread: two on a busy machine would wait for each other
    try:
        assert "val/accuracy" in run(tmp_path, *words, *small, is_new=True)
    finally:
        os.sched_setaffinity(0, cores)


def test_the_board_starts_on_the_outputs(tmp_path: Path) -> None:
    (words,) = commands("lockstep board")
    (tmp_path / "outputs").mkdir()
    log = tmp_path / "log"
    with open(log, "wb") as file:
        process = subprocess.Popen([BIN / words[0], *words[1:]], cwd=tmp_path, env=environ(), stdout=file, stderr=file)
    try:
        wait_until(lambda: "Training tab: http://" in log.read_text(), "address of the tab")
    finally:
        process.kill()
        process.wait()


def test_torchrun_joins_its_workers(tmp_path: Path) -> None:
    (words,) = commands("torchrun")
    assert "test/accuracy" in run(tmp_path, *smaller(words), is_new=True)
    assert (tmp_path / "outputs" / "latest" / "summary.json").exists()


def test_a_project_is_made(tmp_path: Path) -> None:
    (words,) = commands("lockstep new")
    assert "make train" in run(tmp_path, *words)
    assert (tmp_path / words[2] / "train.py").read_text().count("entry.train(__file__)") == 1


def test_the_machine_is_shown(tmp_path: Path) -> None:
    (words,) = commands("lockstep machine")
    assert "Train with:" in run(tmp_path, *words)


def test_its_python_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    images(tmp_path / "photos", 1)
    (tmp_path / "photos" / "0.jpg").rename(tmp_path / "photos" / "0.png")
    (tmp_path / "it.py").write_text(block.replace("max_epochs=5", 'max_epochs=1", "model.width=2'))
    assert "Finished 1 epoch" in run(tmp_path, "python", "it.py")
