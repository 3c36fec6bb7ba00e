"""The trials of a sweep as one array of jobs on a cluster: submitted, and looked at again by the same command."""

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
    """What would be submitted for so many trials of a sweep in `path`. Nothing is written."""
    return submission.script(RunFolder(path.resolve()), config, name=_name(config), num_runs=num_trials)


def check(config: Config) -> None:
    """Raise ConfigError for a cluster that takes no sweeps."""
    if config.cluster.name == "local":
        hint = "leave it out and start the sweep with nohup ... &, the same command goes on with it"
        raise ConfigError([f"cluster=local trains one run in the background, no sweep: {hint}"])


def submit(ledger: Ledger, made: Sequence[tuple[Trial, Config]], objective: Objective) -> None:
    """Submit the trials that are neither done nor on their way, and show the table. Raises ConfigError."""
    config = made[0][1]
    try:
        states = {job.folder.path: job.state for job in jobs.below([ledger.path]) if job.is_live}
    except ValueError as error:  # SLURM does not answer
        raise ConfigError([str(error)]) from error
    live: dict[int, str] = {}
    for trial, _ in made:
        state = states.get(trial.folder.path.resolve(), trial.state)
        if trial.folder.path.resolve() in states or state in LIVE_STATES:  # also without a job, as a resume elsewhere
            live[trial.number] = state
    left = [(t, c) for t, c in made if t.state not in DONE and t.number not in live]
    array = ""
    ledger.write()  # also where nothing is submitted the same command goes on with these trials
    if left:
        with submission.interruptible():
            records = submission.submit_all(
                [trial.folder for trial, _ in left],
                [left_config for _, left_config in left],
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


def _name(config: Config) -> str:
    return config.sweep.name or config.run_name


def _next(ledger: Ledger, num_submitted: int, num_live: int, array: str) -> str:
    """What was submitted, and what there is to be typed now."""
    where = quoted(ledger.path)
    if num_submitted:
        text = f"Submitted {plural(num_submitted, 'trial')} as job {array}. The same command shows how far they are."
    elif num_live:
        text = "Nothing to submit: the rest is on its way."
    else:
        return "All trials are done. Measure the best one on the test set by the same command without cluster=..."
    words = [f"lockstep jobs list {where}", f"lockstep jobs wait {where}", f"lockstep jobs cancel {where}"]
    return "\n  ".join([text, *words, f"lockstep board --logdir {where}"])
