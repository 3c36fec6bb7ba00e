"""Errors of a disk are one line with the right exit code, and earlier files stay complete."""

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
    return subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=PATIENCE_S, **more
    )


def mounted(place: Path, size: str, words: list[str]) -> list[str]:
    """A command in a mount namespace of its own; skips where the kernel allows none."""
    space = ["unshare", "--user", "--map-root-user", "--mount"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*space, "true"], capture_output=True).returncode
    ):
        pytest.skip("this kernel gives no mount namespace to a user")
    return [*space, "sh", "-c", MOUNTED, str(place), size, *words]


# -- the reason ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_explain_full_disk(tmp_path: Path, number: int) -> None:
    error = OSError(number, os.strerror(number), str(tmp_path / "run" / "status.json"))
    follows = RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos 704 vs 598")
    follows.__context__ = error
    text = refusals.explain_error(follows, tmp_path / "run", "rank 0 of 1")
    assert text is not None
    assert "the disk is full" in text
    assert str(tmp_path / "run" / "status.json") in text


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
def test_explain_other_errors(tmp_path: Path, error: Exception) -> None:
    assert refusals.explain_error(error, tmp_path, "rank 0 of 1") is None
    # such as os.mkdir of a user's callback, which meets its folder again
    for number in (errno.ENOENT, errno.EEXIST):
        of_code = OSError(number, "no", str(tmp_path / "mine"))
        assert refusals.explain_error(of_code, tmp_path, "rank 0 of 1") is None


def test_write_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refusals.write_obstacle(tmp_path / "a" / "b") is None
    assert "is not a folder" in str(refusals.write_obstacle(tmp_path / "file" / "a"))
    assert "cannot be written to" in str(refusals.write_obstacle(Path("/proc/lockstep")))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# -- runs ------------------------------------------------------------------------------------------


def assert_error(done: "subprocess.CompletedProcess[str]", code: int, *parts: str) -> None:
    """A command has failed with one line about its reason, and one about its end.

    The first line has these parts.
    """
    assert done.returncode == code, done.stdout + done.stderr
    line, _ = done.stderr.splitlines()
    for part in parts:
        assert part in line


@pytest.mark.full
@pytest.mark.processes
def test_full_disk(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    done = run(tmp_path, mounted(outputs, "160k", command(*TINY)))
    assert_error(done, EXIT_FAILED, "the disk is full: outputs/")


@pytest.mark.full
@pytest.mark.processes
def test_full_disk_resume_refused(tmp_path: Path) -> None:
    """The finished run stays as it is."""
    (tmp_path / "outputs").mkdir()
    assert run(tmp_path, command(*TINY, "hydra.run.dir=r")).returncode == 0
    script = """
cp -r r outputs/r
dd if=/dev/zero of=outputs/fill bs=1k 2> /dev/null
"$@" resume=outputs/r --trust trainer.max_epochs=2 2> errors
echo $? $(cmp r/summary.json outputs/r/summary.json)
"""
    done = run(tmp_path, mounted(tmp_path / "outputs", "2m", ["sh", "-c", script, "-", *command()]))
    assert done.stdout == "2\n", done.stderr
    assert "cannot be written (No space left on device)" in (tmp_path / "errors").read_text()


@pytest.mark.full
@pytest.mark.processes
def test_checkpoint_too_large(tmp_path: Path) -> None:
    """A finished run whose further epochs find no room stays finished."""
    assert run(tmp_path, command(*TINY, WATCHED[0])).returncode == 0
    folder = latest(tmp_path)
    ended = {path: path.read_bytes() for path in folder.ended if path.exists()}
    more = command(f"resume={folder.path}", "trainer.max_epochs=2")
    done = run(tmp_path, more, preexec_fn=limited)
    assert done.returncode == EXIT_FAILED, done.stdout + done.stderr
    assert {
        path: path.read_bytes() for path in folder.ended if path.exists() and path != folder.failure
    } == ended
    assert run(tmp_path, more).returncode == 0
    assert not folder.failure.exists()


@pytest.mark.full
@pytest.mark.processes
def test_run_folder_removed(tmp_path: Path) -> None:
    removes = "+callbacks.removes={_target_:tests.support.callbacks.Removes,step:2}"
    done = run(tmp_path, command(*TINY, removes, "trainer.devices=2"))
    assert_error(done, EXIT_FAILED, "the run folder outputs/", "is gone")


@pytest.mark.full
@pytest.mark.processes
def test_small_shared_memory(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", count=40)
    streamed = ["data=image_folder", f"data.root={images}", "data.memory=stream", "data.cache=null"]
    small = [setting for setting in TINY if not setting.startswith(("data", "augment"))]
    words = command(*small, *streamed, "data.image_size=64", "data.num_workers=1")
    done = run(tmp_path, mounted(Path("/dev/shm"), "64k", words))
    assert_error(done, EXIT_FAILED, "not enough shared memory")


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize(
    ("more", "error"),
    [
        ([], "outputs is not a folder"),
        (["-m", "seed=0,1"], "outputs is not a folder"),
        (["hydra.run.dir=/proc/lockstep"], "/proc"),
        (["name=it", "hydra.run.dir=outputs/${name}"], "hydra.run.dir=outputs/it"),
        (["-m", "seed=0,1", "++hydra.sweep.dir=outputs/x"], "hydra.sweep.dir=outputs/x"),
        (
            ["hydra.run.dir=outputs/${hydra.nothing}"],
            "hydra.run.dir: Interpolation key 'hydra.nothing' not found",
        ),
    ],
)
def test_run_folder_impossible(tmp_path: Path, more: list[str], error: str) -> None:
    (tmp_path / "outputs").touch()
    assert_error(run(tmp_path, command(*more, *TINY)), EXIT_CONFIG, "config error: ", error)
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]
