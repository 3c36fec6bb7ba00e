"""One composed configuration, any number of workers, however they are started; and what is seen when one fails."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Timer

import pytest
import torch
from PIL import Image
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from lockstep.distributed.collectives import FailedElsewhere
from lockstep.launch import worker
from lockstep.runs import discovery
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World
from lockstep.system.signals import SignalFlag
from tests.support import commands
from tests.support.commands import Command, latest
from tests.support.harness import PATIENCE_S, ROOT, SMALL, command, difference, environ, wait_until, write_run
from tests.support.image_files import write_folder
from tests.support.sweeps import table_of, trials_of

pytestmark = [pytest.mark.full, pytest.mark.processes]
LOCKSTEP = (sys.executable, "-m", "lockstep")


def run(cwd: Path, *overrides: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return commands.run(command(*overrides), cwd, {**environ(), **variables})


def test_a_silent_run_prints_nothing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (16, 16), (20 * number, 0, 0)).save(tmp_path / "images" / name / f"{number}.png")
    kept = [override for override in SMALL if not override.startswith("data")]
    folder = ["data=image_folder", "data.root=images", "data.image_size=16"]
    done = run(tmp_path, *kept, *folder, "trainer.max_epochs=1", "trainer.devices=2", "silent=true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_are_like_new_processes_of_the_command(tmp_path: Path, num_workers: int) -> None:
    notes = f"+callbacks.notes={{_target_:tests.support.callbacks.NotesProcess,folder:'{tmp_path}'}}"
    words = command(*SMALL, f"trainer.devices={num_workers}", "trainer.max_epochs=1", notes)
    # an input, a variable and arguments of the command; several workers have no input
    started = subprocess.Popen(
        words,
        cwd=tmp_path,
        env={**environ(), "PYTHONPATH": str(ROOT), "KEPT": "yes"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = started.communicate("for the worker", PATIENCE_S)
    assert started.returncode == 0, out
    facts = [json.loads((tmp_path / f"process-{rank}.json").read_text()) for rank in range(num_workers)]
    for rank, fact in enumerate(facts):
        assert fact["parent"] == facts[0]["parent"] != started.pid  # the server
        assert not fact["has_started_cuda"]
        assert fact["input"] == ("" if num_workers > 1 else "for the worker")
        assert fact["cwd"] == str(tmp_path.resolve())
        assert fact["blocked"] == []
        place = (str(rank), "2") if num_workers > 1 else (None, None)
        assert (fact["RANK"], fact["WORLD_SIZE"], fact["KEPT"]) == (*place, "yes")
        assert fact["arguments"] == words[2:]
        assert (fact["log"] == str(latest(tmp_path).rank_log(rank))) == (rank > 0)
    if num_workers > 1:
        assert facts[0]["random"] != facts[1]["random"]  # nobody has seeded them


def test_parts_of_a_training_have_the_hydra_configuration_of_their_job(tmp_path: Path) -> None:
    asks = f"+callbacks.asks={{_target_:tests.support.callbacks.AsksHydra,folder:'{tmp_path}'}}"
    done = run(tmp_path, *SMALL, "trainer.devices=2", "trainer.max_epochs=1", asks, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        facts = json.loads((tmp_path / f"hydra-{rank}.json").read_text())
        assert facts["cwd"] == str(tmp_path.resolve())
        assert asks in facts["overrides"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_workers_share_the_cores_by_default(tmp_path: Path) -> None:
    notes = f"+callbacks.notes={{_target_:tests.support.callbacks.NotesProcess,folder:'{tmp_path}'}}"
    variables = {name: value for name, value in environ().items() if name != "OMP_NUM_THREADS"}
    words = command(*SMALL, "trainer.devices=2", "trainer.max_epochs=1", notes)
    done = subprocess.run(words, cwd=tmp_path, env={**variables, "PYTHONPATH": str(ROOT)}, timeout=PATIENCE_S)
    assert done.returncode == 0
    facts = [json.loads((tmp_path / f"process-{rank}.json").read_text()) for rank in range(2)]
    assert [each["threads"] for each in facts] == [len(os.sched_getaffinity(0)) // 2] * 2


@pytest.mark.parametrize(("is_killed", "length"), [(False, 100), (True, 0)])
def test_a_command_that_streams_leaves_no_process_and_no_folder_of_sockets(
    tmp_path: Path, is_killed: bool, length: int
) -> None:
    write_folder(tmp_path / "images", count=20)
    kept = [override for override in SMALL if not override.startswith("data")]
    streamed = ["data=image_folder", "data.root=images", "data.memory=stream", "data.num_workers=1"]
    sizes = ["data.image_size=16", f"trainer.max_epochs={1000 if is_killed else 1}", "trainer.devices=2"]
    with tempfile.TemporaryDirectory(prefix="t" * (length or 1)) as temporary:
        words = command(*kept, *streamed, *sizes)
        process = subprocess.Popen(words, cwd=tmp_path, env={**environ(), "TMPDIR": temporary})
        wait_until(lambda: _sockets(temporary) or process.poll() is not None, "the server")
        (sockets,) = _sockets(temporary)
        assert sockets.is_dir()
        assert (sockets.parent == Path(temporary)) == (length == 0), "only sockets are elsewhere, if they must be"
        if is_killed:
            wait_until(lambda: (tmp_path / "outputs" / "latest" / "metrics.csv").exists(), "an epoch")
            process.kill()
        assert process.wait(PATIENCE_S) == (-signal.SIGKILL if is_killed else 0)
        wait_until(lambda: _processes_with(f"TMPDIR={temporary}") == [], "the end of all processes")
        assert not sockets.exists()
        assert not list(Path(temporary).glob("pymp-*"))


def _sockets(temporary: str) -> set[Path]:
    """Folders of sockets that fork servers with this TMPDIR were given."""
    found = set()
    for process in _processes_with(f"TMPDIR={temporary}"):
        with contextlib.suppress(OSError):
            for variable in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                if variable.startswith(b"LOCKSTEP_SERVER_FOLDER="):
                    found.add(Path(os.fsdecode(variable.partition(b"=")[2])))
    return found


def test_every_command_works_where_the_name_of_tmpdir_is_long(tmp_path: Path) -> None:
    (tmp_path / ("t" * 100)).mkdir()
    variables = {**environ(), "TMPDIR": str(tmp_path / ("t" * 100)), "PYTHONPATH": str(ROOT)}
    short = [*SMALL, "trainer.max_epochs=1", "trainer.devices=2"]
    script = (
        f"import lockstep; run = lockstep.train({[*short, 'hydra.run.dir=notebook']}); assert run.state == 'finished'"
    )
    for words in (
        [*LOCKSTEP, "train", *short, "hydra.run.dir=one", "trainer.devices=1"],
        [*LOCKSTEP, "train", "-m", *short, "trainer.devices=1", "seed=0,1"],
        [*LOCKSTEP, "eval", "one"],
        [*LOCKSTEP, "train", *short, "hydra.run.dir=job", "cluster=local"],
        [*LOCKSTEP, "jobs", "wait", "job"],
        [sys.executable, "-c", script],
    ):
        done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"


def _processes_with(variable: str) -> list[int]:
    """Processes that were started with a variable, or are forks of such a one."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # no process, or one that has just ended
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def _own_network(target: str) -> list[str]:
    kept = [override for override in SMALL if not override.startswith("model.")]
    return [*kept, target, "+model.hidden=4", "trainer.max_epochs=10"]


