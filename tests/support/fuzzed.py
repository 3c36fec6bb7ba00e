"""Run folders with random faults, and all commands that take a run or a folder of runs on each of them.

`Case(seed, number)` always gives the same folder. Half of a case is around the folder: files that links and names lead
to, which no command may change.
"""

import contextlib
import fcntl
import gzip
import io
import json
import os
import random
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

import lockstep
from lockstep.cli import main
from lockstep.runs.files import read_json, write_json
from tests.support import boards, job_records
from tests.support.commands import Command
from tests.support.harness import environ
from tests.support.image_files import write_image
from tests.support.strangers import TOUCH, Runs, changes, copied, digest
from tests.support.users import SECOND

SLOWEST_S = 120  # for one command, many times what it needs
MOST_BYTES = 16 << 30  # of addresses, of which torch reserves most
NAMES = (
    *("config.yaml", "run.json", "status.json", "summary.json", "metrics.csv", "notes.json", "checkpoints", "STOP"),
    *("checkpoints/last.ckpt", "checkpoints/best.ckpt", "initial.ckpt", "images.json.gz", "fold_predictions.csv"),
    *("pictures", "failure.txt", "scores.json", ".lock", "job.json", "job", ".job"),
    *("job/settings.yaml", "code", "rank0.log", ".beat0", "rendezvous-1", "validation", "test", "wandb", "sweep.json"),
    *("table.json", "study.journal", "results.json", "events.1"),
    *("pictures/test_confusion_matrix.json", ".status.json.1.0123abcd", "checkpoints/.last.ckpt.1.0123abcd"),
)
JSON = ("run.json", "status.json", "summary.json", "notes.json", "job.json", "sweep.json", "scores.json", "table.json")
# those that most commands read or write
CORE = (*NAMES[:11], "images.json.gz", "job.json", ".lock", "sweep.json", "rank0.log", "checkpoints/best.ckpt")
TEXTS = (*JSON, "config.yaml", "metrics.csv", "STOP", "failure.txt", "study.journal", "fold_predictions.csv", ".beat0")
ODD_NAMES = (
    *("a\nb", "\x1b[31mred", "-rf", "\udcff", "x" * 200, "a b", "'", "$HOME", ".beatx", ".beat99999999999999999999"),
    *("rendezvous-", "rank.log", ".hidden", "config.yaml.bak", "狐", "[red]", "test_*"),
)
# no large numbers: what a setting asks for is computed
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, "", "x", "nan", [], {}, [[]], {"a": {"b": 1}}, "../../around", "\x1b[31m"),
    *("$HOME/x", "http://127.0.0.1:9/$HOME", "os.system", {"_target_": "os.system", "command": TOUCH}, "\udcff", "\n"),
)
DEEP = "[" * 100_000
BYTES = (b"", b"\0" * 100, b"\xff\xfe\x00", b"{", b"[]", b"null", b"1e999", DEEP.encode(), b'{"a": NaN}', b"a,b\n1\n")


