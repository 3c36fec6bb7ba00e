"""Folders that this user did not make here, or that contain more than files and folders."""

import contextlib
import grp
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.runs import permissions
from lockstep.runs.folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.checkpoints.mkdir(parents=True)
    folder.last_checkpoint.touch()
    folder.claim()
    return folder


def test_moved_and_copied_folder(run: RunFolder) -> None:
    """A moved folder is one's own, and a copy is a stranger's."""
    moved, copy = RunFolder(run.path.with_name("moved")), RunFolder(run.path.with_name("copy"))
    run.path.rename(moved.path)
    permissions.need_own(moved, "")
    shutil.copytree(moved.path, copy.path)
    with pytest.raises(PermissionError, match="was not made here"):
        permissions.need_own(copy, "")
    permissions.need_own(copy, "", is_trusted=True)
    permissions.need_readable(copy)
    copy.claim()
    permissions.need_own(copy, "")


def test_link_and_damaged_record(run: RunFolder) -> None:
    link = RunFolder(run.path.with_name("link"))
    link.path.symlink_to(run.path)
    assert not link.is_made_here()
    run.facts_file.write_text("[")
    assert not run.is_made_here()


PLANTED: dict[str, Callable[[Path], None]] = {
    "is a link": lambda path: path.symlink_to("last.ckpt"),
    "is a hard link": lambda path: os.link(path.with_name("last.ckpt"), path),
    "is neither a file nor a folder": os.mkfifo,
}


@pytest.mark.parametrize("what", PLANTED)
def test_planted_entry(run: RunFolder, what: str) -> None:
    """It is named; what is one's own is only read."""
    permissions.need_plain(run.path)
    PLANTED[what](run.checkpoints / "odd.ckpt")
    for is_trusted in (False, True):
        with pytest.raises(PermissionError, match=what):
            permissions.need_own(run, "", is_trusted=is_trusted)
    permissions.need_readable(run)
    run.note(inode=0)
    with pytest.raises(PermissionError, match=what):
        permissions.need_readable(run)


@pytest.mark.parametrize("name", ["wandb", "job"])
def test_library_links(run: RunFolder, name: str) -> None:
    folder = run.path / name
    (folder / "run-1").mkdir(parents=True)
    (folder / "latest-run").symlink_to("run-1")
    (folder / "run-1" / "debug-core.log").symlink_to("/home/me/.cache/wandb/logs/core.log")
    permissions.need_own(run, "")
    folder.rename(run.path.with_name("other"))
    folder.symlink_to(run.path.with_name("other"))
    with pytest.raises(PermissionError, match="is a link"):
        permissions.need_own(run, "")


@pytest.mark.parametrize("name", ["outputs", "outputs/run"])
@pytest.mark.parametrize(
    ("mode", "cwd_mode", "is_refused"),
    [(0o755, 0o755, False), (0o777, 0o755, True), (0o1777, 0o755, False), (0o777, 0o777, False)],
)
def test_open_new_writable_by_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: int,
    cwd_mode: int,
    is_refused: bool,
    name: str,
) -> None:
    """It is refused, unless the project is theirs, too."""
    for folder, its in (("outputs", mode), ("project", cwd_mode)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder).chmod(its)
    monkeypatch.chdir(tmp_path / "project")
    error = (
        pytest.raises(PermissionError, match="chmod go-w")
        if is_refused
        else contextlib.nullcontext()
    )
    with error:
        permissions.open_new(tmp_path / name)
    assert (tmp_path / "outputs" / "run").exists() == (name == "outputs/run" and not is_refused)


def test_open_new_private_group(tmp_path: Path) -> None:
    """As with umask 002 where each user has a group of the same name."""
    group = grp.getgrgid(os.getegid())
    if group.gr_mem or group.gr_name != Path.home().owner():
        pytest.skip(f"the group {group.gr_name} is not that of one user")
    tmp_path.chmod(0o775)
    assert permissions.open_new(tmp_path / "run").path.is_dir()


def test_open_new_link_refused(tmp_path: Path) -> None:
    assert permissions.open_new(tmp_path / "new").path == tmp_path / "new"
    (tmp_path / "new" / "validation").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="is a link"):
        permissions.open_new(tmp_path / "new")