def test_the_own_frames_of_the_first_failing_rank_are_shown_last_and_the_traceback_is_kept(tmp_path: Path) -> None:
    overrides = _own_network("model._target_=tests.support.networks.FailsOnRank1")
    done = run(tmp_path, *overrides, "trainer.devices=2", PYTHONPATH=str(ROOT))
    assert done.returncode == 1
    folder = latest(tmp_path)
    assert folder.failure.read_text().startswith("rank 1 of 2 failed:\nTraceback (most recent call last):\n")
    head, place, source, last, where = done.stderr.strip().splitlines()[-5:]
    assert head == "rank 1 of 2 failed:"
    assert re.fullmatch(rf"  {ROOT}/tests/support/networks\.py:\d+ \(forward\)", place)
    assert source == '    raise ZeroDivisionError("the network of rank 1 is broken")'
    assert last == "ZeroDivisionError: the network of rank 1 is broken"
    assert where == f"The whole traceback: {folder.failure.relative_to(tmp_path.resolve())}"
    assert folder.read_status()["state"] == "failed"


@pytest.mark.parametrize(
    ("num_workers", "of_gpu", "said"),
    [
        (1, True, "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.19 GiB is free"),
        (2, False, "tried to allocate 4503599627370496 bytes"),
    ],
)
def test_out_of_memory_is_reported_with_the_settings_that_need_less(
    tmp_path: Path, num_workers: int, of_gpu: bool, said: str
) -> None:
    network = [
        *_own_network("model._target_=tests.support.networks.OutOfMemory"),
        f"+model.of_gpu={str(of_gpu).lower()}",
    ]
    done = run(tmp_path, *network, f"trainer.devices={num_workers}", PYTHONPATH=str(ROOT))
    assert done.returncode == 1
    folder = latest(tmp_path)
    (told,) = folder.failure.read_text().splitlines()
    rank = next(rank for rank in range(num_workers) if told.startswith(f"rank {rank} of {num_workers} "))
    assert told.startswith(f"rank {rank} of {num_workers} ran out of memory ({said}). Raise ")
    assert "trainer.accumulate_grad_batches" in told
    assert told in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "Traceback" in folder.rank_log(rank).read_text()
    assert folder.read_status()["reason"] == told


