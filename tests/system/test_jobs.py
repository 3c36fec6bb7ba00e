"""Jobs without SLURM: submission errors, the copy of the code, SLURM's tools, the background."""

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pexpect
import pytest

from lockstep.cluster import code, commands, job, jobs, scheduler, slurm, submission
from lockstep.cluster.record import JobRecord
from lockstep.cluster.scheduler import Scheduled
from lockstep.config.checks import validation
from lockstep.config.checks.slurm_rules import KEYS
from lockstep.config.checks.workers import resolve_workers
from lockstep.config.errors import ConfigError
from lockstep.config.saved import config_file
from lockstep.config.schema.configuration import Config
from lockstep.launch import prepared_run
from lockstep.runs import discovery
from lockstep.runs.folder import EXIT_CONFIG, EXIT_STOPPED, RunFolder
from lockstep.sweeps import array
from lockstep.sweeps import command as sweeps
from lockstep.trials.ledger import Ledger
from tests.support import job_records
from tests.support.commands import run as run_command
from tests.support.composed import composed_once, errors_of
from tests.support.exact import trained
from tests.support.harness import (
    PATIENCE_S,
    ROOT,
    SMALL,
    command,
    difference,
    environ,
    wait_until,
    write_run,
)
from tests.support.leaks import keepers
from tests.support.screens import on_terminal

TINY = (*SMALL, "model.width=2", "trainer.max_epochs=4")
# as it is installed: to Python, its folder is that of the script
TOOL = Path(sys.executable).parent / "lockstep"
SLURM = ("cluster=slurm", "cluster.time_min=60", "trainer.devices=2")


