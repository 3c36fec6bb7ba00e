"""A stranger's folder reaches nothing outside it: no file, server, process or code.

One's own folder works as before. What a command must not touch lies next to the folder in question,
and is compared byte by byte.
"""

import contextlib
import fcntl
import gzip
import json
import pickle
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import lockstep
from lockstep.cluster.record import JobRecord
from lockstep.config.overrides import plan
from lockstep.config.saved import config_file
from lockstep.runs.files import write_json
from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from lockstep.sweeps.search import JOURNAL
from tests.support import boards, calls, job_records, users
from tests.support.harness import SMALL, environ, wait_until
from tests.support.image_files import write_image
from tests.support.strangers import TOUCH, Runs, changes, copied, digest, edit, train, typed
from tests.support.users import FIRST, SECOND

pytestmark = [pytest.mark.full, pytest.mark.processes]
SECRET = "hunter1"
LONGER = "trainer.max_epochs=3"
STRANGE = ("was not made here", "--trust")
NEEDS_ROOT = pytest.mark.skipif(bool(users.refusal()), reason=users.refusal() or "-")
SWEEP = (
    *(
        "-m",
        *SMALL,
        "trainer.max_epochs=1",
        "search=random",
        "search.sampler._target_=optuna.samplers.CmaEsSampler",
    ),
    *(
        "optimizer.lr=interval(0.01,0.1)",
        "optimizer.weight_decay=interval(0.0,0.1)",
        "launcher.parallel=1",
    ),
    *("sweep.test=none", "sweep.name=s"),
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of this user: what a stranger hands over is a copy of it."""
    return train(tmp_path_factory.mktemp("home"), "good")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The folder of the commands."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def outside(good: RunFolder, tmp_path: Path) -> Path:
    """Files next to the folder of the commands, which none of these may change."""
    path = tmp_path / "outside"
    (path / "tests").mkdir(parents=True)
    (path / "tests" / "test_mine.py").write_text("def test_mine(): pass\n")
    for name in ("packages.pth", "notes.txt", "rows.csv"):
        (path / name).write_text("a line\nno line")
    copied(good.path, path / "good")
    return path


@pytest.fixture
def theirs(good: RunFolder, work: Path) -> RunFolder:
    return copied(good.path, work / "theirs")


def refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """The command has ended with the code of wrong input and a line that has all `parts`."""
    said = done.stdout + done.stderr
    assert done.returncode == EXIT_CONFIG, said
    assert "Traceback" not in said, said
    assert [line for line in done.stderr.splitlines() if all(part in line for part in parts)], said


# -- 1: links --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "target", "whose"),
    [
        ("pictures", "tests", "trusted"),
        ("rank0.log", "packages.pth", "theirs"),
        ("metrics.csv", "rows.csv", "mine"),
    ],
)
def test_resume_with_link(
    theirs: RunFolder, work: Path, outside: Path, name: str, target: str, whose: str
) -> None:
    """Hard links and other entries: tests/unit/runs/test_permissions.py."""
    if whose == "mine":
        theirs.claim()
    link = theirs.path / name
    if link.exists():
        link.rename(work / "before")
    link.symlink_to(outside / target)
    before = digest(outside, theirs.path)
    done = typed(
        work, "train", "resume=theirs", LONGER, *(["--trust"] if whose == "trusted" else [])
    )
    assert not changes(before, digest(outside, theirs.path)), done.stderr
    refused(done, *(STRANGE if whose == "theirs" else [name]))


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "theirs", "test", "--output", "out.csv"),
        ("export", "theirs", "--output", "net.pt2"),
    ],
)
def test_weights_of_run_with_link(
    theirs: RunFolder, work: Path, outside: Path, words: tuple[str, ...]
) -> None:
    """Other kinds of entries: tests/unit/runs/test_permissions.py."""
    (theirs.path / "odd").symlink_to(outside / "rows.csv")
    before = digest(outside, theirs.path)
    refused(calls.lockstep(work, *words), "odd")
    assert not changes(before, digest(outside, theirs.path))
    assert [path.name for path in work.iterdir()] == ["theirs"]


# -- 2: variables in the paths of data -------------------------------------------------------------


READING = {
    "eval": ("eval", "theirs"),
    "predict": ("predict", "theirs", "test", "--output", "out.csv"),
    "export": ("export", "theirs", "--output", "net.pt2"),
    "resume": ("train", "resume=theirs", LONGER),
}


@pytest.mark.parametrize(
    ("key", "path", "command"),
    [
        *(("root", "http://127.0.0.1:1/$SECRET/flowers", command) for command in READING),
        *(
            ("file", "$SECRET/rows.csv", "eval"),
            ("cache", "$SECRET", "eval"),
            ("copy_to", "$SECRET", "eval"),
        ),
    ],
)
def test_variable_in_data_path(
    theirs: RunFolder,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    path: str,
    command: str,
) -> None:
    """Neither a server nor a folder learns the value of a variable.

    The variable is in a path of a stranger's run.
    """
    source = "data=list" if key == "file" else "data=image_folder"
    paths = [f"data.{name}=flowers" for name in ("root", "cache")] + [f"data.{key}='{path}'"]
    tree = config_file.to_tree(plan([source, *paths, "data.num_workers=1"]).configs[0])
    theirs.images.unlink()  # of those on which it was trained
    edit(theirs, data=tree["data"])
    monkeypatch.setenv("SECRET", SECRET)
    done = calls.lockstep(work, *READING[command])
    assert SECRET not in done.stdout + done.stderr
    assert not list(work.rglob(f"*{SECRET}*"))
    refused(done, *(STRANGE if command == "resume" else (f"data.{key}", "--trust")))


# -- 3: eval and predict as a job ------------------------------------------------------------------


@pytest.mark.parametrize("cluster", ["none", "local"])
def test_code_of_unpacked_run(theirs: RunFolder, work: Path, cluster: str) -> None:
    (work / "modules").mkdir()
    (work / "modules" / "their_images.py").write_text(f"import os\nos.system('{TOUCH}')\n")
    theirs.note(project={"modules": [str(work / "modules")], "started_in": []})
    edit(
        theirs,
        data={
            **config_file.to_tree(config_file.load(theirs.config))["data"],
            "_target_": "their_images.load",
        },
    )
    done = calls.lockstep(work, "eval", "theirs", f"cluster={cluster}")
    refused(done, "their_images.load", "--trust")
    assert not (work / "ran").exists()
    assert not (work / "outputs").exists()


# -- 4: sweeps -------------------------------------------------------------------------------------


def pickle_code(sweep: Path) -> None:
    """Put code into the state of the sampler, which Optuna keeps with a trial."""
    lines = [json.loads(line) for line in (sweep / JOURNAL).read_text().splitlines()]
    (end,) = [
        number for number, line in enumerate(lines) if line["op_code"] == 6 and line["state"] == 1
    ]
    state = {"cma:optimizer:0": pickle.dumps(Runs()).hex()}
    lines.insert(
        end,
        {"op_code": 9, "worker_id": "x", "trial_id": lines[end]["trial_id"], "system_attr": state},
    )
    (sweep / JOURNAL).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_search_unpacked(work: Path) -> None:
    """It is not continued: the sampler would run the code in its journal."""
    typed(work, "train", *SWEEP, "search.num_trials=1", code=0)
    (sweep,) = [path.parent for path in work.glob("outputs/*/*/sweep.json")]
    pickle_code(sweep)
    original = sweep.rename(sweep.with_name("original"))
    copied(original, sweep)
    shutil.rmtree(original)
    before = digest(sweep)
    done = typed(work, "train", *SWEEP, "search.num_trials=2")
    assert not (work / "ran").exists()
    assert not changes(before, digest(sweep))
    refused(done, sweep.name, *STRANGE)


# -- 5: what a stranger's folder is left as it is --------------------------------------------------


@contextlib.contextmanager
def fake_job(run: RunFolder, pid: int, **fields: Any) -> Iterator[None]:
    """Let a run have a live job in the background, which would be this process."""
    places = {
        "log": str(run.path / "log"),
        "code": str(run.code / "1"),
        "host": socket.gethostname(),
    }
    write_json(run.job_file, job_records.fields(pid=pid, **places, **fields))
    run.summary.unlink(missing_ok=True)
    run.update_status(state="training", host=socket.gethostname())
    run.job_lock.touch()
    with open(run.job_lock, "rb") as lock, open(run.lock_file, "rb") as other:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fcntl.flock(other, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize(
    ("words", "is_sure"),
    [
        (("jobs", "cancel", "theirs", "--folder", "."), False),
        (("jobs", "cancel", "local-1", "--folder", "."), True),
        (("stop", "."), True),  # a sweep with the job
    ],
)
def test_process_of_job_not_ended(
    theirs: RunFolder, work: Path, words: tuple[str, ...], is_sure: bool
) -> None:
    """`is_sure`: with the inode of the copy, which a stranger can guess and write."""
    write_json(work / "sweep.json", {"name": "s", "command": [], "trials": []})
    inode = {"inode": theirs.path.stat().st_ino} if is_sure else {}
    with subprocess.Popen(["sleep", "600"]) as sleep, fake_job(theirs, sleep.pid, **inode):
        before = digest(work)
        done = typed(work, *words)
        with pytest.raises(subprocess.TimeoutExpired):
            sleep.wait(0.5)
        sleep.kill()
        assert not changes(before, digest(work))
    refused(done)


def test_stop(theirs: RunFolder, work: Path) -> None:
    theirs.summary.unlink()
    theirs.update_status(state="training", host="elsewhere")
    before = digest(work)
    done = calls.lockstep(work, "stop", "theirs")
    assert not changes(before, digest(work)), done.stderr
    refused(done)


def test_note_on_board(theirs: RunFolder) -> None:
    client = boards.board(theirs.path.parent)
    for is_mine in (False, True):
        if is_mine:
            theirs.claim()
        body = {"run": boards.listed(client)["theirs"]["id"], "note": "x", "tags": []}
        answer = boards.post(client, "notes", body)
        assert (answer.status_code == 200) == theirs.notes.exists() == is_mine


# Contents of one file that once ended a command with a traceback, or hid the other runs.
CONTENTS: dict[str, tuple[str, bytes]] = {
    "empty configuration": ("config.yaml", b""),
    "list as configuration": ("config.yaml", b"- 1\n"),
    "code in YAML": ("config.yaml", b"a: !!python/object/apply:os.system ['touch ran']\n"),
    "cycle in YAML": ("config.yaml", b"a: &a [1, *a]\n"),
    "key twice": ("config.yaml", b"seed: 1\nseed: 2\n"),
    "deep YAML": ("config.yaml", b"[" * 100_000),
    "number beyond float": ("status.json", b'{"state": "finished", "best": 1e999}'),
    "escape sequence": ("status.json", b'{"state": "\x1b[2Jfinished"}'),
    "deep JSON": ("run.json", b"[" * 100_000),
    "list as facts": ("run.json", b"[]"),
    "lone surrogate": ("notes.json", b'{"note": "\\udcff", "tags": ["\\udcff"]}'),
    "null bytes": ("summary.json", b"\0" * 100),
    "formula as column": ("metrics.csv", b"=x,\x1b[31m\n1,\n"),
    "long line": ("metrics.csv", b"epoch," + b"x" * 300_000 + b"\n1,2\n"),
    "open quote": ("metrics.csv", b'epoch\n"'),
    "archive that unpacks to 200 MB": ("images.json.gz", gzip.compress(b" " * 200_000_000, 1)),
    "job without fields": ("job.json", b'{"engine": "slurm", "id": 3}'),
    "sweep without trials": ("sweep.json", b'{"name": "s", "trials": 5}'),
}


def test_damaged_files(work: Path) -> None:
    for number, (file, content) in enumerate(CONTENTS.values()):
        folder = boards.write_run(work / "runs" / str(number), "finished")
        (folder.path / file).write_bytes(content)
    boards.write_run(work / "runs" / "good", "finished")
    before = digest(work)
    listed = calls.lockstep(work, "runs", "runs", "--json")
    assert "good" in [run["run"] for run in json.loads(listed.stdout)], listed.stderr
    lines = [("jobs", "list", "--folder", "runs"), ("compare", "runs")]
    lines += [("status", f"runs/{number}") for number in range(len(CONTENTS))]
    for words in lines:
        done = calls.lockstep(work, *words)
        assert done.returncode in (0, 1, EXIT_CONFIG), f"{words}: {done.stderr}"
        assert "Traceback" not in done.stderr, f"{words}: {done.stderr}"
        assert "\x1b[2J" not in done.stdout, words
    assert "good" in boards.listed(boards.board(work / "runs"))
    assert not changes(before, digest(work))


# -- what works as before --------------------------------------------------------------------------


def test_copy_unchanged(
    theirs: RunFolder, good: RunFolder, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        write_image(work / "photos" / f"{number}.png", seed=number)
    before = digest(theirs.path)
    for words in (
        ("eval", "theirs", "--split", "val", "--output", "rows.csv", "--pictures", "drawn"),
        ("predict", "theirs", "photos", "--output", "photos.csv"),
        ("export", "theirs", "--output", "net.pt2"),
        ("status", "theirs"),
        ("runs", "."),
        ("compare", "theirs", str(good.path)),
        ("jobs", "list", "--folder", "."),
    ):
        done = calls.lockstep(work, *words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        assert not changes(before, digest(theirs.path)), words
    monkeypatch.chdir(work)
    assert lockstep.Run("theirs").state == "finished"
    assert [run.path for run in lockstep.runs(".")] == [theirs.path]
    assert len(lockstep.load("theirs")([work / "photos" / "0.png"])) == 1
    assert list(boards.listed(boards.board(work))) == ["theirs"]
    assert not changes(before, digest(theirs.path))


def test_trusted_resume(theirs: RunFolder, work: Path) -> None:
    """It makes the copy this user's own."""
    refused(calls.lockstep(work, "train", "resume=theirs", LONGER), *STRANGE)
    typed(work, "train", "resume=theirs", LONGER, "--trust", code=0)
    typed(work, "train", "resume=theirs", "trainer.max_epochs=4", code=0)
    assert theirs.read_summary()["epochs"] == 4


# -- a run folder is data: no command runs the code that it names ----------------------------------


RESUME = ("train", "resume=theirs", "trainer.max_epochs=3")
EVAL = ("eval", "theirs")
PREDICT = ("predict", "theirs", "test", "--output", "out.csv")
CALL = {"command": TOUCH}
VARIABLES = {"variables": {"OWN_X": "1"}}
OPENS = {"_target_": "logging.FileHandler", "filename": "ran"}  # what Hydra itself does not refuse
LAMBDA = {"_target_": "lightning.pytorch.callbacks.LambdaCallback"}
CHAIN = "lightning.pytorch.callbacks.model_checkpoint.logging.FileHandler"


@pytest.fixture
def mine(theirs: RunFolder) -> RunFolder:
    """A run with another project's code, made on this machine.

    A run of a stranger is not resumed, whatever it names.
    """
    theirs.claim()
    return theirs


def runs_nothing(cwd: Path, words: tuple[str, ...], what: str) -> None:
    """The command is refused with a line that names `what` and --trust, and has run nothing."""
    done = calls.lockstep(cwd, *words)
    assert not (cwd / "ran").exists(), done.stderr
    refused(done, what, "--trust")


def test_modules_of_recorded_folders(mine: RunFolder, work: Path) -> None:
    (work / "modules").mkdir()
    for module in ("PIL", "torchmetrics"):
        (work / "modules" / f"{module}.py").write_text(
            "import os\nos.system('touch ran')\nraise SystemExit(3)\n"
        )
    mine.note(project={"modules": [str(work / "modules")], "started_in": []})
    for more in ((), ("--trust",)):
        # a fork has imported these before
        new = [sys.executable, "-m", "lockstep", *PREDICT, *more]
        done = subprocess.run(new, cwd=work, env=environ(), capture_output=True, text=True)
        assert not (work / "ran").exists()
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "sections", "what"),
    [
        (EVAL, {"data": {"_target_": "os.system", **CALL}}, "data._target_=os.system"),
        (RESUME, {"callbacks": {"x": OPENS}}, "callbacks.x._target_=logging.FileHandler"),
        (
            RESUME,
            {"callbacks": {"x": {**OPENS, "_target_": CHAIN}}},
            f"callbacks.x._target_={CHAIN}",
        ),
        (
            RESUME,
            {"callbacks": {"x": {**LAMBDA, "on_fit_start": [OPENS]}}},
            "callbacks.x.on_fit_start.0._target_=",
        ),
        (
            RESUME,
            {"strategy": VARIABLES},
            "strategy.variables.OWN_X of theirs comes neither from the command line",
        ),
        ((*RESUME, "strategy={interface:lo}"), {"strategy": VARIABLES}, "strategy.variables.OWN_X"),
        (
            EVAL,
            {"strategy": {"variables": {"LD_PRELOAD": "x.so"}}},
            "strategy.variables.LD_PRELOAD",
        ),
    ],
)
def test_targets_and_variables_of_run(
    mine: RunFolder, work: Path, words: tuple[str, ...], sections: dict[str, Any], what: str
) -> None:
    edit(mine, **sections)
    runs_nothing(work, words, what)


