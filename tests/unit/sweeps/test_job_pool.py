"""The jobs of a search, with a scheduler that answers from a dictionary."""

import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockstep.cluster import scheduler, submission
from lockstep.cluster.record import Record
from lockstep.cluster.scheduler import Scheduled
from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError, Error
from lockstep.config.schema.configuration import Config
from lockstep.runs.folder import EXIT_FAILED, EXIT_STOPPED, PRUNED, RunFolder
from lockstep.sweeps import array, job_pool
from lockstep.sweeps.course import Course, Grid
from lockstep.sweeps.job_pool import JobPool
from lockstep.sweeps.ledger import Ledger, Trial
from lockstep.sweeps.results import Objective
from lockstep.sweeps.table import table
from lockstep.sweeps.views import View
from lockstep.system.signals import STOP_SIGNALS
from tests.support import job_records

ACCURACY = Objective("val/accuracy", True)


class Cluster:
    """A SLURM whose answers a test sets: states by id, or an error."""

    def __init__(self) -> None:
        self.states: dict[str, Scheduled] = {}
        self.error = ""
        self.cancelled: list[Sequence[str]] = []
        self.copies: list[Path | None] = []

    def answer(self, ids: Sequence[str]) -> dict[str, Scheduled]:
        if self.error:
            raise ValueError(self.error)
        return {job: self.states[job] for job in ids if job in self.states}

    def cancel(self, ids: Sequence[str]) -> None:
        self.cancelled.append(ids)

    def submit(
        self, folders: Sequence[RunFolder], configs: Sequence[Config], *, old_code: Path | None, **options: Any
    ) -> list[Record]:
        ((folder,), job) = folders, str(10 + len(self.states))
        if self.error:
            raise ConfigError(Error("", "sbatch refused the job", self.error))
        self.copies.append(old_code)
        known = {"id": job, "engine": "slurm", "task": options["task"], "code": str(old_code or "copy")}
        record = Record(**job_records.fields(**known))
        folder.write_status(state="not started", reason="submitted", exit_code=None)
        record.save(folder)
        self.states[job] = Scheduled("pending")
        return [record]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(scheduler, "states", made.answer)
    monkeypatch.setattr(scheduler, "cancel", made.cancel)
    monkeypatch.setattr(submission, "submit_all", made.submit)
    monkeypatch.setattr(job_pool, "LOOK_EVERY_S", 0.0)
    return made


def book(path: Path, num_trials: int) -> Ledger:
    ledger = Ledger.open(path, None, ())
    for number in range(num_trials):
        ledger.add([f"seed={number}"], str(number)).folder.path.mkdir(parents=True)
    ledger.write()
    for folder in (RunFolder(path), *(trial.folder for trial in ledger.trials)):
        folder.claim()
    return ledger


def pool_of(ledger: Ledger) -> JobPool:
    config = validation.check_tree(compose.plain_tree(compose.compose_config(["strategy=cpu"]))[0])
    return JobPool(ledger, {trial.number: config for trial in ledger.trials}, array.live_jobs(ledger))


@pytest.mark.parametrize(
    ("job", "run", "code", "state"),
    [
        (Scheduled("completed"), {"state": "finished", "exit_code": 0}, 0, "finished"),
        (Scheduled("failed", exit_code=75), {"state": "stopped", "exit_code": 75}, EXIT_STOPPED, "stopped"),
        (Scheduled("failed", exit_code=75), {"state": "pruned", "exit_code": 75}, EXIT_STOPPED, "pruned"),
        (Scheduled("failed", exit_code=1), {"state": "failed", "exit_code": 1}, EXIT_FAILED, "failed"),
        # without a report of the run: killed, cancelled before its checkpoint or its start
        (Scheduled("failed", exit_code=137), {"state": "training"}, 137, "failed"),
        (Scheduled("out_of_memory"), {"state": "not started"}, EXIT_FAILED, "failed"),
        (Scheduled("cancelled", exit_code=143), {"state": "training"}, EXIT_STOPPED, "stopped"),
        (Scheduled("cancelled"), {"state": "not started"}, EXIT_STOPPED, "stopped"),
    ],
)
def test_a_requeued_trial_is_running_and_an_ended_one_has_the_end_of_its_run_or_of_its_job(
    cluster: Cluster, tmp_path: Path, job: Scheduled, run: dict[str, Any], code: int, state: str
) -> None:
    ledger = book(tmp_path / "sweep", 1)
    (trial,), pool = ledger.trials, pool_of(ledger)
    assert pool.start(trial, "train")
    assert trial.device == "job 10"
    for live in ("pending", "running", "completing", "requeued", "pending", "running"):
        cluster.states["10"] = Scheduled(live)
        assert (pool.collect_ended(), pool.trials) == ([], [trial])
    cluster.states["10"] = job
    trial.folder.update_status(host="elsewhere", **run)
    assert (pool.collect_ended(), pool.trials, trial.state) == ([(trial, code)], [], state)
    assert trial.folder.failure.exists() == (code == 137 or (run["state"] == "not started" and code == EXIT_FAILED))