def tool(folder: Path, name: str, script: str) -> None:
    """A program that stands in for one of SLURM's."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that is found first."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "srun", "scontrol", "squeue", "sacct", "scancel"):
        tool(folder, name, "exit 0")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def config_of(*overrides: str) -> Config:
    """A configuration of a job of SLURM."""
    return validation.check_config(composed_once([*SLURM, *overrides]))


# -- errors of a submission ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ((*SLURM, "cluster.time_min=null"), "cluster.time_min"),
        ((*SLURM, "cluster.warn_s=3600"), "cluster.warn_s"),
        ((*SLURM, "cluster.sbatch=[exclusive]"), "cluster.sbatch"),
        ((*SLURM, "cluster.sbatch=['--nodes=3']"), "trainer.num_nodes"),
        ((*SLURM, "cluster.sbatch=[--wait]"), "--wait"),
        ((*SLURM, "trainer.devices=auto"), "trainer.devices"),
        ((*SLURM, "trainer.devices=[0,2]"), "trainer.devices"),
        ((*SLURM, "cluster.gpus_per_node=1"), "cluster.gpus_per_node"),
        ((*SLURM, "strategy=cpu", "cluster.gpus_per_node=2"), "strategy=cpu"),
        ((*SLURM, "strategy=single_device"), "strategy=single_device"),
        ((*SLURM, "cluster.partition='a b'"), "cluster.partition"),
        (("cluster=local", "cluster.time_min=5"), "cluster.time_min"),
        (("cluster.memory_gib=4",), "cluster.memory_gib"),
        (("cluster.setup=[module load x]",), "cluster.setup"),
        (("dry_run=true",), "dry_run"),
    ],
)
def test_submission_errors(tools: Path, overrides: tuple[str, ...], error: str) -> None:
    (found,) = errors_of(*overrides)
    assert error in found


@pytest.mark.parametrize(
    ("overrides", "num_workers", "num_gpus"),
    [
        (("trainer.devices=8",), 8, 8),
        (("trainer.devices=8", "strategy=cpu"), 8, 0),
        (("trainer.devices=2", "cluster.gpus_per_node=4"), 2, 4),
        (("trainer.devices=auto", "cluster.gpus_per_node=4"), 4, 4),
        (("trainer.devices=auto", "strategy=cpu"), 1, 0),
        (("cluster.gpus_per_node=0", "cluster.sbatch=['--gres=gpu:a100:2']"), 2, 0),
    ],
)
def test_job_workers_and_gpus(
    tools: Path, overrides: tuple[str, ...], num_workers: int, num_gpus: int
) -> None:
    """The GPUs of a job are not looked for on this machine."""
    config = config_of(*overrides)
    workers = resolve_workers(config)
    assert (workers.num_local, len(workers.gpus)) == (num_workers, num_gpus)
    of_job = submission.job_config(config)
    assert (of_job.cluster.name, of_job.trainer.devices) == ("none", num_workers)
    validation.check_tree(config_file.to_tree(of_job))


def test_script_options(tools: Path, tmp_path: Path) -> None:
    """Each is there once."""
    words = (f"cluster.{key}=x" for key in ("partition", "account", "qos", "constraint"))
    sizes = (
        "cluster.memory_gib=1",
        "cluster.cpus_per_worker=2",
        "trainer.num_nodes=2",
        "trainer.devices=3",
    )
    config = config_of(
        *words, *sizes, "cluster.sbatch=[--exclusive]", "cluster.setup=[module load x]"
    )
    paths = slurm.JobPaths(files=tmp_path, code=tmp_path, cwd=tmp_path)
    executor = slurm.executor(config, name="x", paths=paths, is_head=False)
    lines = slurm.script(executor, 1).splitlines()
    options = [line.removeprefix("#SBATCH --") for line in lines if "#SBATCH" in line]
    expected = {
        "nodes=2",
        "ntasks-per-node=3",
        "time=60",
        "cpus-per-task=2",
        "mem=1024M",
        "signal=USR1@120",
    }
    assert expected | {
        "account=x",
        "qos=x",
        "partition=x",
        "constraint=x",
        "exclusive",
        "requeue",
    } <= set(options)
    keys = [option.partition("=")[0] for option in options]
    assert set(keys) <= {*KEYS, "exclusive"}
    assert len(keys) == len(set(keys))
    assert "module load x" in lines


@pytest.mark.parametrize(
    ("name", "override"),
    [("a\ntouch x\n", "dry_run=false"), ("a\r", "dry_run=true"), ("a\udcff", "dry_run=true")],
)
def test_script_unprintable_folder(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, override: str
) -> None:
    tool(tools, "sbatch", f"touch {tmp_path}/submitted")
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    with pytest.raises(ConfigError) as caught:
        submission.start(config_of(override), [], None)
    assert repr(name)[1:-1] in str(caught.value)
    assert str(caught.value).isprintable()
    assert not (tmp_path / "submitted").exists()


def test_variables_of_sbatch(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of an outer job, and none that override the configuration."""
    tool(
        tools, "sbatch", f"env | grep -E '^(SBATCH|SLURM|RANK)' | sort > {tmp_path}/seen; {ANSWERS}"
    )
    outer = ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_CONF", "RANK")
    names = ("TIMELIMIT", "PARTITION", "ACCOUNT", "RESERVATION", "EXPORT", "WAIT")
    for name in (*outer, *(f"SBATCH_{name}" for name in names)):
        monkeypatch.setenv(name, "0")
    config = config_of("cluster.partition=gpu", "cluster.sbatch=['--reservation=class']")
    submission.start(config, [], tmp_path / "run")
    assert (tmp_path / "seen").read_text() == "SBATCH_ACCOUNT=0\nSLURM_CONF=0\n"


# -- folders of a submission -----------------------------------------------------------------------


ANSWERS = "echo Submitted batch job 17"


def test_folder_not_empty(tools: Path, tmp_path: Path) -> None:
    (tmp_path / "project" / "code").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"hydra\.run\.dir=.*project"):
        submission.start(config_of(), [], tmp_path / "project")
    assert [path.name for path in (tmp_path / "project").rglob("*")] == ["code"]