def test_a_rank_that_fails_because_of_another_lets_that_one_record_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(folder: RunFolder, *args: object) -> int:
        Timer(0.3, folder.record_failure, ["rank 1 failed: the cause\n"]).start()
        raise FailedElsewhere("something is wrong on rank 1")

    monkeypatch.setattr(worker, "task_function", lambda task: told)
    place = World("torchrun", rank=0, local_rank=0, node_rank=0, world_size=2)
    assert worker.run_here(worker.Job(worker.TRAIN, str(tmp_path), {}), place) == 1
    assert RunFolder(tmp_path).failure.read_text() == "rank 1 failed: the cause\n"
    assert "something is wrong on rank 1" in RunFolder(tmp_path).rank_log(0).read_text()


@pytest.mark.parametrize(
    ("state", "code", "rank"), [("stopped", 75, 0), ("finished", 0, 1), ("training", 130, 0), ("training", 130, 1)]
)
def test_a_second_ctrl_c_changes_no_recorded_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, code: int, rank: int
) -> None:
    def train(folder: RunFolder, world: World | None, flag: SignalFlag) -> int:
        folder.update_status(state=state, reason="signal SIGINT")
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not interrupted")

    monkeypatch.setattr(worker, "task_function", lambda task: train)
    world = World("torchrun", rank=rank, local_rank=rank, node_rank=0, world_size=2)
    assert worker.run_here(worker.Job(worker.TRAIN, str(tmp_path), {}), world) == code
    status = RunFolder(tmp_path).read_status()
    expected = (
        ("failed", "aborted by a second Ctrl-C") if (state, rank) == ("training", 0) else (state, "signal SIGINT")
    )
    assert (status["state"], status["reason"]) == expected


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_loss_that_is_not_a_number_ends_the_run_before_its_step(tmp_path: Path, num_workers: int) -> None:
    overrides = [*_own_network("model._target_=tests.support.networks.BecomesNan"), "silent=true"]
    done = run(tmp_path, *overrides, f"trainer.devices={num_workers}", PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stdout) == (1, "")
    folder = latest(tmp_path)
    # 70 samples in batches of 16 are 5 steps an epoch: the 30th step is the last of epoch 6
    what, *advice, where = done.stderr.splitlines()
    assert what.startswith("The loss is not finite in optimizer step 30 (epoch 6, micro-batch 5) on rank ")
    assert advice[0].startswith("Lower optimizer.lr: divide it by 10 until the loss falls.")
    assert where == f"The whole report: {folder.failure.relative_to(tmp_path.resolve())}"
    assert folder.failure.read_text().splitlines()[-1].startswith("Training samples of the shard: [")
    assert folder.read_status()["reason"] == what
    shown = subprocess.run([*LOCKSTEP, "status"], cwd=tmp_path, env=environ(), capture_output=True, text=True).stdout
    look = f"^look +cat {folder.failure.relative_to(tmp_path.resolve())}$"
    assert re.search(look, shown, re.MULTILINE), "resumed, it fails again"
    (known,) = discovery.scan(tmp_path / "outputs").values()
    assert discovery.resume_command(known) is None
    saved = torch.load(folder.last_checkpoint, weights_only=True)
    assert saved["global_step"] == 25
    assert all(value.isfinite().all() for value in saved["state_dict"].values())


