"""One composed configuration trains in any number of workers, however they are started.

The tests also show what is seen when a worker fails.
"""

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
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from lockstep.distributed.collectives import FailedElsewhere
from lockstep.launch import worker
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World
from lockstep.system.signals import SignalFlag
from tests.support import commands
from tests.support.commands import Command, latest
from tests.support.exact import trained
from tests.support.harness import (
    PATIENCE_S,
    ROOT,
    SMALL,
    command,
    difference,
    environ,
    own_network,
    wait_until,
    write_run,
)
from tests.support.image_files import write_folder

pytestmark = [pytest.mark.full, pytest.mark.processes]


def run(cwd: Path, *overrides: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return commands.run(command(*overrides), cwd, {**environ(), **variables})


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_like_new_processes(tmp_path: Path, num_workers: int) -> None:
    notes = (
        f"+callbacks.notes={{_target_:tests.support.callbacks.NotesProcess,folder:'{tmp_path}'}}"
    )
    words = command(*SMALL, f"trainer.devices={num_workers}", "trainer.max_epochs=1", notes)
    variables = {name: value for name, value in environ().items() if name != "OMP_NUM_THREADS"}
    # an input, a variable and arguments of the command; several workers have no input
    started = subprocess.Popen(
        words,
        cwd=tmp_path,
        env={**variables, "PYTHONPATH": str(ROOT), "KEPT": "yes"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = started.communicate("for the worker", PATIENCE_S)
    assert started.returncode == 0, out
    facts = [
        json.loads((tmp_path / f"process-{rank}.json").read_text()) for rank in range(num_workers)
    ]
    expected = {
        "has_started_cuda": False,
        "input": "" if num_workers > 1 else "for the worker",
        "cwd": str(tmp_path.resolve()),
        "blocked": [],
        "KEPT": "yes",
        "WORLD_SIZE": "2" if num_workers > 1 else None,
        "arguments": words[2:],
        "hydra": [str(tmp_path.resolve()), notes],
        "threads": max(1, len(os.sched_getaffinity(0)) // num_workers),
        "parent": facts[0]["parent"],
    }
    assert facts[0]["parent"] != started.pid, "the server"
    for rank, fact in enumerate(facts):
        assert {name: fact[name] for name in expected} == expected
        assert fact["RANK"] == (str(rank) if num_workers > 1 else None)
        assert (fact["log"] == str(latest(tmp_path).rank_log(rank))) == (rank > 0)
    assert len({tuple(fact["random"]) for fact in facts}) == num_workers, "nobody has seeded them"


@pytest.mark.parametrize(("is_killed", "length"), [(False, 100), (True, 0)])
def test_stream_processes_ended(tmp_path: Path, is_killed: bool, length: int) -> None:
    """A streamed run leaves no process and no socket, also when it is killed."""
    write_folder(tmp_path / "images", count=20)
    kept = [override for override in SMALL if not override.startswith("data")]
    streamed = ["data=image_folder", "data.root=images", "data.memory=stream", "data.num_workers=1"]
    sizes = [
        "data.image_size=16",
        f"trainer.max_epochs={1000 if is_killed else 1}",
        "trainer.devices=2",
    ]
    with tempfile.TemporaryDirectory(prefix="t" * (length or 1)) as temporary:
        words = command(*kept, *streamed, *sizes)
        process = subprocess.Popen(words, cwd=tmp_path, env={**environ(), "TMPDIR": temporary})
        wait_until(lambda: _sockets(temporary) or process.poll() is not None, "the server")
        (sockets,) = _sockets(temporary)
        assert (sockets.parent == Path(temporary)) == (length == 0), (
            "only sockets are elsewhere, if they must be"
        )
        if is_killed:
            wait_until(
                lambda: (tmp_path / "outputs" / "latest" / "metrics.csv").exists(), "an epoch"
            )
            process.kill()
        assert process.wait(PATIENCE_S) == (-signal.SIGKILL if is_killed else 0)
        wait_until(lambda: _environments(temporary) == [], "the end of all processes")
        assert not sockets.exists()
        assert not list(Path(temporary).glob("pymp-*"))


def _environments(temporary: str) -> list[str]:
    """Variables of the processes that were started with this TMPDIR, or are forks of such a one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # no process, or one that has just ended
            text = path.read_bytes().decode(errors="replace")
            if f"TMPDIR={temporary}" in text.split("\0"):
                found.append(text)
    return found


def _sockets(temporary: str) -> set[Path]:
    """Folders of sockets that fork servers with this TMPDIR were given."""
    found = re.findall(r"LOCKSTEP_SERVER_FOLDER=([^\0]*)", "\0".join(_environments(temporary)))
    return set(map(Path, found))


def test_failing_rank_shown_with_custom_frames(tmp_path: Path) -> None:
    overrides = own_network("FailsOnRank1")
    done = run(tmp_path, *overrides, "trainer.devices=2", PYTHONPATH=str(ROOT))
    assert done.returncode == 1
    folder = latest(tmp_path)
    assert folder.failure.read_text().startswith(
        "rank 1 of 2 failed:\nTraceback (most recent call last):\n"
    )
    assert f"  {ROOT}/tests/support/networks.py:" in done.stderr
    assert "ZeroDivisionError: the network of rank 1 is broken" in done.stderr
    assert folder.read_status()["state"] == "failed"


def test_failure_elsewhere_recorded_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(folder: RunFolder, *args: object) -> int:
        Timer(0.3, folder.record_failure, ["rank 1 failed: the cause\n"]).start()
        raise FailedElsewhere("something is wrong on rank 1")

    monkeypatch.setattr(worker, "train", told)
    place = World("torchrun", rank=0, local_rank=0, node_rank=0, world_size=2)
    assert worker.run_here(worker.Job(worker.train, RunFolder(tmp_path), {}), place) == 1
    assert RunFolder(tmp_path).failure.read_text() == "rank 1 failed: the cause\n"


@pytest.mark.parametrize(
    ("state", "code", "rank"),
    [("stopped", 75, 0), ("finished", 0, 1), ("training", 130, 0), ("training", 130, 1)],
)
def test_second_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, code: int, rank: int
) -> None:
    def interrupted(folder: RunFolder, world: World | None, flag: SignalFlag) -> int:
        folder.update_status(state=state, reason="signal SIGINT")
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not interrupted")

    monkeypatch.setattr(worker, "train", interrupted)
    world = World("torchrun", rank=rank, local_rank=rank, node_rank=0, world_size=2)
    assert worker.run_here(worker.Job(worker.train, RunFolder(tmp_path), {}), world) == code
    status = RunFolder(tmp_path).read_status()
    assert status["state"] == ("failed" if (state, rank) == ("training", 0) else state)


def test_nan_loss_failed_run(tmp_path: Path) -> None:
    overrides = [*own_network("BecomesNan"), "trainer.max_epochs=10", "silent=true"]
    done = run(tmp_path, *overrides, "trainer.devices=2", PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stdout) == (1, "")
    folder = latest(tmp_path)
    # 70 samples in batches of 16 are 5 steps an epoch: the 30th step is the last of epoch 6
    assert done.stderr.startswith(
        "The loss is not finite in optimizer step 30 (epoch 6, micro-batch 5) on rank "
    )
    assert "Lower optimizer.lr" in done.stderr
    saved = torch.load(folder.last_checkpoint, weights_only=True)
    assert saved["global_step"] == 25
    assert all(value.isfinite().all() for value in saved["state_dict"].values())


def test_torchrun(tmp_path: Path) -> None:
    alone = trained(tmp_path / "alone", SMALL)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, str(ROOT / "train.py"), *SMALL],
        cwd=tmp_path,
        env=environ(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("outputs/*/*/config.yaml"))) == 1
    assert difference(alone, latest(tmp_path)) <= 1e-12


@pytest.mark.parametrize("rank", [0, 1])
def test_missing_ranks(tmp_path: Path, rank: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    done = run(tmp_path, *SMALL, "strategy.timeout_s=5", **place)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"rank {rank} of 2 on {socket.gethostname()} timed out" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "outputs").exists()


def test_ranks_with_other_settings_refused(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    tasks = []
    for rank, seed in enumerate((0, 1)):
        place = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": 2,
            "LOCAL_WORLD_SIZE": 2,
            "MASTER_ADDR": "127.0.0.1",
        }
        place |= {
            "MASTER_PORT": store.port,
            "TORCHELASTIC_RUN_ID": "x",
            "TORCHELASTIC_USE_AGENT_STORE": True,
        }
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


def test_locked_run_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", SMALL)
    with folder.lock():
        done = run(tmp_path, f"resume={folder.path}")
    assert done.returncode == 2
    assert "is being trained by another process" in done.stderr