def test_live_jobs_of_an_earlier_command_are_adopted_and_others_share_one_copy_of_the_code(
    cluster: Cluster, tmp_path: Path
) -> None:
    ledger = book(tmp_path / "sweep", 4)
    killed = pool_of(ledger)
    for trial in ledger.trials[:2]:
        killed.start(trial, "train")
    cluster.states["10"] = Scheduled("failed", exit_code=1)
    again = pool_of(Ledger.open(ledger.path, None, ()))
    for trial in ledger.trials:
        again.start(trial, "train")
    assert [trial.device for trial in ledger.trials] == ["job 12", "job 11", "job 13", "job 14"]
    assert cluster.copies == [None, Path("copy"), None, Path("copy"), Path("copy")]


def test_a_search_waits_for_a_slurm_that_does_not_answer_and_says_so_once(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = book(tmp_path / "sweep", 1)
    pool = pool_of(ledger)
    pool.start(ledger.trials[0], "train")
    cluster.error = "squeue did not answer."
    assert (pool.collect_ended(), pool.collect_ended()) == ([], [])
    assert capsys.readouterr().err.count("squeue did not answer. The search waits for an answer") == 1
    cluster.error = ""
    assert (pool.collect_ended(), pool.trials) == ([], ledger.trials)


def test_start_refused_by_slurm(cluster: Cluster, tmp_path: Path) -> None:
    one, two = (ledger := book(tmp_path / "sweep", 2)).trials
    pool = pool_of(ledger)
    assert pool.start(one, "train")
    cluster.error = "QOSMaxSubmitJobPerUserLimit"
    with pytest.raises(ConfigError, match="QOSMaxSubmit"):
        pool.start(two, "train")
    assert pool.trials == [one]


def test_a_stop_cancels_what_has_not_begun_which_would_remove_the_request_and_lets_the_others_save(
    cluster: Cluster, tmp_path: Path
) -> None:
    ledger = book(tmp_path / "sweep", 4)
    pool = pool_of(ledger)
    jobs = ("running", "running", "pending", "pending")
    runs = ("training", "not started", "not started", "training")  # the last one waits again, after a node failed
    for trial, job, run in zip(ledger.trials, jobs, runs, strict=True):
        pool.start(trial, "train")
        cluster.states[trial.device.removeprefix("job ")] = Scheduled(job)
        trial.folder.update_status(state=run, host="elsewhere")
    pool.stop()
    assert (pool.collect_ended(), pool.collect_ended()) == ([], [])
    assert cluster.cancelled == [["11", "12", "13"]]
    reasons = [trial.folder.stop_reason() for trial in ledger.trials]
    assert reasons == ["the search was stopped", "", "", ""]
    assert [trial.folder.read_job()["cancelled"] for trial in ledger.trials] == [False, True, True, True]


# a hangup is ignored under nohup
class Search(Grid):
    """Finds trial 0 poor, and gets a signal when it is asked about trial 1."""

    def __init__(self, trials: Sequence[Trial], number: int = 0) -> None:
        super().__init__(trials)
        self.number = number
        self.ends: list[tuple[int, str]] = []

    def is_poor(self, trial: Trial) -> bool:
        if trial.number:
            signal.raise_signal(self.number)
        return not trial.number and not trial.folder.stop_flag.exists()

    def record_result(self, trial: Trial, state: str) -> None:
        self.ends.append((trial.number, state))


# a hangup is ignored under nohup
@pytest.mark.parametrize("number", sorted({signal.SIGINT, signal.SIGTERM, signal.SIGHUP}.intersection(STOP_SIGNALS)))
def test_signal_leaves_jobs(cluster: Cluster, tmp_path: Path, number: int) -> None:
    """A signal ends the command and no job; a pruned trial is found ended by the next command."""
    ledger = book(tmp_path / "sweep", 2)
    pruned, failed = ledger.trials
    pool = pool_of(ledger)
    view = View(partial(table, ledger, ACCURACY), 2, is_silent=True)
    assert Course(ledger, Search(ledger.trials, number), pool, view, 2, "train").run() == EXIT_STOPPED
    assert (pruned.folder.stop_reason(), failed.folder.stop_reason()) == (PRUNED, "")
    assert (cluster.cancelled, pool.trials) == ([], ledger.trials)
    pruned.folder.update_status(state="pruned", host="elsewhere", exit_code=EXIT_STOPPED)
    failed.folder.update_status(state="failed", host="elsewhere", exit_code=EXIT_FAILED)
    cluster.states = dict.fromkeys(cluster.states, Scheduled("failed"))
    source = Search([])
    assert Course(ledger, source, pool, view, 2, "train").run() == EXIT_FAILED
    assert sorted(source.ends) == [(0, "pruned"), (1, "failed")]
