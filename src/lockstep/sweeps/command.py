"""A sweep on this machine, from its first trial to its table."""

import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lockstep.assembly import checkpoints
from lockstep.cluster import submission
from lockstep.cluster.jobs import Job
from lockstep.config import build
from lockstep.config.errors import ConfigError, config_error, file_error
from lockstep.config.saved import config_file, project
from lockstep.config.saved.resume import keep_resolved
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.key_scopes import FREE_IN_A_RESUMED_SWEEP, scope
from lockstep.launch import runner
from lockstep.runs import permissions
from lockstep.runs.files import print_result
from lockstep.runs.folder import EXIT_FAILED, JOURNAL, LIVE_STATES, SWEEP, RunFolder
from lockstep.runs.naming import display_path, quote_path
from lockstep.sweeps import array, devices, job_pool, views
from lockstep.sweeps.course import Grid, SweepLoop
from lockstep.sweeps.devices import Devices, Machine
from lockstep.sweeps.pool import Pool
from lockstep.system import hardware
from lockstep.system.redaction import redact
from lockstep.system.text import plural
from lockstep.system.trees import leaves
from lockstep.trials import out_of_fold
from lockstep.trials.ledger import DONE, Ledger, Trial, need_own, trial_overrides
from lockstep.trials.results import monitored_objective
from lockstep.trials.table import Table, table, table_facts, write

# Composes a trial: (overrides, number) -> (config, subfolder)
Compose = Callable[[Sequence[str], int], tuple[Config, str]]


class Sweep(NamedTuple):
    """A sweep, the settings that its trials share, and the arguments of its command."""

    ledger: Ledger
    config: Config
    arguments: Sequence[str]


def prepare_trial(
    ledger: Ledger,
    overrides: Sequence[str],
    compose: Compose,
) -> tuple[Trial, Config]:
    """Return the known or new trial of some overrides, and its configuration.

    The configuration is saved in the folder of the trial. Raises ConfigError if the known trial has
    other values.
    """
    identity = trial_overrides(overrides)
    trial = ledger.find(identity)
    config, subdir = compose(overrides, ledger.next_number if trial is None else trial.number)
    if config.scale_with_workers and config.trainer.devices == "auto":
        raise config_error(
            "missing",
            "scale_with_workers=true",
            "needs a number of workers",
            "set trainer.devices=...",
        )
    config = build.resolve_config(config)
    # A killed command may have left the files of another trial.
    is_new = trial is None or not trial.folder.config.exists()
    trial = trial or ledger.add(identity, subdir)
    folder = trial.folder
    if not is_new:
        saved_config = config_file.load(folder.config)
        config = Config.model_validate(keep_resolved(config_file.to_tree(config), saved_config))
        _check_same(ledger, trial, saved_config, submission.job_config(config))
    folder.path.mkdir(parents=True, exist_ok=True)
    # A job may read the files, and its submission writes them again.
    if is_new or (config.cluster.name == "none" and trial.state not in (*DONE, *LIVE_STATES)):
        runner.save(
            folder,
            submission.job_config(config),
            trial.overrides,
            checkpoints.initial_checkpoint(config.init_from),
        )
    return trial, config


def _check_same(ledger: Ledger, trial: Trial, saved_config: Config, config: Config) -> None:
    """Raise ConfigError if a trial would compute something different than before.

    The number of workers may change.
    """
    tree = keep_resolved(config_file.to_tree(config), saved_config)
    before = dict(leaves(config_file.to_tree(saved_config), ""))
    after = dict(leaves(tree, ""))
    for key in before | after:
        if before.get(key) != after.get(key) and scope(key, tree) not in FREE_IN_A_RESUMED_SWEEP:
            raise config_error(
                "changed",
                f"trial {trial.number} of {display_path(ledger.path)}",
                f"was made with another {key}",
                "sweep.name=... starts another sweep",
            )


