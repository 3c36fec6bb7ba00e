"""All jobs below a folder: their records, their scheduler states, and the status of their runs."""

import os
import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.cluster import record, scheduler
from lockstep.cluster.record import JobRecord
from lockstep.cluster.scheduler import Scheduled
from lockstep.monitoring import formatting
from lockstep.runs import discovery, permissions
from lockstep.runs.files import JsonObject, read_json
from lockstep.runs.folder import BENCHMARK, EXIT_FAILED, EXIT_STOPPED, JOB, LIVE_STATES, RunFolder
from lockstep.runs.naming import quote_path
from lockstep.system.terminal import printable
from lockstep.system.text import plural

# States of a job that its scheduler has forgotten, by the state of its run.
ENDED = {"finished": "completed", "failed": "failed", "stopped": "stopped", "pruned": "stopped"}

# These files have the result of a run, a benchmark, a sweep and an evaluation.
RESULTS = ("summary.json", BENCHMARK, "table.json", "scores.json")

Recorded = tuple[RunFolder, JobRecord]


@dataclass(frozen=True)
class Job:
    """A job: its folder, its record, the facts of its run, and its state in the scheduler."""

    folder: RunFolder
    record: JobRecord
    facts: JsonObject
    scheduled: Scheduled

    @property
    def id(self) -> str:
        """The id of the job, such as 17, 17_3 or local-3fa9c1."""
        return self.record.id

    @property
    def state(self) -> str:
        """The displayed state.

        It is pending, running, completed, failed, cancelled, timeout, ..., or unknown.
        """
        return self.scheduled.state

    @property
    def reason(self) -> str:
        """The reason why the job is waiting, or the report of its run, or an empty text."""
        run_reason, state = self.facts.get("reason", ""), self.facts["state"]
        if not self.is_live and state in ENDED and run_reason:
            return run_reason
        if self.scheduled.reason or not self.is_live:
            return self.scheduled.reason or run_reason
        # The status of a run that has not begun describes its submission.
        return f"{state}: {run_reason}" if run_reason and state in LIVE_STATES else ""

    @property
    def is_live(self) -> bool:
        return self.scheduled.is_live

    @property
    def result(self) -> JsonObject | None:
        """The summary of the run, or the result file of the command, or None before its end."""
        if self.is_live:  # A benchmark writes its file after each environment.
            return None
        results = (read_json(self.folder.path / file_name) for file_name in RESULTS)
        return next(filter(None, results), None)

    @property
    def end_code(self) -> int:
        """The exit code of a job that has ended, or 1 if it is unknown."""
        return EXIT_FAILED if self.exit_code is None else self.exit_code

    @property
    def exit_code(self) -> int | None:
        """The exit code of the job.

        It is 0 if the run is finished. It is None if the job has not ended or its end is unknown.
        """
        if self.is_live or self.state == "unknown":
            return None
        if self.facts["state"] == "finished" and self.state == "completed":
            return 0
        run_code = self.folder.read_status().get("exit_code")
        code = run_code if isinstance(run_code, int) else self.scheduled.exit_code
        return code or (EXIT_STOPPED if self.record.cancelled else EXIT_FAILED)


def recorded_jobs(roots: Iterable[Path]) -> list[Recorded]:
    """Find every record of a job below the folders, in the order of submission."""
    records: dict[Path, Recorded] = {}
    for root in roots:
        for run in discovery.scan(root, file=JOB).values():
            folder = RunFolder(run.folder.path.resolve())
            try:
                job_record = record.read(folder)
            except (OSError, ValueError) as error:
                print(f"lockstep: {error}", file=sys.stderr)
                continue
            if job_record is not None:
                records[folder.path] = (folder, job_record)
    return sorted(
        records.values(),
        key=lambda pair: (pair[1].submitted, int(pair[1].id.partition("_")[2] or 0)),
    )


def select_jobs(records: Sequence[Recorded], names: Sequence[str]) -> list[Recorded]:
    """Select jobs by the id of a job or array, by a run folder, or by a folder of runs.

    The name `latest` selects the newest job. An id from before a requeue selects the present job.
    Raises ValueError for an unknown name, with the known ones.
    """
    jobs_by_id: dict[str, Recorded] = {}
    for name in names:
        path = Path(name).resolve()
        ids = [{job_record.id, *job_record.earlier} for _, job_record in records]
        ids = [job_ids | {job_id.partition("_")[0] for job_id in job_ids} for job_ids in ids]
        matches = [pair for pair, job_ids in zip(records, ids, strict=True) if name in job_ids]
        matches = matches or [pair for pair in records if pair[0].path.is_relative_to(path)]
        if not matches and name == "latest":
            matches = records[-1:]
        if not matches:
            newest_ids = [job_record.id for _, job_record in records[:-21:-1]]
            known_jobs = ", ".join(newest_ids) or "none, submit one with cluster=slurm"
            raise ValueError(f"{name} is not a job. Known jobs: {known_jobs}.")
        jobs_by_id |= {pair[1].id: pair for pair in matches}
    return list(jobs_by_id.values())