class Case:
    """A folder with faults, `run`, and what is `around` it, below `root`."""

    def __init__(self, seed: int, number: int, good: Path, root: Path) -> None:
        self.seed, self.number, self.root = seed, number, root
        self.random = random.Random(f"{seed} {number}")
        self.around = root / "around"
        self.around.mkdir(parents=True)
        for name in ("notes.txt", "rows.csv", "test_mine.py"):
            (self.around / name).write_text("epoch,step\n1,5\nno line")
        copied(good, self.around / "good")
        (root / "runs").mkdir()
        (root / "runs" / "kept.txt").write_text("keeps the folder\n")
        self.run = copied(good, root / "runs" / "x")
        self.is_mine = self.random.random() < 0.25
        if self.is_mine:
            self.run.note(inode=self.run.path.stat().st_ino)
        self.held: list[str] = []  # files that a process seems to lock
        self.process: subprocess.Popen[bytes] | None = None
        self.faults: list[str] = []
        for _ in range(self.random.choice((1, 1, 2, 3))):
            fault = self.random.choice(FAULTS)
            with contextlib.suppress(Exception):  # the second of two faults in one file
                self.faults.append(f"{fault.__name__.lstrip('_')}: {fault(self, self.run.path)!r}")
        self.before = digest(root, without=self.run.path)
        self.inside = digest(self.run.path)

    def __str__(self) -> str:
        whose = "mine" if self.is_mine else "theirs"
        return f"seed {self.seed}, case {self.number} ({whose}; {'; '.join(self.faults)})"

    def name(self) -> str:
        return self.random.choice(self.random.choice((CORE, NAMES)))

    def emptied(self, name: str) -> Path:
        """The path of a name at which nothing is."""
        path = self.run.path / name
        path.parent.mkdir(exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        return path

    def plain(self, name: str) -> Path:
        """The path of a file that can be read, or written over. Raises OSError if there is something else."""
        path = self.run.path / name
        if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
            raise FileExistsError(name)
        return path

    def file(self) -> Path:
        """One of the files that the run has."""
        return self.random.choice([path for name in NAMES if (path := self.plain(name)).exists()])

    def wrong(self, *, is_used: bool = False) -> list[str]:
        """What commands have changed that they must not; `is_used`: one of them may write into the folder."""
        found = changes(self.before, digest(self.root, without=self.run.path))
        if not is_used:
            found += changes(self.inside, digest(self.run.path) if os.path.lexists(self.run.path) else {})
        found = [os.path.relpath(path, self.root) for path in found]
        if self.process is not None and self.process.poll() is not None:
            found.append("the process that job.json names has ended")
        return found

    @contextlib.contextmanager
    def living(self) -> Iterator[None]:
        """Have the processes that the files name; they end, and so does the folder, with the block."""
        with contextlib.ExitStack() as held:
            for name in self.held:
                with contextlib.suppress(OSError):
                    number = os.open(self.run.path / name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
                    held.callback(os.close, number)
                    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                yield
            finally:
                if self.process is not None:
                    self.process.kill()
                    self.process.wait()
                shutil.rmtree(self.root, ignore_errors=True)


# -- faults: each returns what it has changed --------------------------------------------------------------------------


def _link(case: Case, run: Path) -> Any:
    name = case.name()
    targets = ("../around/notes.txt", "../around", "../around/good", f"../around/good/{name}", "/dev/zero", "..", name)
    target = case.random.choice(
        (*targets, "nowhere", "metrics.csv", "../around/new.txt", str(case.around / "rows.csv"))
    )
    path = case.emptied(name)
    path.symlink_to(target if target.startswith("/") or path.parent == run else f"../{target}")
    return name, target


def _linked_root(case: Case, run: Path) -> Any:
    if case.is_mine:
        raise OSError("one's own run may be found by a link, as latest")
    run.rename(case.root / "around" / "moved")
    run.symlink_to("../around/moved")
    return "the folder itself"


def _hard_link(case: Case, run: Path) -> Any:
    name, target = case.name(), case.random.choice(("notes.txt", "rows.csv", "good/metrics.csv", "good/status.json"))
    os.link(case.around / target, case.emptied(name))
    return name, target


def _pipe(case: Case, run: Path) -> Any:
    name = case.name()
    os.mkfifo(case.emptied(name))
    return name


def _socket(case: Case, run: Path) -> Any:
    name = case.name()
    path = case.emptied(name)
    short = Path(f"/proc/self/fd/{os.open(path.parent, os.O_RDONLY)}")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(short / path.name))
    os.close(int(short.name))
    return name


def _device(case: Case, run: Path) -> Any:
    name, minor = case.name(), case.random.choice((3, 5, 7, 8))  # null, zero, full, random
    with contextlib.suppress(PermissionError):  # needs root
        os.mknod(case.emptied(name), 0o20666, os.makedev(1, minor))
    return name, minor


def _folder(case: Case, run: Path) -> Any:
    name = case.name()
    path = case.emptied(name)
    path.mkdir()
    (path / "inner.txt").write_text("x")
    return name


def _bytes(case: Case, run: Path) -> Any:
    name, content = case.name(), case.random.choice(BYTES)
    case.emptied(name).write_bytes(content)
    return name, content[:20]


def _missing(case: Case, run: Path) -> Any:
    name = case.name()
    case.emptied(name)
    return name


def _truncated(case: Case, run: Path) -> Any:
    path = case.file()
    length = case.random.randrange(path.stat().st_size + 1)
    os.truncate(path, length)
    return path.name, length


def _scrambled(case: Case, run: Path) -> Any:
    path = case.file()
    content = bytearray(path.read_bytes())
    for _ in range(case.random.choice((1, 10, 100))):
        content[case.random.randrange(len(content))] = case.random.randrange(256)
    path.write_bytes(content)
    return path.name


def _huge(case: Case, run: Path) -> Any:
    name = case.name()
    path = case.emptied(name)
    path.touch()
    os.truncate(path, 64 << 20)
    return name


def _long_line(case: Case, run: Path) -> Any:
    name = case.random.choice(TEXTS)
    case.emptied(name).write_text(f"epoch,{'x' * 300_000}\n1,2\n")
    return name


def _bomb(case: Case, run: Path) -> Any:
    """Small, and 200 MB when it is unpacked."""
    with gzip.open(case.emptied("images.json.gz"), "wb", compresslevel=1) as file:
        for _ in range(200):
            file.write(b" " * 1_000_000)
    return "images.json.gz"


def _json(case: Case, run: Path) -> Any:
    path = case.plain(case.random.choice(JSON))
    tree = read_json(path) or _tree_of(case, path.name)
    key = _replace(case, tree)
    path.write_text(json.dumps(tree))
    return path.name, key


def _yaml(case: Case, run: Path) -> Any:
    path = case.plain("config.yaml")
    tree = yaml.safe_load(path.read_text())
    keys = [_replace(case, tree) for _ in range(case.random.choice((1, 1, 5)))]
    path.write_text(yaml.safe_dump(tree))
    return keys


def _yaml_text(case: Case, run: Path) -> Any:
    texts = ("!!python/object/apply:os.system ['touch ran']", "a: &a [1]\nb: *a\n", DEEP, "a: 1\na: 2\n", "- 1", "x")
    text = case.random.choice((*texts, "é", "seed: 1e999", "? [a]\n: b", "%YAML 9.9\n---\n", "a: !x b", "\ufeffa: 0"))
    with open(case.plain("config.yaml"), case.random.choice("wa")) as file:
        file.write(text)
    return text[:30]


def _csv(case: Case, run: Path) -> Any:
    texts = ("epoch\n", "\n\n", "epoch,epoch\n1,2\n", "epoch,step\n1\n1,2,3\n", 'epoch\n"', "epoch\n\0\n", "=x,x\n1,\n")
    text = case.random.choice((*texts, "epoch,val/loss\nnan,inf\n-1e999,x\n", "epoch,\x1b[31m\n1,\x1b[2J\n"))
    case.plain("metrics.csv").write_text(text)
    return text


def _checkpoint(case: Case, run: Path) -> Any:
    path = case.plain(case.random.choice(("checkpoints/last.ckpt", "checkpoints/best.ckpt")))
    saved = torch.load(path, weights_only=True)
    kind = case.random.choice(("key", "shape", "type", "code", "zip", "text", "part", "state"))
    if kind == "key":
        saved["state_dict"]["x\nimport os; os.system('touch ran')\n"] = torch.zeros(1)
    elif kind == "shape":
        saved["state_dict"] = {name: torch.zeros(3, 5) for name in saved["state_dict"]}
    elif kind == "type":
        saved[case.random.choice([*saved])] = case.random.choice(VALUES)
    elif kind == "part":
        saved.pop(case.random.choice([*saved]))
    elif kind == "state":
        saved["callbacks"] = {name: case.random.choice(VALUES) for name in saved["callbacks"]}
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("../../around/new.txt", "x")
    else:
        torch.save({"code": Runs()} if kind == "code" else "x" if kind == "text" else saved, path)
    return path.name, kind


def _owner(case: Case, run: Path) -> Any:
    path = case.random.choice([run, *sorted(run.rglob("*"))])
    with contextlib.suppress(PermissionError):  # needs root
        os.chown(path, SECOND, SECOND, follow_symlinks=False)
    return path.name


def _mode(case: Case, run: Path) -> Any:
    path = case.random.choice([run, *sorted(run.rglob("*"))])
    mode = case.random.choice((0, 0o444, 0o777, 0o4755, 0o2777))
    if not path.is_symlink():
        path.chmod(mode)
    return path.name, oct(mode)


def _odd_name(case: Case, run: Path) -> Any:
    name = case.random.choice(ODD_NAMES)
    path = run / case.random.choice(("", "checkpoints", "validation")) / name
    path.mkdir() if case.random.random() < 0.3 else path.write_text("x")
    return name


def _renamed(case: Case, run: Path) -> Any:
    old, new = case.random.sample(sorted(path.name for path in run.iterdir()), 2)
    (run / old).rename(run / f"{new}.old")
    return old, new


def _deep(case: Case, run: Path) -> Any:
    path = run / case.random.choice(("code", "job", "wandb", "inner"))
    (path / "/".join("x" * 60)).mkdir(parents=True, exist_ok=True)
    shutil.copy(case.around / "good" / "config.yaml", path / "config.yaml")
    return path.name


def _live(case: Case, run: Path) -> Any:
    """A run that seems to train, here or elsewhere."""
    host, state = case.random.choice((socket.gethostname(), "elsewhere")), case.random.choice(("training", "starting"))
    (run / "summary.json").unlink(missing_ok=True)
    write_json(run / "status.json", {**_tree_of(case, "status.json"), "host": host, "state": state, "pid": os.getpid()})
    case.held += case.random.choice(([], [".lock"]))
    if case.random.random() < 0.5:
        os.utime(run / "status.json", (0, 0))
    return host, state, case.held


def _job(case: Case, run: Path) -> Any:
    """A job that names a process of this user."""
    record = _tree_of(case, "job.json")
    if not case.is_mine:
        record |= {"pid": _sleeper(case), "inode": case.random.choice((0, run.stat().st_ino))}
        case.held += case.random.choice(([], [".job"]))
        (run / ".job").touch()
    state = case.random.choice(("training", "not started", "failed", "stopped"))
    (run / "summary.json").unlink(missing_ok=True)
    write_json(run / "status.json", {**_tree_of(case, "status.json"), "state": state, "exit_code": 1})
    key = _replace(case, record) if case.random.random() < 0.3 else ""
    write_json(run / "job.json", record)
    return state, case.held, key


def _sweep(case: Case, run: Path) -> Any:
    """A sweep around the run, or in it."""
    path = case.random.choice((run, run.parent))
    tree = _tree_of(case, "sweep.json")
    key = _replace(case, tree) if case.random.random() < 0.5 else ""
    write_json(path / "sweep.json", tree)
    return path.name, key


def _sleeper(case: Case) -> int:
    case.process = case.process or subprocess.Popen(["sleep", "1000"])
    return case.process.pid


def _tree_of(case: Case, name: str) -> dict[str, Any]:
    """What a file with this name may hold."""
    if name == "job.json":
        engine = case.random.choice(("local", "local", "slurm"))
        places = {"log": "../../around/notes.txt", "code": "../../around", "host": socket.gethostname(), "pid": None}
        cluster = {"name": "local", "setup": [TOUCH], "max_requeues": 1}
        id = "17" if engine == "slurm" else "local-1"
        return job_records.fields(id=id, engine=engine, cluster=cluster, **places)
    if name == "sweep.json":
        trials = [{"number": n, "overrides": ["seed=0"], "folder": f, "device": ""} for n, f in enumerate((".", "x"))]
        return {"name": "s", "command": ["seed=0"], "trials": trials, "updated": 1.0}
    return {"state": "finished", "metrics": {"val/accuracy": 0.5}, "host": "elsewhere", "overrides": ["seed=0"]}


def _replace(case: Case, tree: Any) -> str:
    """Replace, add or remove one value of a tree. Returns its key."""
    key = ""
    while True:
        names = [*tree] if isinstance(tree, dict) else [*range(len(tree))]
        if not names:
            return key
        name = case.random.choice(names)
        key = f"{key}.{name}"
        inner = tree[name]
        if isinstance(inner, dict | list) and inner and case.random.random() < 0.7:
            tree = inner
            continue
        if case.random.random() < 0.2:
            del tree[name]
            return f"{key} removed"
        tree[name] = case.random.choice(VALUES)
        return f"{key}={tree[name]!r}"


FAULTS: tuple[Callable[[Case, Path], Any], ...] = (
    *(_link, _link, _link, _linked_root, _hard_link, _pipe, _socket, _device, _folder, _bytes, _missing, _truncated),
    *(_scrambled, _huge, _long_line, _bomb, _json, _json, _yaml, _yaml, _yaml_text, _csv, _checkpoint, _owner, _mode),
    *(_odd_name, _renamed, _deep, _live, _job, _sweep),
)


# -- commands ----------------------------------------------------------------------------------------------------------

LOOKS = (
    *(("status", "x"), ("status", "x", "--json"), ("runs", "."), ("compare", "x", "../around/good")),
    *(("runs", ".", "--json", "--sort", "val/accuracy"), ("compare", ".", "--json"), ("compare", "x")),
    *(("jobs", "list", "--folder", "."), ("jobs", "list", "--folder", ".", "--json"), ("jobs", "show", "x")),
    *(("jobs", "result", "x"), ("status", "."), ("compare", "x", "x", "--json")),
)
CHANGES = (
    *(
        ("stop", "x"),
        ("stop", "."),
        ("jobs", "cancel", "x"),
        ("jobs", "requeue", "x"),
        ("jobs", "delete", "x", "--yes"),
    ),
)


def check(seed: int, numbers: Sequence[int], good: str, scratch: str) -> int:
    """Run all commands but those that compute on cases, in this process. Prints what is wrong; the exit code is 1."""
    # endless files end the command, not the machine
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), used + (2 << 30)))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a command that hangs ends this process
    code = 0
    for number in numbers:
        case = Case(seed, number, Path(good), Path(scratch, str(number)))
        print(case, flush=True)  # the last one, if this process is ended
        with case.living():
            for problem in _problems(case):
                print(*(f"WRONG {line}" for line in f"{case}: {problem}".splitlines()), sep="\n", flush=True)
                code = 1
    return code


