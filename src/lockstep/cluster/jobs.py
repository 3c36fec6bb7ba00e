"""All jobs below a folder: their records, their state by the scheduler, and the status of their runs."""

import os
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.cluster import record, scheduler
from lockstep.cluster.record import Record
from lockstep.cluster.scheduler import Scheduled
from lockstep.runs import discovery
from lockstep.runs.discovery import DiscoveredRun
from lockstep.runs.folder import EXIT_FAILED, EXIT_STOPPED, LIVE_STATES, RunFolder
from lockstep.runs.naming import shown
from lockstep.system.terminal import printable

# states of a job that its scheduler has forgotten, by the state of its run
ENDED = {"finished": "completed", "failed": "failed", "stopped": "stopped"}


@dataclass(frozen=True)
class Job:
    """A job: where its run is, its record, the facts of the run, and what the scheduler has.

    `is_certain` is False where SLURM cannot be asked and the run does not say that the job has ended: it may wait.
    """

    run: DiscoveredRun
    record: Record
    facts: dict[str, Any]
    scheduled: Scheduled
    is_certain: bool

    @property
    def id(self) -> str:
        """The id of the job, such as 17, 17_3 or local-3fa9c1."""
        return self.record.id

    @property
    def folder(self) -> RunFolder:
        """The folder of the job's run."""
        return self.run.folder

    @property
    def state(self) -> str:
        """One word for people: pending, running, completed, failed, cancelled, timeout, ..."""
        return self.scheduled.state

    @property
    def reason(self) -> str:
        """Why the job waits, what its run is about, or how it ended; empty where no reason is known."""
        run_reason = self.facts.get("reason", "")
        if self.scheduled.reason or not self.is_live:
            return self.scheduled.reason or run_reason
        # a run that has not begun has a word of its submission alone
        return f"{self.facts['state']}: {run_reason}" if run_reason and self.facts["state"] in LIVE_STATES else ""

    @property
    def is_live(self) -> bool:
        """Whether the job waits or runs."""
        return self.scheduled.is_live

    @property
    def exit_code(self) -> int | None:
        """0 where the run is through, None before the end of the job, or where nobody knows of it."""
        if self.is_live or not self.is_certain:
            return None
        if self.facts["state"] == "finished" and self.state in ("completed", "unknown"):
            return 0
        run_code = self.folder.read_status().get("exit_code")
        code = run_code if isinstance(run_code, int) else self.scheduled.exit_code
        return code or (EXIT_STOPPED if self.record.cancelled else EXIT_FAILED)


def below(roots: Iterable[Path], *, may_be_silent: bool = False) -> list[Job]:
    """Every job below the folders, in the order of submission.

    Raises ValueError where SLURM does not answer; where it `may_be_silent`, a line says so, and no job is certain that
    has not ended.
    """
    records = {}
    for root in roots:
        for run in discovery.scan(root).values():
            path = run.folder.path.resolve()
            if path in records:
                continue
            try:
                read = record.read(RunFolder(path))
            except (OSError, ValueError) as error:
                print(f"lockstep: {error}", file=sys.stderr)
                continue
            if read is not None:
                records[path] = DiscoveredRun(run.id, shown(path), RunFolder(path)), read
    ordered = sorted(records.values(), key=lambda pair: (pair[1].submitted, _number(pair[1].id)))
    return _joined(ordered, may_be_silent=may_be_silent)


def again(jobs: Sequence[Job]) -> list[Job]:
    """The same jobs as they are now, perhaps submitted again. Those that were deleted are left out."""
    read = [(job.run, record.read(job.folder)) for job in jobs]
    return _joined([(run, job_record) for run, job_record in read if job_record is not None])


def of(folder: RunFolder) -> Job | None:
    """The job of a run, None where nobody submitted it. Raises ValueError as `record.read` and `scheduler.states`."""
    read = record.read(folder)
    return None if read is None else _joined([(DiscoveredRun("", shown(folder.path), folder), read)])[0]


def need_certain(jobs: Iterable[Job]) -> None:
    """Raise ValueError for a job that may wait or run where SLURM cannot be asked."""
    for job in jobs:
        if not job.is_certain:
            raise ValueError(
                f"job {job.id}: SLURM cannot be asked from here: use a login node, or remove "
                f"{shown(job.folder.job_file)} if there is no such job any more."
            )


def chosen(jobs: Sequence[Job], names: Sequence[str]) -> list[Job]:
    """The jobs of ids, of arrays, and of run folders or folders that hold them; `latest` is the newest job.

    Raises ValueError for a name that is of none, with those there are.
    """
    picked: dict[str, Job] = {}
    for name in names:
        path = Path(name).resolve()
        meant = [job for job in jobs if name in (job.id, job.id.partition("_")[0])]
        meant = meant or [job for job in jobs if job.folder.path.is_relative_to(path)]
        if not meant and name == "latest":
            meant = list(jobs[-1:])
        if not meant:
            newest = ", ".join(job.id for job in list(reversed(jobs))[:20])
            raise ValueError(f"{name} is no job: known are {newest or 'none, submit one with cluster=slurm'}.")
        picked |= {job.id: job for job in meant}
    return list(picked.values())


def _joined(read: Sequence[tuple[DiscoveredRun, Record]], *, may_be_silent: bool = False) -> list[Job]:
    ids = [job_record.id for _, job_record in read if job_record.engine == "slurm"]
    is_slurm_here = scheduler.is_here()
    known: dict[str, Scheduled] = {}
    try:
        known = scheduler.states(ids) if ids and is_slurm_here else {}
    except ValueError as error:
        if not may_be_silent:
            raise
        is_slurm_here = False
        print(f"lockstep: {error}: what is listed is what the runs say themselves.", file=sys.stderr)
    joined = []
    for run, job_record in read:
        facts = discovery.look(run)
        scheduled = known.get(job_record.id) or _without_scheduler(run.folder, job_record, facts)
        is_certain = job_record.engine == "local" or is_slurm_here or _has_ended(run.folder, facts)
        joined.append(Job(run, job_record, facts, scheduled, is_certain))
    return joined


def _without_scheduler(folder: RunFolder, job: Record, facts: dict[str, Any]) -> Scheduled:
    """The state of a job in the background, or of one that SLURM has forgotten, by the status of its run."""
    is_here = job.engine == "local" and job.host == socket.gethostname()
    has_job = folder.has_job_here() if is_here else None
    if facts["state"] in LIVE_STATES if has_job is None else has_job:
        return Scheduled("running", nodes=job.host if job.engine == "local" else "")
    state = "cancelled" if job.cancelled else ENDED.get(facts["state"], "unknown")
    return Scheduled("completed" if facts["state"] == "finished" else state)


def _has_ended(folder: RunFolder, facts: dict[str, Any]) -> bool:
    """Whether the job of a run left with a code, and was not requeued."""
    return facts["state"] in ENDED and isinstance(folder.read_status().get("exit_code"), int)


def _number(job: str) -> int:
    """The place of a job in its array, 0 for a job without one."""
    place = job.partition("_")[2]
    return int(place) if place else 0


def plain(job: Job) -> dict[str, Any]:
    """Everything that is known of a job, as values for JSON."""
    return {
        "id": job.id,
        "state": job.state,
        "reason": printable(job.reason),
        "nodes": job.scheduled.nodes,
        "elapsed_s": job.scheduled.elapsed_s,
        "restarts": job.scheduled.restarts,
        "exit_code": job.exit_code,
        "run": {key: value for key, value in job.facts.items() if key != "id"} | {"path": os.fspath(job.folder.path)},
        "record": {key: value for key, value in vars(job.record).items() if key != "id"},
    }