def test_requeue_of_other_job(mine: RunFolder, work: Path) -> None:
    (mine.code / "1").mkdir(parents=True)
    cluster = {
        **config_file.load(mine.config).cluster.model_dump(),
        "name": "local",
        "setup": [TOUCH],
    }
    places = {"log": str(mine.path / "log"), "code": str(mine.code / "1"), "cwd": str(work)}
    JobRecord(**job_records.fields(cluster=cluster, cancelled=True, **places)).save(mine)
    mine.update_status(state="stopped", exit_code=75)
    (mine.path / "summary.json").unlink()
    mine.note(inode=0)  # a copy
    runs_nothing(work, ("jobs", "requeue", "theirs"), "theirs was not made here")
    typed(work, "jobs", "requeue", "theirs", "--trust", code=0)
    wait_until(lambda: (work / "ran").exists(), "the job has begun")
    wait_until(lambda: not mine.has_job_here(), "the end of the job")


def test_command_inside_run(mine: RunFolder) -> None:
    (mine.path / "PIL.py").write_text("import os\nos.system('touch ran')\n")
    runs_nothing(mine.path, ("predict", ".", "test", "--output", "/tmp/out.csv"), "inside the run")
    runs_nothing(mine.path, ("train", "resume=.", "trainer.max_epochs=3"), "inside the run")


