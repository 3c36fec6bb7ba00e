"""What a disk refuses is told in one line, with the exit code that is true, and what was saved before stays whole."""

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED, RunFolder
from lockstep.training import refusals
from lockstep.training.checkpoint_io import AtomicCheckpointIO
from tests.support import commands
from tests.support.harness import PATIENCE_S, ROOT, SMALL, command, environ
from tests.support.image_files import write_folder

TOOL = [str(Path(sys.executable).parent / "lockstep")]
WITHOUT_FOLDER = (
    *(command("--help"), command()),
    *([*TOOL, *words] for words in (["benchmark", "--help"], ["train"], ["verify"], ["new", "roses"])),
)
LIMIT_BYTES = 48 * 2**10  # of a file: every other file of a run is smaller, a checkpoint is not
TINY = (*SMALL, "model.width=2", "trainer.max_epochs=1")
# a file system of this size, for this command alone, in the place of its first argument
MOUNTED = 'mount -t tmpfs -o size=$1 none "$0" && cd . && shift && exec "$@"'


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, resource.RLIM_INFINITY))


def run(cwd: Path, words: list[str], **more: Any) -> "subprocess.CompletedProcess[str]":
    env = environ() | {"PYTHONPATH": str(ROOT)}
    if words[0] == sys.executable and not more:
        return commands.run(words, cwd, env)
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=PATIENCE_S, **more)


def mounted(place: Path, size: str, words: list[str]) -> list[str]:
    """A command in a mount namespace of its own; skips where the kernel allows none."""
    space = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*space, "true"], capture_output=True).returncode:
        pytest.skip("this kernel gives no mount namespace to a user")
    return [*space, "sh", "-c", MOUNTED, str(place), size, *words]


# -- the reason --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_with_the_file_and_what_is_free(tmp_path: Path, number: int) -> None:
    error = OSError(number, os.strerror(number), str(tmp_path / "run" / "status.json"))
    follows = RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos 704 vs 598")
    follows.__context__ = error
    text = refusals.explained(follows, tmp_path / "run", "rank 0 of 1")
    assert text is not None
    assert str(tmp_path / "run" / "status.json") in text
    assert "the disk is full" in text
    assert f"{tmp_path} has " in text
    assert "\n" not in text


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        RuntimeError("no"),
        FileNotFoundError(errno.ENOENT, "no", "/elsewhere"),
        OSError(),
        *(OSError(number, os.strerror(number)) for number in (errno.ECONNREFUSED, errno.EPIPE, errno.EMFILE)),
        TimeoutError(errno.ETIMEDOUT, "no"),
    ],
    ids=repr,
)
def test_an_error_that_is_of_no_disk_is_left_as_it_is(tmp_path: Path, error: Exception) -> None:
    assert refusals.explained(error, tmp_path, "rank 0 of 1") is None
    follows = ValueError("an error of the user's own code, while it handles the other")
    follows.__context__ = error
    assert refusals.explained(follows, tmp_path, "rank 0 of 1") is None


def test_a_file_that_is_looked_for_in_vain_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    error = FileNotFoundError(errno.ENOENT, "no", str(tmp_path / "status.json"))
    assert refusals.explained(error, tmp_path, "rank 0 of 1") is None
    gone = FileNotFoundError(errno.ENOENT, "no", str(tmp_path / "run" / "status.json"))
    assert "is gone" in (refusals.explained(gone, tmp_path / "run", "rank 0 of 1") or "")


def test_a_full_disk_that_names_no_file_is_not_given_one(tmp_path: Path) -> None:
    text = refusals.explained(OSError(errno.ENOSPC, "no space"), tmp_path, "rank 0 of 1")
    assert text is not None
    assert text.startswith(f"the disk is full: something cannot be written, {tmp_path} has ")


def test_an_error_that_follows_itself_is_looked_at_once(tmp_path: Path) -> None:
    error, other = RuntimeError("one"), RuntimeError("other")
    error.__context__, other.__context__ = other, error
    assert refusals.explained(error, tmp_path, "rank 0 of 1") is None


def test_torch_tells_of_shared_memory_in_words_that_are_known(tmp_path: Path) -> None:
    script = (
        "import torch; torch.multiprocessing.set_sharing_strategy('file_system'); torch.ones(2**20).share_memory_()"
    )
    done = run(tmp_path, [sys.executable, "-c", script], preexec_fn=limited)
    assert done.returncode == 1
    text = refusals.explained(RuntimeError(done.stderr), tmp_path, "rank 0 of 1")
    assert text is not None, done.stderr
    assert "shared memory" in text