def _problems(case: Case) -> Iterator[str]:
    os.chdir(case.root / "runs")
    for words in LOOKS:
        yield from _typed(words)
    yield from _in_python(case)
    yield from _on_board(case)
    if wrong := case.wrong(is_used=case.is_mine):
        yield f"commands that only look have changed {wrong}"
        return
    for words in CHANGES:
        yield from _typed(words)
        if wrong := case.wrong(is_used=case.is_mine):
            yield f"{' '.join(words)} has changed {wrong}"
            return


def _typed(words: tuple[str, ...]) -> Iterator[str]:
    """`lockstep` with these words, in this process."""
    what = " ".join(words)
    print(f"  {what}", flush=True)
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", how) for how in ("strict", "backslashreplace"))
    before = time.monotonic(), sys.argv, dict(os.environ)
    try:
        sys.argv = ["lockstep", *words]
        signal.alarm(SLOWEST_S)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main._command()
            out.flush()
            err.flush()
    except SystemExit as left:
        code = left.code
    except BaseException:
        yield f"{what} raises\n{traceback.format_exc()}"
        return
    finally:
        signal.alarm(0)
        _, sys.argv, variables = before
        os.environ.clear()
        os.environ.update(variables)
    said = "".join(file.buffer.getvalue().decode() for file in (out, err))  # pyright: ignore[reportAttributeAccessIssue]
    yield from judged(what, code, said)