def test_torchrun_trains_the_same_weights_in_one_folder(tmp_path: Path) -> None:
    alone = write_run(tmp_path / "alone", SMALL)
    assert worker.run_here(worker.Job(worker.TRAIN, str(alone.path), {"command": "", "has_test": True}), None) == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, str(ROOT / "train.py"), *SMALL], cwd=tmp_path, env=environ(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("outputs/*/*/config.yaml"))) == 1
    assert latest(tmp_path).read_summary()["workers"] == 2
    assert difference(alone, latest(tmp_path)) <= 1e-12


def test_a_sweep_in_a_slurm_job_of_one_task_starts_the_workers_of_its_trials(tmp_path: Path) -> None:
    words = ("-m", *SMALL, "trainer.max_epochs=1", "seed=0,1", "trainer.devices=2", "launcher.parallel=1")
    ids = dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0")
    tasks = dict.fromkeys(("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"), "1")
    done = run(tmp_path, *words, SLURM_JOB_ID="7", SLURM_JOB_NODELIST="localhost", **ids, **tasks)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [trial["state"] for trial in table_of(tmp_path)["trials"]] == ["finished"] * 2
    assert [folder.read_summary()["workers"] for folder in trials_of(tmp_path)] == [2, 2]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_whose_others_are_missing_prints_a_line_in_place_of_a_traceback(tmp_path: Path, rank: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    done = run(tmp_path, *SMALL, "strategy.timeout_s=5", **place)
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("rank ")]
    assert line.startswith(f"rank {rank} of 2 on {socket.gethostname()} timed out waiting for the others")
    assert "strategy.timeout_s=5" in line
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "outputs").exists()


def test_ranks_with_other_settings_are_refused_before_the_first_step(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    tasks = []
    for rank, seed in enumerate((0, 1)):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}
        place |= {"MASTER_PORT": store.port, "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": True}
        tasks.append(
            Command(
                command(*SMALL, f"seed={seed}"),
                cwd=tmp_path,
                env={**environ(), **{name: str(value) for name, value in place.items()}},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    outputs = [task.communicate(timeout=PATIENCE_S)[0] for task in tasks]
    assert all(task.returncode != 0 for task in tasks)
    assert all("has another configuration or world size" in output for output in outputs)
    assert not list(tmp_path.glob("outputs/*/*/config.yaml"))


def test_a_run_is_trained_by_one_command_at_a_time(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", SMALL)
    with folder.lock():
        done = run(tmp_path, f"resume={folder.path}")
    assert done.returncode == 2
    assert "is being trained by another process" in done.stderr


def test_scale_with_workers_multiplies_batch_and_rate(tmp_path: Path) -> None:
    scaled = run(tmp_path, *SMALL, "trainer.devices=2", "scale_with_workers=true", "trainer.max_epochs=1")
    assert "scale_with_workers: global batch 16 -> 32, learning rate 0.1 -> 0.2" in scaled.stdout
    assert json.loads((latest(tmp_path).path / "summary.json").read_text())["steps"] == 3  # 70 samples by 32