def test_a_checkpoint_that_finds_no_room_says_which_and_how_large(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    state = {"weight": torch.zeros(2**18), "many": [torch.zeros(100) for _ in range(500)]}
    limited()
    try:
        with pytest.raises((OSError, RuntimeError)) as caught:
            AtomicCheckpointIO().save_checkpoint(state, tmp_path / "checkpoints" / "last.ckpt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    text = refusals.explained(caught.value, tmp_path, "rank 0 of 1")
    assert text is not None
    assert text.startswith(f"{tmp_path / 'checkpoints' / 'last.ckpt'} cannot be written (1.2 MiB): File too large.")
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_place_where_nothing_can_be_made_is_found_by_trying(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refusals.unwritable(tmp_path / "a" / "b") is None
    assert "is no folder" in (refusals.unwritable(tmp_path / "file" / "a") or "")
    assert "cannot be written to" in (refusals.unwritable(Path("/proc/lockstep")) or "")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_run_whose_checkpoint_finds_no_room_ends_with_one_line(tmp_path: Path, num_workers: int) -> None:
    done = run(tmp_path, command(*TINY, f"trainer.devices={num_workers}"), preexec_fn=limited)
    folder = RunFolder((tmp_path / "outputs" / "latest").resolve())
    assert done.returncode == EXIT_FAILED, done.stdout + done.stderr
    *notes, line, end = done.stderr.splitlines()
    # memory that is shared counts as a file, too
    assert [note.partition(",")[0] for note in notes] == ["lockstep: shared memory unavailable"] * (num_workers - 1)
    assert "checkpoints/best.ckpt cannot be written (" in line
    assert "File too large" in line
    assert end == f"The run failed: {folder.path}"
    status = folder.read_status()
    assert (status["state"], status["reason"]) == ("failed", line)


@pytest.mark.processes
def test_a_run_on_a_full_disk_says_so_with_its_sizes(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    done = run(tmp_path, mounted(outputs, "160k", command(*TINY)))
    assert done.returncode == EXIT_FAILED, done.stdout + done.stderr
    line, end = done.stderr.splitlines()
    assert line.startswith("the disk is full: outputs/")
    assert "has 0.0 MiB free" in line or "has 0.1 MiB free" in line
    assert end.startswith("The run failed: ")


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_run_whose_folder_is_removed_ends_with_one_line(tmp_path: Path, num_workers: int) -> None:
    removes = "+callbacks.removes={_target_:tests.support.callbacks.Removes,step:2}"
    done = run(tmp_path, command(*TINY, removes, f"trainer.devices={num_workers}"))
    assert done.returncode == EXIT_FAILED, done.stdout + done.stderr
    line, end = done.stderr.splitlines()
    assert line.startswith("the run folder outputs/")
    assert "is gone" in line
    assert end.startswith("The run failed: ")


@pytest.mark.processes
def test_decoding_processes_without_shared_memory_end_the_run_with_one_line(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", count=40)
    streamed = ["data=image_folder", f"data.root={images}", "data.memory=stream", "data.cache=null"]
    small = [setting for setting in TINY if not setting.startswith(("data", "augment"))]
    words = command(*small, *streamed, "data.image_size=64", "data.num_workers=1")
    done = run(tmp_path, mounted(Path("/dev/shm"), "64k", words))
    assert done.returncode == EXIT_FAILED, done.stdout + done.stderr
    line, end = done.stderr.splitlines()
    assert line.startswith("no room in shared memory")
    assert end.startswith("The run failed: ")


@pytest.mark.processes
@pytest.mark.parametrize("more", [[], ["hydra.run.dir=/proc/lockstep"], ["-m", "seed=0,1"]])
def test_where_no_run_folder_can_be_made_a_command_says_so_and_leaves_with_code_2(
    tmp_path: Path, more: list[str]
) -> None:
    (tmp_path / "outputs").touch()
    done = run(tmp_path, command(*more, *TINY))
    assert done.returncode == EXIT_CONFIG, done.stdout + done.stderr
    line, end = done.stderr.splitlines()
    assert line.startswith("config error: ")
    assert ("/proc" if len(more) == 1 else "outputs is no folder") in line
    assert end.startswith("1 error; nothing was started")
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["hydra.run.dir=file/${now:%Y}"], "hydra.run.dir=file/2"),
        (["++hydra.run.dir=file/x"], "hydra.run.dir=file/x: file is no folder"),
        (["hydra.run.dir='file/a b'"], "hydra.run.dir=file/a b: file is no folder"),
        (["name=it", "hydra.run.dir=file/${name}"], "hydra.run.dir=file/it: file is no folder"),
        (["-m", "seed=0,1", "++hydra.sweep.dir=file/x"], "hydra.sweep.dir=file/x: file is no folder"),
        (["hydra.run.dir=file/${hydra.nothing}"], "hydra.run.dir: Interpolation key 'hydra.nothing' not found"),
    ],
)
def test_a_chosen_folder_is_looked_at_as_hydra_will_read_it(tmp_path: Path, more: list[str], told: str) -> None:
    (tmp_path / "file").touch()
    done = run(tmp_path, command(*more, *TINY))
    assert done.returncode == EXIT_CONFIG, done.stdout + done.stderr
    line, end = done.stderr.splitlines()
    assert line.startswith(f"config error: {told}")
    assert end.startswith("1 error; nothing was started")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.processes
@pytest.mark.parametrize("words", WITHOUT_FOLDER)
def test_a_current_folder_that_is_gone_is_told_in_one_line(tmp_path: Path, words: list[str]) -> None:
    there = tmp_path / "there"
    there.mkdir()
    done = run(there, ["bash", "-c", 'rmdir "$PWD" && exec "$@"', "-", *words])
    assert done.returncode == EXIT_CONFIG, done.stdout + done.stderr
    assert "the current folder is gone" in done.stderr
    assert len(done.stderr.splitlines()) <= 2