def judged(what: str, code: Any, said: str, *, codes: tuple[int, ...] = (0, 1, 2)) -> Iterator[str]:
    """What is wrong about the end of a command."""
    if code not in codes:
        yield f"{what} ends with {code}: {said}"
    if "Traceback (most recent call last)" in said:
        yield f"{what} shows a traceback: {said}"
    if code == 2 and not said.strip():
        yield f"{what} refuses without a line"


def _in_python(case: Case) -> Iterator[str]:
    """What a notebook reads of the run."""

    def read(name: str) -> Any:
        run = lockstep.Run("x")
        return dict(run) if name == "row" else getattr(run, name)

    calls: dict[str, Callable[[], Any]] = {"runs": lambda: [dict(run) for run in lockstep.runs(".")]}
    for name in ("state", "overrides", "config", "metrics", "summary", "row"):
        calls[name] = lambda name=name: read(name)
    for name, call in calls.items():
        signal.alarm(SLOWEST_S)
        try:
            call()
        except (FileNotFoundError, PermissionError, ValueError) as error:  # what the pages name
            if not str(error):
                yield f"{name} in Python raises {type(error).__name__} without a text"
        except OSError as error:
            if error.filename is None:
                yield f"{name} in Python raises {error!r}, which names no file"
        except BaseException:
            yield f"{name} in Python raises\n{traceback.format_exc()}"
        finally:
            signal.alarm(0)