@pytest.mark.parametrize("is_refused", [False, True])
def test_folder_during_submission(tools: Path, tmp_path: Path, is_refused: bool) -> None:
    """A run folder changes only once sbatch has accepted."""
    folder = RunFolder(tmp_path / "run")
    submitted(folder, "16", cancelled=True)
    folder.write_status(state="finished", exit_code=0)
    before = {path: path.read_bytes() for path in folder.path.iterdir()}
    tool(
        tools,
        "sbatch",
        f"cat {folder.job_file} > {tmp_path}/seen; {'exit 1' if is_refused else ANSWERS}",
    )
    with contextlib.suppress(ConfigError):
        submission.submit_all([(folder, config_of())], submission.Work("it"), base=folder)
    assert (tmp_path / "seen").read_bytes() == before[folder.job_file]
    if is_refused:
        assert {
            path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()
        } == before
    else:
        assert (
            folder.read_job().items() >= {"id": "17", "earlier": ["16"], "cancelled": False}.items()
        )
        assert folder.read_status()["exit_code"] is None


def sweep(path: Path, *overrides: str) -> tuple[Ledger, dict[int, Config]]:
    """Prepare a sweep of a trial for each override.

    Its folders are as deep as `hydra.sweep.subdir` may make them.
    """
    ledger = Ledger(path, None, ())
    configs = {}
    for text in overrides:
        config = config_of(text)
        trial, configs[trial.number] = sweeps.prepare_trial(
            ledger, [text], lambda _, number, config=config: (config, f"nested/{number}")
        )
    return ledger, configs