def check_study(
    ledger: Ledger,
    overrides: Sequence[str],
    compose: Compose,
) -> None:
    """Raise ConfigError if a resumed study would change.

    It would then draw from another space, or train something else.
    """
    if not ledger.trials:
        return
    if changes := {*trial_overrides(ledger.command)} ^ {*trial_overrides(redact(overrides))}:
        raise config_error(
            "changed",
            display_path(ledger.path),
            f"was started with other settings, see {min(changes)}",
            "choose another sweep.name",
        )
    trial = ledger.trials[0]
    if trial.folder.config.exists():
        config = build.resolve_config(compose(trial.overrides, trial.number)[0])
        _check_same(ledger, trial, config_file.load(trial.folder.config), config)


def run_sweep(
    sweep: Sweep, source: Grid, configs: dict[int, Config], *, total: int, num_done: int
) -> int:
    """Run the trials of a source, test the best ones, and write and show the table.

    Returns the exit code. `configs` maps trial numbers to configurations, and may grow. Of `total`
    trials, `num_done` are done.
    """
    ledger, config, arguments = sweep
    is_submitted = config.cluster.name != "none"
    live_jobs = _live_jobs(ledger, is_submitted=is_submitted)
    if is_submitted:
        pool = job_pool.JobPool(ledger, configs, live_jobs)
        num_parallel = int(config.launcher.parallel)
    else:
        pool, num_parallel = _pool_here(configs, config, total)
    table_of = partial(
        table, ledger, monitored_objective(config), is_search=config.search is not None
    )
    view = views.View(table_of, total, is_silent=config.silent)
    task = "train" if config.sweep.test == "all" else "train-without-test"
    ledger.folder.clear_stop()  # A killed sweep may have left the flag.
    ledger.write()

    def print_unless_silent(line: str) -> None:
        if line and not config.silent:
            print(line, flush=True)

    print_unless_silent(_first_line(ledger, num_done, total, num_parallel))
    try:
        code = SweepLoop(ledger, source, pool, view, num_parallel, task).run()
    finally:
        write(ledger, table_of({}))
    print_unless_silent(source.note)
    tests, no_test_reason = [], ""
    if not is_submitted:
        tests, no_test_reason = _trials_to_test(table_of({}), config)
    if tests:
        for trial in tests:  # The trial may be from an earlier command.
            project.record(trial.folder)
        group = " of the best setting" if config.sweep.test == "best" else ""
        print_unless_silent(f"Testing {plural(len(tests), 'trial')}{group} ...")
        view = views.View(table_of, total, is_silent=True)
        code = SweepLoop(ledger, Grid(tests), pool, view, num_parallel, "test").run() or code
    sweep_table = table_of({})
    write(ledger, sweep_table)
    fold_lines = out_of_fold.join(ledger, sweep_table)
    if not config.silent:
        views.show_table(sweep_table, ledger.path)
    print_result({"path": str(ledger.path), **table_facts(ledger, sweep_table)})
    print_unless_silent("\n".join(fold_lines))
    if is_submitted and pool.trials:
        print_unless_silent(job_pool.remaining_text(ledger, len(pool.trials), arguments))
    elif code:
        print_unless_silent("Not all trials are done: the same command again resumes the sweep.")
    elif is_submitted and config.sweep.test == "best":
        print_unless_silent(f"All trials are done. {array.TEST_LATER}")
    if no_test_reason and not code:
        print(no_test_reason, file=sys.stderr, flush=True)
        return EXIT_FAILED
    return code


def _pool_here(configs: Mapping[int, Config], config: Config, total: int) -> tuple[Pool, int]:
    """Return the pool of this machine, and the number of trials that run in parallel.

    Raises ConfigError.
    """
    machine, all_configs = machine_here(), list(configs.values()) or [config]
    num_parallel = devices.num_parallel(config.launcher, machine, total, all_configs)
    for trial_config in configs.values():
        devices.need(trial_config, machine, num_parallel)

    def need_of(trial: Trial) -> devices.Need:
        # The trial may be from an earlier command.
        trial_config = configs.get(trial.number) or config_file.load(trial.folder.config)
        return devices.need(trial_config, machine, num_parallel)

    return Pool(Devices(machine, num_parallel), need_of), num_parallel