def _on_board(case: Case) -> Iterator[str]:
    """What the Training tab shows, and its two buttons on a stranger's run."""
    client = boards.board(case.root / "runs")
    signal.alarm(SLOWEST_S)
    try:
        runs = boards.listed(client)
        for name, facts in runs.items():
            for address in (f"run?id={facts['id']}", f"config?id={facts['id']}"):
                answer = client.get(f"{boards.BASE}/{address}", base_url=boards.LOCAL)
                if answer.status_code >= 500:
                    yield f"the board answers {answer.status} to {address} of {name}"
            for address, more in (("stop", {}), ("notes", {"note": "x", "tags": []})):
                if not case.is_mine:
                    boards.post(client, address, {"run": facts["id"], **more})
        for sweep in {facts["sweep"] for facts in runs.values() if "sweep" in facts}:
            for address in ("sweep", "importance"):
                answer = client.get(f"{boards.BASE}/{address}?name={sweep}", base_url=boards.LOCAL)
                if answer.status_code >= 500:
                    yield f"the board answers {answer.status} to {address} of {sweep}"
    except BaseException:
        yield f"the board raises\n{traceback.format_exc()}"
    finally:
        signal.alarm(0)


# -- commands that compute, in processes -------------------------------------------------------------------------------

LOAD = """
import sys, lockstep
try:
    lockstep.load("x")
except (OSError, ValueError) as error:
    sys.exit(str(error))
"""
COMPUTE = (
    *(("eval", "x"), ("predict", "x", "test", "--output", "../out/t.csv"), ("export", "x", "--output", "../out/n.pt2")),
    *(("predict", "x", "../photos", "--output", "../out/p.csv"), ("train", "resume=x", "trainer.max_epochs=3")),
    *(("-c", LOAD), ("train", "resume=x", "trainer.max_epochs=3", "--trust")),
)


