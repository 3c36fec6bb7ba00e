"""Two users of one machine share `outputs/`: both train, and neither can stop or block the other."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.runs.folder import RunFolder
from tests.support import users
from tests.support.harness import SMALL
from tests.support.users import FIRST, SECOND

pytestmark = [
    pytest.mark.full,
    pytest.mark.processes,
    pytest.mark.skipif(bool(users.refusal()), reason=users.refusal() or "-"),
]
BEGIN = """
import socket, sys
from datetime import datetime
from pathlib import Path
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import create_path, link_latest
root = Path("outputs").resolve()
folder = RunFolder(create_path(root, "first", datetime.now()))
folder.config.touch()
link_latest(root, folder.path)
with folder.lock():
    folder.write_status(state="training", host=socket.gethostname())
    print(folder.path, flush=True)
    sys.stdin.read()
"""
READ = """
import fcntl, sys
try:
    file = open(sys.argv[1], "rb")
    fcntl.flock(file, fcntl.LOCK_SH)
except OSError as error:
    print(error, file=sys.stderr)
print("begun", flush=True)
sys.stdin.read()
"""
RESUME = """
import sys
from pathlib import Path
from lockstep.runs.folder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    pass
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    with users.shared_folder() as path:
        yield path


def test_the_second_user_trains_in_the_same_outputs(shared: Path) -> None:
    with users.popen(FIRST, shared, "-c", BEGIN) as first:
        assert first.stdout is not None
        path = Path(first.stdout.readline().strip())
        done = users.run(SECOND, shared, "-m", "lockstep", "train", *SMALL, "trainer.max_epochs=1")
        first.kill()
    assert done.returncode == 0, done.stderr
    assert "outputs/latest still points to another run" in done.stderr
    assert (shared / "outputs" / "latest").resolve() == path
    [own] = [run for run in shared.glob("outputs/*/*") if run.stat().st_uid == SECOND]
    assert RunFolder(own).read_summary()["epochs"] == 1


def test_a_run_is_watched_by_all_users_and_stopped_by_its_owner(shared: Path) -> None:
    with users.popen(FIRST, shared, "-c", BEGIN) as first:
        assert first.stdout is not None
        path = first.stdout.readline().strip()
        seen = users.run(SECOND, shared, "-m", "lockstep", "status", path)
        stop = users.run(SECOND, shared, "-m", "lockstep", "stop", path)
        first.kill()
    assert "training" in seen.stdout, seen.stderr
    assert (stop.returncode, stop.stderr.count("\n")) == (2, 1), stop.stderr
    assert f"belongs to user {FIRST}" in stop.stderr


def test_a_reader_of_a_run_does_not_block_its_resume(shared: Path) -> None:
    with users.popen(FIRST, shared, "-c", BEGIN) as first:
        assert first.stdout is not None
        path = first.stdout.readline().strip()
        first.kill()
    with users.popen(SECOND, shared, "-c", READ, f"{path}/.lock") as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "begun\n"
        done = users.run(FIRST, shared, "-c", RESUME, path)
        reader.kill()
    assert done.returncode == 0, done.stderr
