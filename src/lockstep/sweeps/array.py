"""The trials of a sweep as one array of jobs.

A sweep can also be one job in the background of this machine.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.cluster import submission
from lockstep.cluster.jobs import Job
from lockstep.config.schema.configuration import Config
from lockstep.runs.folder import LIVE_STATES, RunFolder
from lockstep.runs.naming import hydra_text, quote_path
from lockstep.sweeps import views
from lockstep.system.text import plural
from lockstep.trials import out_of_fold
from lockstep.trials.ledger import DONE, Ledger, Trial, group_of
from lockstep.trials.results import monitored_objective
from lockstep.trials.table import table, write

TEST_LATER = "Test the best setting by the same command without cluster=..."


def script(path: Path, config: Config, num_trials: int) -> str:
    """Return the script that would be submitted for the trials of a sweep in `path`.

    Nothing is written.
    """
    folder = RunFolder(path.resolve())
    return submission.script(folder, config, submission.Work(_name(config)), num_trials)


def start_background(path: Path, config: Config, arguments: Sequence[str]) -> None:
    """Start a command without `cluster` in the background, with `path` as its folder.

    Raises ConfigError.
    """
    folder = RunFolder(path.resolve())
    submission.refuse_live(folder)
    overrides = [
        argument
        for argument in arguments
        if group_of(argument) != "cluster" and argument not in ("--json", "--trust")
    ]
    command = submission.add_ignored_conf(
        [
            "train",
            *overrides,
            "cluster=none",
            f"hydra.sweep.dir={hydra_text(str(folder.path))}",
        ]
    )
    submission.submit(folder, config, submission.Work(_name(config), "command", command, True))


def submit(ledger: Ledger, trials: Sequence[Trial], configs: Mapping[int, Config]) -> None:
    """Submit the trials that are neither done nor live, and show the table.

    `configs` maps trial numbers to configurations. Raises ConfigError.
    """
    config = configs[trials[0].number]
    # A live trial may have a job or not.
    live_states = {trial.number: trial.state for trial in trials if trial.state in LIVE_STATES}
    live_states |= {number: job.state for number, job in live_jobs(ledger).items()}
    queue = [
        trial for trial in trials if trial.state not in DONE and trial.number not in live_states
    ]
    array = ""
    # The ledger is written even if nothing is submitted, so that the same command resumes these
    # trials.
    ledger.write()
    if queue:
        task = "train" if config.sweep.test == "all" else "train-without-test"
        with submission.interruptible():
            records = submission.submit_all(
                [(trial.folder, configs[trial.number]) for trial in queue],
                submission.Work(_name(config), task),
                base=RunFolder(ledger.path),
            )
            for trial, record in zip(queue, records, strict=True):
                trial.device, array = f"job {record.id}", record.id.partition("_")[0]
                live_states[trial.number] = "submitted"
            ledger.write()
    sweep_table = table(ledger, monitored_objective(config), live_states)
    write(ledger, sweep_table)
    fold_lines = out_of_fold.join(ledger, sweep_table)
    if not config.silent:
        views.show_table(sweep_table, ledger.path)
        print(*fold_lines, _next(ledger, len(queue), len(live_states), array), sep="\n")


def live_jobs(ledger: Ledger) -> dict[int, Job]:
    """Return the pending and running jobs by the numbers of their trials.

    Raises ConfigError if SLURM does not answer.
    """
    numbers = {trial.folder: trial.number for trial in ledger.trials}
    return {numbers[job.folder]: job for job in submission.live_jobs(numbers)}


def _name(config: Config) -> str:
    return config.sweep.name or config.run_name


def _next(ledger: Ledger, num_submitted: int, num_live: int, array: str) -> str:
    """Describe the submission, and list the commands for it."""
    path = quote_path(ledger.path)
    if num_submitted:
        message = (
            f"Submitted {plural(num_submitted, 'trial')} as job {array}. "
            "The same command shows their progress."
        )
    elif num_live:
        message = "Nothing to submit: all remaining trials are pending or running."
    else:
        return f"All trials are done. {TEST_LATER}"
    commands = [f"lockstep jobs {command} {path}" for command in ("list", "wait", "cancel")]
    return "\n  ".join([message, *commands, f"lockstep board --logdir {path}"])
