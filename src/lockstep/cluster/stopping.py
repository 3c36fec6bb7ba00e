"""`lockstep stop`: stops a run, or all trials of a sweep, here and in jobs."""

from pathlib import Path

from lockstep.cluster import jobs
from lockstep.runs import naming, permissions
from lockstep.runs.files import answer
from lockstep.runs.folder import LIVE_STATES, SWEEP, RunFolder

STOP_IT = "to stop it all the same, create a file STOP in it"


def stop(run: str, reason: str) -> int:
    """Request a checkpoint and the end of a run or a sweep.

    Returns the exit code. Raises ValueError.
    """
    live_jobs: list[jobs.Job] = []
    if (Path(run) / SWEEP).is_file():
        folder = RunFolder(Path(run).resolve())
        permissions.need_made_here(folder, STOP_IT)
        live_jobs = [
            job for job in jobs.read_jobs(jobs.recorded_jobs([folder.path])) if job.is_live
        ]
        is_running, state = bool(live_jobs) or folder.is_locked() is not False, ""
        target, subject = f"the sweep in {naming.display_path(folder.path)}", "each trial"
    else:
        folder = naming.find(run)
        permissions.need_made_here(folder, STOP_IT)
        state = folder.read_status().get(
            "state", "starting" if folder.is_locked() else "not started"
        )
        target, subject, is_running = naming.display_path(folder.path), "it", state in LIVE_STATES
    if not is_running:
        raise ValueError(f"{target} is not running{f': {state}' if state else ''}")
    # This comes first, because a search would draw further trials otherwise.
    folder.request_stop(reason)
    jobs.stop(live_jobs, reason)
    print(f"Stop requested for {target}; {subject} saves a checkpoint first.")
    answer({"path": str(folder.path), "jobs": [job.id for job in live_jobs]})
    return 0
