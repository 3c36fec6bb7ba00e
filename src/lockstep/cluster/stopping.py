"""`lockstep stop`: stops a run, or all trials of a sweep, here and in jobs."""

from pathlib import Path

from lockstep.cluster import jobs
from lockstep.runs import naming, permissions
from lockstep.runs.files import print_result
from lockstep.runs.folder import LIVE_STATES, SWEEP, RunFolder

STOP_IT = "to stop it all the same, create a file STOP in it"


def stop(run: str, reason: str) -> int:
    """Request a checkpoint and the end of a run or a sweep.

    Returns the exit code. Raises ValueError.
    """
    is_sweep, live_jobs = (Path(run) / SWEEP).is_file(), []
    folder = RunFolder(Path(run).resolve()) if is_sweep else naming.find(run)
    path = naming.display_path(folder.path)
    permissions.need_made_here(folder, STOP_IT)
    if is_sweep:
        recorded_jobs = jobs.read_jobs(jobs.recorded_jobs([folder.path]))
        live_jobs = [job for job in recorded_jobs if job.is_live]
        target, subject = f"the sweep in {path}", "each trial"
        if not live_jobs and folder.is_locked() is False:
            raise ValueError(f"{target} is not running")
    else:
        state = "starting" if folder.is_locked() else "not started"
        state = folder.read_status().get("state", state)
        target, subject = path, "it"
        if state not in LIVE_STATES:
            raise ValueError(f"{target} is not running: {state}")
    # This comes first, because a search would draw further trials otherwise.
    folder.request_stop(reason)
    jobs.stop(live_jobs, reason)
    print(f"Stop requested for {target}; {subject} saves a checkpoint first.")
    print_result({"path": str(folder.path), "jobs": [job.id for job in live_jobs]})
    return 0