def test_sweep_trial_of_other_process(
    tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool(tools, "sbatch", ANSWERS)
    ledger, configs = sweep(tmp_path / "sweep", "seed=1", "seed=2")
    ledger.trials[0].folder.write_status(state="training", host="elsewhere")
    array.submit(ledger, ledger.trials, configs)
    assert [trial.folder.read_job().get("id") for trial in ledger.trials] == [None, "17"]
    assert "Submitted 1 trial as job 17" in capsys.readouterr().out


def test_sweep_here_pending_job(tools: Path, tmp_path: Path) -> None:
    tool(tools, "sbatch", ANSWERS)
    ledger, configs = sweep(tmp_path / "sweep", "seed=1", "seed=2")
    array.submit(ledger, ledger.trials, configs)
    tool(tools, "squeue", f"echo '{line('17_1', 'PENDING', 'Resources', '', '0:00', '0', '0')}'")
    with pytest.raises(ConfigError, match=r"trial 1 of .*sweep"):
        sweeps._live_jobs(ledger, is_submitted=False)
    tool(tools, "squeue", "exit 0")
    sweeps._live_jobs(ledger, is_submitted=False)


@pytest.mark.full
@pytest.mark.processes
def test_signal_during_submission(tools: Path, tmp_path: Path) -> None:
    tool(tools, "sbatch", "kill -INT 0; echo 'Submitted batch job 17'")
    words = command("-m", "seed=0,1", *SMALL, "strategy=auto", *SLURM)
    # in a process group of its own, as in a terminal: Ctrl-C reaches sbatch, too
    options = {
        "capture_output": True,
        "text": True,
        "timeout": PATIENCE_S,
        "start_new_session": True,
    }
    done = subprocess.run(words, cwd=tmp_path, env=environ(), **options)
    assert done.returncode == 128 + signal.SIGINT
    assert "job 17 is submitted" in done.stderr
    records = [
        json.loads(path.read_text())["id"] for path in (tmp_path / "outputs").rglob("job.json")
    ]
    assert sorted(records) == ["17_0", "17_1"]


# -- the code of a job -----------------------------------------------------------------------------


def project(root: Path) -> None:
    files = ("src/lockstep/a.py", "conf/config.yaml", "train.py", "own.py")
    for name in (*files, "data/big.bin", "outputs/x.py", "a/outputs/x.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / ".gitignore").write_text("/data/\n/outputs/\n")


def test_code_git(tmp_path: Path) -> None:
    root = tmp_path / "it"
    project(root)
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "src", "conf", "train.py"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    (root / "train.py").write_text("edited\n")
    (root / "train.py").chmod(0o775)  # of a project that a group shares
    (root / "untracked.csv").touch()
    (tmp_path / "code" / "1").mkdir(parents=True)  # of a job that waits
    target = code.freeze(root, tmp_path / "code")
    assert target.name == "2"
    files = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert files == {"COMMIT", "conf/config.yaml", "own.py", "src/lockstep/a.py", "train.py"}
    assert (target / "train.py").read_text() == "edited\n"
    assert (target / "train.py").stat().st_mode & 0o777 == 0o755
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert code.provenance.commit(target) == f"{head.stdout.strip()}+changes"


def test_secrets_of_submission(
    tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool(tools, "sbatch", ANSWERS)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    config = config_of(
        "cluster.setup=['export HF_TOKEN=hunter2']", "+strategy.variables.HF_TOKEN=hunter2"
    )
    submission.submit_all([(folder, config)], submission.Work("it"), base=folder)
    shutil.rmtree(folder.code)  # these tests are in it
    assert keepers(folder.path) == {"config.yaml", "job.json", "17_submission.sh"}
    commands.run_jobs_command(["show", str(folder.path)])
    assert "hunter" not in capsys.readouterr().out


def test_code_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(tmp_path)
    (tmp_path / "my_package").mkdir()
    for name in ("my_package/networks.py", "my_package/weights.bin"):
        (tmp_path / name).touch()
    monkeypatch.setenv("PATH", "/nowhere")
    expected = {
        "conf/config.yaml",
        "my_package/networks.py",
        "own.py",
        "src/lockstep/a.py",
        "train.py",
    }
    assert set(map(str, code.files(tmp_path))) == expected
    assert code.provenance.commit(code.freeze(tmp_path, tmp_path / "code")) is None


def test_code_not_discovered(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "outputs" / "day" / "it", SMALL)
    code.freeze(ROOT, folder.code)
    code.freeze(ROOT, tmp_path / "outputs" / "day" / "code")
    assert [found.name for found in discovery.scan(tmp_path / "outputs").values()] == ["day/it"]


# -- the state in SLURM ----------------------------------------------------------------------------


def line(*fields: str) -> str:
    return "".join(f"{field}|" for field in fields)


def test_states_of_queue_and_accounts(tools: Path) -> None:
    queue = [
        line("7_0", "PENDING", "Resources", "", "0:00", "0", "0"),
        line("7_1", "FAILED", "NonZeroExitCode", "n1", "3-04:00:01", str(75 << 8), "2"),
        line("8", "CANCELLED", "None", "n[1-2]", "1:02:03", "15", "0"),
        line("11", "REVOKED", "None", "", "INVALID", "", ""),
        line("7_2", "RUNNING", "None", "n1", "0:03", "0", "0"),
    ]
    tool(tools, "squeue", "cat << EOF\n" + "\n".join(queue) + "\nEOF")
    accounts = [
        "9|COMPLETED|n2|00:01:04|0:0",
        "9_1|CANCELLED by 7|n2|00:00:04|0:15",
        "7_0|RUNNING|n1|00:00:01|0:0",
    ]
    tool(tools, "sacct", "cat << EOF\n" + "\n".join(accounts) + "\nEOF")
    found = scheduler.states(["7_0", "7_1", "8", "9", "9_1", "10", "11"])
    assert found == {
        "7_0": Scheduled("pending", "Resources", "", 0.0, 0, 0),
        "7_1": Scheduled("failed", "NonZeroExitCode", "n1", 273601.0, 75, 2),
        "8": Scheduled("cancelled", "", "n[1-2]", 3723.0, 143, 0),
        "9": Scheduled("completed", "", "n2", 64.0, 0, 0),
        "9_1": Scheduled("cancelled", "", "n2", 4.0, 143, 0),
        "11": Scheduled("revoked", "", "", None, 0, 0),
    }
    assert sorted(name for name, each in found.items() if each.is_live) == ["11", "7_0"]
    # SLURM's word where it cancels; what it requeues is never called so
    assert not Scheduled("preempted").is_live


@pytest.mark.parametrize(
    ("squeue", "sacct", "error"),
    [
        ("echo 'Unable to contact slurm controller' >&2; exit 1", "exit 0", "Unable to contact"),
        (
            "echo 'Invalid job id specified' >&2; exit 1",
            "echo 'Connection refused' >&2; exit 1",
            "refused",
        ),
        ("exec sleep 60", "exit 0", "squeue did not respond"),
    ],
)
def test_states_failed_tool(
    tools: Path, monkeypatch: pytest.MonkeyPatch, squeue: str, sacct: str, error: str
) -> None:
    monkeypatch.setattr(scheduler, "TIMEOUT_S", 1.0)
    tool(tools, "squeue", squeue)
    tool(tools, "sacct", sacct)
    with pytest.raises(ValueError, match=error):
        scheduler.states(["7"])


def test_states_unknown_job_without_accounting(tools: Path) -> None:
    tool(tools, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    tool(tools, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert scheduler.states(["7"]) == {}


# -- the process of a job --------------------------------------------------------------------------


def submitted(folder: RunFolder, job_id: str = "17", **changes: Any) -> JobRecord:
    """A run with the record of a job."""
    known = {
        "cluster": {"name": "slurm", "max_requeues": 3, "partition": "gpu"},
        "log": str(folder.path / "log"),
    }
    known |= {"id": job_id, "engine": "slurm", "submitted": 1e9, "code": "c", "host": "login"}
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.claim()
    made = JobRecord(**job_records.fields(**(known | changes)))
    if not folder.config.exists():
        folder.config.write_text("seed: 0\n")
    made.save(folder)
    return made


@pytest.mark.parametrize(
    ("status", "is_cancelled", "restarts", "code", "reason"),
    [
        ({"signal": "SIGUSR1"}, False, 0, job.REQUEUE, "time limit: the job is requeued"),
        (
            {"signal": "SIGTERM"},
            False,
            2,
            job.REQUEUE,
            "SIGTERM: the job is requeued if it was preempted",
        ),
        ({"signal": "SIGUSR1"}, True, 0, EXIT_STOPPED, "cancelled"),
        (
            {"signal": "SIGUSR1"},
            False,
            3,
            EXIT_STOPPED,
            "requeued 3 times, the limit is cluster.max_requeues=3",
        ),
        ({"signal": "SIGINT"}, False, 0, EXIT_STOPPED, "why"),
        ({"signal": None}, False, 0, EXIT_STOPPED, "why"),  # the stop flag, or trainer.max_time_s
    ],
)
def test_requeue_of_stopped_job(
    no_signals: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: dict[str, Any],
    is_cancelled: bool,
    restarts: int,
    code: int,
    reason: str,
) -> None:
    monkeypatch.setattr(
        job, "_do", lambda *_, **__: submitted(folder, cancelled=is_cancelled) and EXIT_STOPPED
    )
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
    folder = RunFolder(tmp_path / "run")
    submitted(folder)
    folder.write_status(state="stopped", reason="why", **status)
    assert job.work(folder, "17") == code
    after = folder.read_status()
    assert after["reason"].startswith(reason)
    assert after["exit_code"] == (None if code == job.REQUEUE else code)


@pytest.mark.parametrize(
    ("is_cancelled", "restarts", "reason"), [(True, 0, "cancelled"), (False, 4, "requeued 4 times")]
)
def test_job_trains_nothing(
    no_signals: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_cancelled: bool,
    restarts: int,
    reason: str,
) -> None:
    """It was cancelled, or requeued too often."""
    monkeypatch.setattr(job, "_do", lambda *_, **__: pytest.fail("it trains"))
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
    folder = RunFolder(tmp_path / "run")
    submitted(folder, cancelled=is_cancelled)
    assert job.work(folder, "17") == EXIT_STOPPED
    assert reason in folder.read_status()["reason"]


@pytest.fixture
def no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the signals of the tests as they are."""
    monkeypatch.setattr(job, "take_signals", lambda: None)


def test_record_of_later_submission(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    submitted(folder, "16", cancelled=True)
    later = threading.Timer(0.3, lambda: submitted(folder, "17"))
    later.start()
    assert job._record(folder, "17").cancelled is False
    later.join()


@pytest.mark.parametrize(
    ("variables", "asks"),
    [
        ({"SLURM_JOB_ID": "17"}, "17"),
        ({"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "0"}, "16_0"),
    ],
)
def test_requeue_by_exit_code(
    tools: Path, tmp_path: Path, variables: dict[str, str], asks: str
) -> None:
    tool(tools, "scontrol", f'echo "$@" >> {tmp_path}/asked')
    environ_ = {**environ(), **variables, "PATH": os.environ["PATH"]}
    for step, left in (
        (f"sh -c 'exit {job.REQUEUE}'", EXIT_STOPPED),
        ("exit 75", 75),
        ("kill -TERM $$; sleep 9", -15),
    ):
        text = f"{slurm.REQUEUE}\nset -e\n{step}"
        assert subprocess.run(["bash", "-c", text], env=environ_).returncode == left
    assert (tmp_path / "asked").read_text() == f"requeue {asks}\n"


def test_finished_while_waiting(tmp_path: Path) -> None:
    """A run that an older process finishes is left as it is."""
    folder = write_run(tmp_path / "run", SMALL)
    with ThreadPoolExecutor(1) as pool:
        with folder.lock():
            code = pool.submit(prepared_run.run_prepared, folder.path, "train")
            time.sleep(3 * prepared_run.LOCKED_EVERY_S)
            assert not code.done()
            folder.write_summary({"epochs": 2})
        assert code.result(PATIENCE_S) == 0
    assert not folder.last_checkpoint.exists()


def test_warned_while_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that waits for an older process ends when SLURM warns of the time limit."""
    monkeypatch.setattr(signal, "sigpending", lambda: {signal.SIGUSR1})
    folder = write_run(tmp_path / "run", SMALL)
    with folder.lock():
        assert prepared_run.run_prepared(folder.path, "train") == EXIT_STOPPED


def test_signals_before_handlers() -> None:
    ours = """
import os, signal, sys
from lockstep.cluster import job
from lockstep.system.signals import SignalFlag
assert {*job.BLOCKED_SIGNALS} <= signal.pthread_sigmask(signal.SIG_BLOCK, [])
for number in job.BLOCKED_SIGNALS:  # as submitit does
    signal.signal(number, lambda *_: os._exit(3))
for number in (signal.SIGUSR2, signal.SIGTERM):
    os.kill(os.getpid(), number)
job.take_signals()
flag = SignalFlag()
flag.install()
print(flag.received == signal.SIGTERM, signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN)
"""
    words = [sys.executable, "-I", "-S", "-c", job.HOLD, sys.executable, "-c", ours]
    done = subprocess.run(words, capture_output=True, text=True, env=environ())
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr


# -- lockstep jobs ---------------------------------------------------------------------------------


@pytest.fixture
def four(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four jobs: one waits, one has finished, one has failed, and one is forgotten by SLURM."""
    monkeypatch.chdir(tmp_path)
    for number, (name, state) in enumerate(
        (("waits", ""), ("done", "finished"), ("bad", "failed"), ("old", "stopped"))
    ):
        folder = RunFolder(tmp_path / "outputs" / "day" / name)
        submitted(folder, f"2{number}", submitted=1e9 + number)
        if state:
            folder.write_status(state=state, reason="why", epoch=2, max_epochs=4, exit_code=None)
    RunFolder(tmp_path / "outputs" / "day" / "done").write_summary({"best": 0.5})
    queue = [
        line("20", "PENDING", "Resources", "", "0:00", "0", "0"),
        line("21", "COMPLETED", "None", "n1", "0:09", "0", "1"),
        line("22", "FAILED", "NonZeroExitCode", "n2", "0:01", str(2 << 8), "0"),
    ]
    tool(tools, "squeue", "cat << EOF\n" + "\n".join(queue) + "\nEOF")
    tool(tools, "scancel", f'echo "$@" >> {tmp_path}/cancelled')
    return tmp_path


def test_jobs_list(four: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run_jobs_command(["list", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [(record["id"], record["state"], record["exit_code"]) for record in records] == [
        *(("20", "pending", None), ("21", "completed", 0)),
        *(("22", "failed", 2), ("23", "stopped", 1)),
    ]


@pytest.mark.parametrize("words", [["list"], ["show", "20", "21"], ["list", "--json"]])
def test_jobs_without_slurm(
    four: Path, tools: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    tool(tools, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert commands.run_jobs_command(words) == 0
    out, error = capsys.readouterr()
    assert "Unable to contact" in error
    assert "20" in out
    assert "unknown" in out
    assert "completed" in out


@pytest.mark.parametrize("words", [["cancel", ""], ["list", "--folder="]])
def test_jobs_empty_name(four: Path, words: list[str]) -> None:
    with pytest.raises(ValueError, match="a name is empty, perhaps an unset variable"):
        commands.run_jobs_command(words)
    assert not (four / "cancelled").exists()
    assert len(list((four / "outputs/day").iterdir())) == 4


@pytest.mark.usefixtures("tools")
def test_select_jobs(tmp_path: Path) -> None:
    for number in range(3):
        submitted(
            RunFolder(tmp_path / "sweep" / str(number)), f"7_{number}", submitted=1e9 - number
        )
    records = jobs.recorded_jobs([tmp_path])
    for names, ids in (
        (["7"], ["7_2", "7_1", "7_0"]),
        ([str(tmp_path / "sweep")], ["7_2", "7_1", "7_0"]),
        (["7_1", "latest"], ["7_1", "7_0"]),
        ([str(tmp_path / "sweep" / "2")], ["7_2"]),
    ):
        assert [record.id for _, record in jobs.select_jobs(records, names)] == ids
    with pytest.raises(ValueError, match="8 is not a job"):
        jobs.select_jobs(records, ["8"])


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"cluster": []},
            {"cluster": None},
            {"cluster": {"setup": {}}},
            {"cluster": {"setup": [1]}},
        ),
        *({"pid": "1"}, {"pid": -1}, {"pid": 0}, {"pid": 2**31}, {"log": 3}, {"code": None}),
        *(
            {"id": ["17"]},
            {"id": "9" * 5000},
            {"id": "17\n"},
            {"id": "x; rm"},
            {"submitted": "now"},
        ),
        *(
            {"submitted": float("nan")},
            {"submitted": 10**400},
            {"submitted": -1},
            {"num_nodes": True},
        ),
        *({"num_nodes": 1.5}, {"gpus_per_node": 10**30}, {"earlier": [1]}, {"earlier": "17"}),
        *(
            {"earlier": None},
            {"command": [[]]},
            {"is_head": 1},
            {"more\n": 1},
            {"cwd": ["/"]},
            None,
        ),
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_jobs_wrong_record(
    tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any] | None
) -> None:
    """It is a line on standard error, and hides no other job. None: it is not JSON."""
    submitted(RunFolder(tmp_path / "good"), "local-1", engine="local", host="elsewhere")
    bad = RunFolder(tmp_path / "bad")
    submitted(bad, "local-2", engine="local", host="elsewhere")
    text = "[" if changes is None else json.dumps(bad.read_job() | changes)
    bad.job_file.write_text(text)
    for words in (["list"], ["list", "--json"], ["show", "local-1"]):
        assert commands.run_jobs_command([*words, "--folder", str(tmp_path)]) == 0
        out, error = capsys.readouterr()
        assert "local-1" in out
        assert "local-2" not in out
        assert str(bad.job_file) in error
        assert error.count("\n") == 1


def test_cancel_pending_and_ended(four: Path, tools: Path) -> None:
    pending, ended = (RunFolder(four / "outputs/day" / name) for name in ("waits", "done"))
    assert commands.run_jobs_command(["cancel", "20", "21"]) == 0
    assert (four / "cancelled").read_text() == "20\n"
    assert pending.read_job()["cancelled"]
    assert not ended.read_job()["cancelled"]
    assert commands.run_jobs_command(["cancel", "22"]) == EXIT_CONFIG
    submitted(pending, "20")
    tool(tools, "scancel", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(ValueError, match="Unable to contact"):
        commands.run_jobs_command(["cancel", "20"])
    assert not pending.read_job()["cancelled"]


@pytest.mark.parametrize("words", [["requeue"], ["cancel"], ["wait"]])
@pytest.mark.parametrize("name", ["20", "23"])  # the second one was stopped, perhaps to be requeued
def test_job_of_unknown_state(
    four: Path, tools: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], name: str
) -> None:
    """A job that may wait is left alone without SLURM, and an ended one needs none."""
    (tools / "squeue").unlink()
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(ValueError, match=rf"the state of job {name} is unknown"):
        commands.run_jobs_command([*words, name])
    RunFolder(four / "outputs/day/old").update_status(exit_code=EXIT_STOPPED)
    assert commands.run_jobs_command(["wait", "23"]) == EXIT_STOPPED


def test_refuse_live_pending(four: Path) -> None:
    """The command that calls it is tested with a job in the background."""
    with pytest.raises(ConfigError, match="lockstep jobs cancel 20"):
        submission.refuse_live(RunFolder(four / "outputs/day/waits"))


# -- the background of this machine ----------------------------------------------------------------


def lockstep_jobs(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command([TOOL, "jobs", *words], cwd)


SLOW = "+callbacks.slow={_target_:tests.support.callbacks.SlowAtFirst,step_s:1}"


@pytest.mark.full
@pytest.mark.processes
def test_background_run_cancelled_and_requeued(tmp_path: Path) -> None:
    """It outlives its terminal, is cancelled with a checkpoint, and goes on exactly."""
    alone = trained(tmp_path / "alone", TINY)
    words = [
        "train",
        *TINY,
        SLOW,
        "trainer.devices=1",
        "cluster=local",
        f"hydra.run.dir={tmp_path}/run",
    ]
    folder = RunFolder(tmp_path / "run")
    with on_terminal(100, *words) as shown:
        shown.expect(pexpect.EOF)
        assert shown.wait() == 0, shown.before
    # the terminal is closed: its processes got SIGHUP
    wait_until(lambda: folder.read_status().get("step", 0) >= 1, "the first step")
    name = folder.read_job()["id"]
    assert lockstep_jobs(tmp_path, "cancel", "run").returncode == 0
    done = lockstep_jobs(tmp_path, "wait", "run")
    assert (done.returncode, done.stdout.split("\t")[:2]) == (EXIT_STOPPED, [name, "cancelled"])
    done = lockstep_jobs(tmp_path, "requeue", str(folder.path))
    assert done.returncode == 0, done.stderr
    assert lockstep_jobs(tmp_path, "wait", "run").returncode == 0
    assert ", resumed" in Path(folder.read_job()["log"]).read_text()
    assert difference(alone, folder) == 0


def test_background_dry_run(tmp_path: Path) -> None:
    done = run_command(
        command(*TINY, "cluster=local", "dry_run=true", "cluster.setup=[module load x]"), tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("module load x\nexport PYTHONPATH=")
    assert list(tmp_path.iterdir()) == []