def read_jobs(records: Sequence[Recorded], *, is_slurm_needed: bool = True) -> list[Job]:
    """Return the jobs with their present states.

    If SLURM does not answer, raise ValueError if `is_slurm_needed`, else print the error.
    """
    ids = [job_record.id for _, job_record in records if job_record.engine == "slurm"]
    states, silence, is_complete = {}, None, True
    try:
        states = scheduler.states(ids)
    except ValueError as error:
        silence = error
    jobs = []
    for folder, job_record in records:
        # The status is read after the states: an ended job has written its last status by then.
        facts = discovery.read_run_folder(folder)
        is_sure = silence is None or job_record.id not in ids
        if not is_sure and facts["state"] in ENDED:
            # A job that exited with a code is not requeued.
            is_sure = isinstance(folder.read_status().get("exit_code"), int)
        if not is_sure and is_slurm_needed:
            raise ValueError(f"the state of job {job_record.id} is unknown: {silence}") from silence
        is_complete = is_complete and is_sure
        scheduled = states.get(job_record.id) or _unscheduled_state(
            folder, job_record, facts["state"], is_sure=is_sure
        )
        jobs.append(Job(folder, job_record, facts, scheduled))
    if not is_complete:
        print(f"lockstep: {silence} The states below are those of the runs.", file=sys.stderr)
    return jobs


def jobs_of(folders: Iterable[RunFolder]) -> list[Job]:
    """Return the present jobs of those runs that were submitted.

    Raises ValueError like `record.read` and `read_jobs`.
    """
    records = [(folder, record.read(folder)) for folder in folders]
    return read_jobs([(folder, job_record) for folder, job_record in records if job_record])


def cancel(jobs: Sequence[Job]) -> None:
    """Cancel live jobs. Those that run save a checkpoint first.

    Raises ValueError or PermissionError if that is rejected.
    """
    for job in jobs:
        permissions.need_made_here(job.folder, "cancel it where it was submitted")
    if slurm_ids := [job.id for job in jobs if job.record.engine == "slurm"]:
        # Running jobs receive SIGTERM and have time to save.
        scheduler.call("scancel", *slurm_ids)
    for job in jobs:
        # It is recorded now, because the job may be requeued after its checkpoint.
        job.folder.write_job({**job.folder.read_job(), "cancelled": True})
        if job.record.engine == "local":
            if job.record.host != socket.gethostname() or job.record.pid is None:
                job.folder.request_stop("lockstep jobs cancel")
            elif job.folder.has_job_here():  # The pid is not reused while the job is live.
                os.kill(job.record.pid, signal.SIGTERM)
        if job.state == "pending":
            job.folder.update_status(reason="cancelled")


def stop(jobs: Sequence[Job], reason: str) -> None:
    """Stop the runs of live jobs as `lockstep stop` does.

    A job whose run would remove STOP when it begins is cancelled.
    """
    begun_jobs = [
        job for job in jobs if job.state == "running" and job.facts["state"] in LIVE_STATES
    ]
    for job in begun_jobs:
        job.folder.request_stop(reason)
    cancel([job for job in jobs if job not in begun_jobs])


def _unscheduled_state(
    folder: RunFolder, job: JobRecord, run_state: str, *, is_sure: bool
) -> Scheduled:
    """Return the state of a job that the scheduler does not know, by the status of its run.

    Such a job is in the background, or SLURM has forgotten it.
    """
    is_local = job.engine == "local"
    is_here = is_local and job.host == socket.gethostname()
    has_job = folder.has_job_here() if is_here else None
    is_running = run_state in LIVE_STATES if has_job is None else has_job
    if is_running:
        return Scheduled("running", nodes=job.host if is_local else "")
    if run_state != "finished" and not is_sure:
        return Scheduled("unknown")
    if run_state != "finished" and job.cancelled:
        return Scheduled("cancelled")
    end_state = "unknown" if has_job is None else "failed"
    return Scheduled(ENDED.get(run_state, end_state))


def resource_text(job: JobRecord) -> str:
    nodes, workers = plural(job.num_nodes, "node"), plural(job.workers_per_node, "worker")
    return f"{nodes}, {workers} and {plural(job.gpus_per_node, 'GPU')} per node"


def follow_command(job: JobRecord) -> str:
    return f"tail -F {quote_path(Path(job.log))}"


def job_facts(job: Job) -> JsonObject:
    return {
        "id": job.id,
        "state": job.state,
        "reason": printable(job.reason),
        "nodes": job.scheduled.nodes,
        "elapsed_s": job.scheduled.elapsed_s,
        "restarts": job.scheduled.restarts,
        "exit_code": job.exit_code,
        "run": formatting.plain_facts(job.facts, job.folder.path),
        "record": {key: value for key, value in vars(job.record).items() if key != "id"},
    }