@pytest.mark.parametrize(
    ("call", "argument"),
    [(lockstep.train, ["resume=theirs", "trainer.max_epochs=3"]), (lockstep.load, "theirs")],
)
def test_trust_in_python(
    mine: RunFolder,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[..., object],
    argument: Any,
) -> None:
    (work / "modules").mkdir()
    (work / "modules" / "trusted_images.py").write_text("from lockstep.data import synthetic\n")
    mine.note(project={"modules": [str(work / "modules")], "started_in": []})
    data = yaml.safe_load(mine.config.read_text())["data"]
    edit(mine, data={**data, "_target_": "trusted_images.synthetic"})
    monkeypatch.chdir(work)
    with pytest.raises(lockstep.ConfigError, match="trusted_images"):
        call(argument)
    call(argument, trust=True)


# -- two users of one machine share outputs --------------------------------------------------------


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


@pytest.fixture
def shared() -> Iterator[Path]:
    with users.shared_folder() as path:
        yield path


@pytest.fixture
def of_first(shared: Path) -> Iterator[str]:
    """A run that the first user trains."""
    with users.popen(FIRST, shared, "-c", BEGIN) as first:
        assert first.stdout is not None
        yield first.stdout.readline().strip()
        first.kill()


@NEEDS_ROOT
def test_train_next_to_another_user(shared: Path, of_first: str) -> None:
    done = users.run(SECOND, shared, "-m", "lockstep", "train", *SMALL, "trainer.max_epochs=1")
    assert done.returncode == 0, done.stderr
    assert (shared / "outputs" / "latest").resolve() == Path(of_first)
    (run,) = [run for run in shared.glob("outputs/*/*") if run.stat().st_uid == SECOND]
    assert RunFolder(run).read_summary()["epochs"] == 1


@NEEDS_ROOT
def test_status_and_stop_of_another_user(shared: Path, of_first: str) -> None:
    seen = users.run(SECOND, shared, "-m", "lockstep", "status", of_first)
    assert "training" in seen.stdout, seen.stderr
    refused(
        users.run(SECOND, shared, "-m", "lockstep", "stop", of_first), f"belongs to user {FIRST}"
    )
    # nobody else can open it, and keep it locked
    assert RunFolder(Path(of_first)).lock_file.stat().st_mode & 0o077 == 0
