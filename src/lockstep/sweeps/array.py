"""The trials of a sweep as one array of jobs: submitted, and shown or submitted again by the same command."""

from collections.abc import Sequence
from pathlib import Path

from lockstep.cluster import jobs, submission
from lockstep.config.errors import ConfigError
from lockstep.config.schema import Config
from lockstep.runs.folder import LIVE_STATES, RunFolder
from lockstep.runs.naming import quoted, shown
from lockstep.sweeps import views
from lockstep.sweeps.ledger import DONE, Ledger, Trial
from lockstep.sweeps.table import Objective, table, write
from lockstep.system.wording import plural


def script(path: Path, config: Config, num_trials: int) -> str:
    """Return the script that would be submitted for the trials of a sweep in `path`. Nothing is written."""
    return submission.script(RunFolder(path.resolve()), config, name=_name(config), num_runs=num_trials)


def check(config: Config) -> None:
    """Raise ConfigError for a cluster that runs no sweeps."""
    if config.cluster.name == "local":
        hint = "remove it and start the sweep with nohup ... &, the same command resumes it"
        raise ConfigError([f"cluster=local trains one run in the background, no sweep: {hint}"])


def submit(ledger: Ledger, made: Sequence[tuple[Trial, Config]], objective: Objective) -> None:
    """Submit the trials that are neither done nor live, and show the table. Raises ConfigError."""
    config = made[0][1]
    live = {trial.number: trial.state for trial, _ in made if trial.state in LIVE_STATES}  # with or without a job
    live |= {trial.number: job.state for trial, job in live_jobs(ledger)}
    left = [(trial, each) for trial, each in made if trial.state not in DONE and trial.number not in live]
    array = ""
    ledger.write()  # even if nothing is submitted, so that the same command resumes these trials
    if left:
        with submission.interruptible():
            records = submission.submit_all(
                [trial.folder for trial, _ in left],
                [each for _, each in left],
                base=RunFolder(ledger.path),
                name=_name(config),
                task="train" if config.sweep.test == "all" else "train-without-test",
            )
            for (trial, _), record in zip(left, records, strict=True):
                trial.device, array = f"job {record.id}", record.id.partition("_")[0]
                live[trial.number] = "submitted"
            ledger.write()
    sweep_table = table(ledger, [objective], live, monitored=objective)
    write(ledger, sweep_table)
    if not config.silent:
        views.show(sweep_table, shown(ledger.path))
        print(_next(ledger, len(left), len(live), array))


def live_jobs(ledger: Ledger) -> list[tuple[Trial, jobs.Job]]:
    """Return the trials whose jobs wait or run. Raises ConfigError if SLURM does not answer."""
    try:
        found = {job.folder.path: job for job in jobs.look(jobs.recorded([ledger.path]))}
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    pairs = [(trial, found.get(trial.folder.path.resolve())) for trial in ledger.trials]
    return [(trial, job) for trial, job in pairs if job is not None and job.is_live]


def _name(config: Config) -> str:
    return config.sweep.name or config.run_name


def _next(ledger: Ledger, num_submitted: int, num_live: int, array: str) -> str:
    """Describe the submission, and list the commands for it."""
    where = quoted(ledger.path)
    if num_submitted:
        text = f"Submitted {plural(num_submitted, 'trial')} as job {array}. The same command shows their progress."
    elif num_live:
        text = "Nothing to submit: the other trials wait or run."
    else:
        return "All trials are done. Measure the best one on the test set by the same command without cluster=..."
    commands = [f"lockstep jobs {command} {where}" for command in ("list", "wait", "cancel")]
    return "\n  ".join([text, *commands, f"lockstep board --logdir {where}"])