def compute(seed: int, number: int, good: Path, scratch: Path) -> list[str]:
    """Use a case by two of these commands. Returns what is wrong."""
    case = Case(seed, number, good, scratch / str(number))
    # of a run that is trusted, what the configuration names may write where it wants
    is_configured = any(fault.startswith("yaml") for fault in case.faults)
    found: list[str] = []
    write_image(case.root / "photos" / "0.png")
    (case.root / "out").mkdir()
    case.before = digest(case.root, without=case.run.path)
    with case.living():
        for words in case.random.sample(COMPUTE, 2):
            may_write = words[0] == "train" and (case.is_mine or "--trust" in words)
            if may_write and is_configured:
                continue
            found += [f"{case}: {problem}" for problem in _computed(case, words, may_write=may_write)]
            outside = [path for path in case.wrong(is_used=may_write) if path.split("/")[0] != "out"]
            if outside:
                found.append(f"{case}: {' '.join(words)} has changed {outside}")
            if outside or may_write:
                break
    return found


def _computed(case: Case, words: tuple[str, ...], *, may_write: bool) -> Iterator[str]:
    line = [sys.executable, *(words if words[0] == "-c" else ("-m", "lockstep", *words))]
    process = Command(line, case.root / "runs", {**environ(), "HOME": str(case.around)})
    resource.prlimit(process.pid, resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    try:
        out, err = process.communicate(SLOWEST_S)
    except subprocess.TimeoutExpired:
        process.kill()
        yield f"{' '.join(words)} has not ended after {SLOWEST_S} s"
        return
    if not may_write:
        yield from judged(" ".join(words), process.returncode, out + err)