def _first_line(ledger: Ledger, num_done: int, total: int, num_parallel: int) -> str:
    path, trials = display_path(ledger.path), plural(total, "trial")
    verb = "is" if total == 1 else "are"
    if num_done >= total:
        return (
            f"All {plural(num_done, 'trial')} of {path} {verb} done: sweep.name=... "
            "starts another sweep."
        )
    schedule = f"{num_parallel} in parallel" if num_parallel > 1 else "one at a time"
    if any(trial.state != "queued" for trial in ledger.trials):
        return f"Resuming {path}: {num_done} of {trials} {verb} done; the others {schedule}."
    return f"A sweep of {trials}, {schedule}, in {path}"


def _trials_to_test(sweep_table: Table, config: Config) -> tuple[list[Trial], str]:
    """Return the trials to test now, and the reason if the required test is not possible."""
    unfinished_rows = [row for row in sweep_table.rows if row.state not in (*DONE, "failed")]
    if config.sweep.test == "none":
        return [], ""
    if unfinished_rows:
        states = ", ".join(f"trial {row.trial.number} is {row.state}" for row in unfinished_rows)
        hint = "Resume by the command that started them, or use sweep.test=none."
        return [], f"No test at the end: {states}. {hint}"
    rows = [row for row in sweep_table.rows if row.state == "finished"]
    best = sweep_table.best
    if config.sweep.test == "best" and best is None:
        hint = "lockstep eval FOLDER/TRIAL tests one trial."
        return (
            [],
            "No test at the end: no setting has a value of "
            f"{sweep_table.objective.name} in all of its trials. {hint}",
        )
    if config.sweep.test == "best" and best is not None:
        rows = [row for row in rows if row.trial.number in best.trials]
    return [row.trial for row in rows if not row.tests], ""


def _live_jobs(ledger: Ledger, *, is_submitted: bool) -> dict[int, Job]:
    """Return the live jobs by trial.

    Raises ConfigError for a live job if no job should run, and for trials of other processes.
    """
    live_jobs = array.live_jobs(ledger)
    if live_jobs and not is_submitted:
        raise config_error(
            "busy",
            f"trial {min(live_jobs)} of {display_path(ledger.path)}",
            "has a pending or running job",
            f"wait for it, or lockstep jobs cancel {quote_path(ledger.path)}; "
            "cluster=slurm shows its state",
        )
    for trial in ledger.trials:
        if trial.number not in live_jobs and trial.state in LIVE_STATES:
            raise runner.busy_error(trial.folder, "trained")
    return live_jobs


def machine_here() -> Machine:
    num_gpus = hardware.num_visible_gpus()
    all_gpus = ",".join(map(str, range(num_gpus)))
    visible_gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or all_gpus).split(",")
    gpu_names = [gpu_name.strip() for gpu_name in visible_gpus[:num_gpus]]
    # A quota does not name cores. Random ones are used, because otherwise all containers of a
    # machine would use the first ones.
    return Machine(
        tuple(gpu_names), tuple(sorted(random.sample(hardware.cores(), hardware.num_cores())))
    )


@contextlib.contextmanager
def open_ledger(path: Path, name: str | None, command: Sequence[str]) -> Iterator[Ledger]:
    """Create or open the ledger of a sweep, and lock its folder inside the block.

    Raises ConfigError.
    """
    folder = RunFolder(path.resolve())
    if not any(
        file.exists() for file in (folder.path / SWEEP, folder.path / JOURNAL, folder.facts_file)
    ):
        try:
            permissions.open_new(folder.path).claim()
        except PermissionError as error:
            raise ConfigError(file_error(error)) from error
    need_own(folder)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(folder.lock())
            ledger = Ledger.open(folder.path, name, redact(command))
        except BlockingIOError as error:
            raise runner.busy_error(folder, "run") from error
        # Files of trials are kept, because other processes may train them.
        ledger.folder.remove_leftovers(is_deep=False)
        yield ledger
