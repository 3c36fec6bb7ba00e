"""Errors of a disk are reported in one line with the right exit code, and earlier files stay whole."""

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.assembly import refusals
from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED
from tests.support import commands
from tests.support.commands import latest
from tests.support.harness import PATIENCE_S, ROOT, SMALL, WATCHED, command, environ
from tests.support.image_files import write_folder

TOOL = [str(Path(sys.executable).parent / "lockstep")]
WITHOUT_FOLDER = (command(), *([*TOOL, *words] for words in (["verify"], ["new", "roses"])))
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
def test_a_full_disk_is_reported_with_the_file_and_the_free_space(tmp_path: Path, number: int) -> None:
    error = OSError(number, os.strerror(number), str(tmp_path / "run" / "status.json"))
    follows = RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos 704 vs 598")
    follows.__context__ = error
    text = refusals.explain_error(follows, tmp_path / "run", "rank 0 of 1")
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
        OSError(errno.ECONNREFUSED, "no"),
    ],
    ids=repr,
)
def test_an_error_that_is_of_no_disk_is_left_as_it_is(tmp_path: Path, error: Exception) -> None:
    assert refusals.explain_error(error, tmp_path, "rank 0 of 1") is None
    for number in (errno.ENOENT, errno.EEXIST):  # such as os.mkdir of a user's callback, which meets its folder again
        of_code = OSError(number, "no", str(tmp_path / "mine"))
        assert refusals.explain_error(of_code, tmp_path, "rank 0 of 1") is None


@pytest.mark.full
def test_torchs_errors_of_shared_memory_are_recognized(tmp_path: Path) -> None:
    script = (
        "import torch; torch.multiprocessing.set_sharing_strategy('file_system'); torch.ones(2**20).share_memory_()"
    )
    done = run(tmp_path, [sys.executable, "-c", script], preexec_fn=limited)
    assert done.returncode == 1
    text = refusals.explain_error(RuntimeError(done.stderr), tmp_path, "rank 0 of 1")
    assert text is not None, done.stderr
    assert "shared memory" in text


def test_a_place_where_nothing_can_be_made_is_found_by_trying(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refusals.write_obstacle(tmp_path / "a" / "b") is None
    assert "is not a folder" in str(refusals.write_obstacle(tmp_path / "file" / "a"))
    assert "cannot be written to" in str(refusals.write_obstacle(Path("/proc/lockstep")))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.full
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


@pytest.mark.full
@pytest.mark.processes
def test_a_finished_run_stays_finished_if_more_epochs_find_no_room(tmp_path: Path) -> None:
    assert run(tmp_path, command(*TINY, WATCHED[0])).returncode == 0
    folder = latest(tmp_path)
    ended = {path: path.read_bytes() for path in folder.ended if path.exists()}
    assert {folder.summary, folder.confusion("test")} <= ended.keys()
    more = command(f"resume={folder.path}", "trainer.max_epochs=2")
    done = run(tmp_path, more, preexec_fn=limited)
    assert done.returncode == EXIT_FAILED, done.stdout + done.stderr
    assert "cannot be written: File too large. Fix that, then resume" in done.stderr
    assert {path: path.read_bytes() for path in folder.ended if path.exists() and path != folder.failure} == ended
    assert run(tmp_path, more).returncode == 0
    assert folder.read_summary()["epochs"] == 2
    assert not folder.failure.exists()
    assert not list(folder.path.glob(".*.json.*"))


@pytest.mark.full
@pytest.mark.processes
def test_a_full_disk_refuses_to_resume_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    script = f"""
"$@" hydra.run.dir=outputs/r {" ".join(TINY)} >&2 || exit 9
dd if=/dev/zero of=outputs/fill bs=1k 2> /dev/null
cp outputs/r/summary.json before
"$@" resume=outputs/r trainer.max_epochs=2 2> errors
echo $? $(cmp before outputs/r/summary.json)
"""
    done = run(tmp_path, mounted(tmp_path / "outputs", "2m", ["sh", "-c", script, "-", *command()]))
    assert done.stdout == "2\n", done.stderr
    line, end = (tmp_path / "errors").read_text().splitlines()
    assert line.startswith("config error: outputs/r/")
    assert "cannot be written (No space left on device)" in line
    assert "hydra.run.dir" not in line
    assert end.startswith("1 error; nothing was started")


@pytest.mark.full
@pytest.mark.processes
def test_a_run_whose_folder_is_removed_ends_with_one_line(tmp_path: Path) -> None:
    removes = "+callbacks.removes={_target_:tests.support.callbacks.Removes,step:2}"
    done = run(tmp_path, command(*TINY, removes, "trainer.devices=2"))
    assert done.returncode == EXIT_FAILED, done.stdout + done.stderr
    line, end = done.stderr.splitlines()
    assert line.startswith("the run folder outputs/")
    assert "is gone" in line
    assert end.startswith("The run failed: ")


@pytest.mark.full
@pytest.mark.processes
def test_decoding_processes_without_shared_memory_end_the_run_with_one_line(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", count=40)
    streamed = ["data=image_folder", f"data.root={images}", "data.memory=stream", "data.cache=null"]
    small = [setting for setting in TINY if not setting.startswith(("data", "augment"))]
    words = command(*small, *streamed, "data.image_size=64", "data.num_workers=1")
    done = run(tmp_path, mounted(Path("/dev/shm"), "64k", words))
    assert done.returncode == EXIT_FAILED, done.stdout + done.stderr
    line, end = done.stderr.splitlines()
    assert line.startswith("not enough shared memory")
    assert end.startswith("The run failed: ")


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("more", [[], ["hydra.run.dir=/proc/lockstep"], ["-m", "seed=0,1"]])
def test_where_no_run_folder_can_be_made_a_command_exits_with_code_2(tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "outputs").touch()
    done = run(tmp_path, command(*more, *TINY))
    assert done.returncode == EXIT_CONFIG, done.stdout + done.stderr
    line, end = done.stderr.splitlines()
    assert line.startswith("config error: ")
    assert ("/proc" if len(more) == 1 else "outputs is not a folder") in line
    assert end.startswith("1 error; nothing was started")
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["name=it", "hydra.run.dir=file/${name}"], "hydra.run.dir=file/it: file is not a folder"),
        (["-m", "seed=0,1", "++hydra.sweep.dir=file/x"], "hydra.sweep.dir=file/x: file is not a folder"),
        (["hydra.run.dir=file/${hydra.nothing}"], "hydra.run.dir: Interpolation key 'hydra.nothing' not found"),
    ],
)
def test_a_chosen_folder_is_checked_as_hydra_will_read_it(tmp_path: Path, more: list[str], error: str) -> None:
    (tmp_path / "file").touch()
    done = run(tmp_path, command(*more, *TINY))
    assert done.returncode == EXIT_CONFIG, done.stdout + done.stderr
    line, end = done.stderr.splitlines()
    assert line.startswith(f"config error: {error}")
    assert end.startswith("1 error; nothing was started")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("words", WITHOUT_FOLDER)
def test_a_current_folder_that_is_gone_is_one_line(tmp_path: Path, words: list[str]) -> None:
    there = tmp_path / "there"
    there.mkdir()
    done = run(there, ["bash", "-c", 'rmdir "$PWD" && exec "$@"', "-", *words])
    assert done.returncode == EXIT_CONFIG, done.stdout + done.stderr
    assert "the current folder was removed" in done.stderr
    assert len(done.stderr.splitlines()) <= 2
