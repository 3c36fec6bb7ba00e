"""`python train.py -m`: starts or resumes a sweep.

A sweep runs all combinations of its values, or a search that draws them.
"""

import os
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from lockstep.assembly import checkpoints, refusals
from lockstep.config import overrides
from lockstep.config.checks import data_presence
from lockstep.config.composing import compose, sweep_space
from lockstep.config.composing.compose import Source
from lockstep.config.errors import ConfigError, Error, config_error, errors_of
from lockstep.config.overrides import Job
from lockstep.config.schema.configuration import Config
from lockstep.runs import naming
from lockstep.runs.folder import SWEEP, RunFolder
from lockstep.sweeps import array, command
from lockstep.sweeps.command import Compose, Sweep
from lockstep.sweeps.course import Grid
from lockstep.system import processes
from lockstep.system.launcher import start_once
from lockstep.system.redaction import redact
from lockstep.trials.ledger import DONE, Trial, find, need_own, sweep_overrides


def sweep(
    typed_overrides: Sequence[str], source: Source, arguments: Sequence[str], *, is_trusted: bool
) -> int:
    """Run or resume the sweep of these overrides, or submit it.

    Returns the exit code. `arguments` are those of the command. Raises ConfigError, with all
    errors, before anything is written.
    """
    try:
        start_once("train -m", os.environ)
    except ValueError as error:
        raise ConfigError(*errors_of(error)) from error
    jobs = overrides.check(typed_overrides, source, is_multirun=True).jobs
    config = jobs[0].config
    check_inputs([job.config for job in jobs])
    path, is_new = _folder(jobs[0], typed_overrides, is_trusted=is_trusted)
    num_jobs, search = len(jobs), None
    if config.search is not None:
        num_jobs = 1
        search = sweep_space.separate_space(typed_overrides, compose.groups(*source.folders))
    if config.cluster.name != "none" and config.dry_run:
        print(array.script(path, config, num_jobs), end="")
        return 0
    if is_new:
        path = naming.create_path(Path("outputs"), config.sweep.name or "sweep", datetime.now())
    with command.open_ledger(path, config.sweep.name, sweep_overrides(typed_overrides)) as ledger:
        if config.cluster.name == "local":
            ledger.write()  # The same command then finds the sweep.
        else:
            checked_jobs = {(job.overrides, number): job for number, job in enumerate(jobs)}
            compose_trial = partial(_compose_trial, checked_jobs, source)
            if search is None:
                return _run_grid(Sweep(ledger, config, arguments), jobs, compose_trial)
            command.check_study(ledger, typed_overrides, compose_trial)
            return _run_search(Sweep(ledger, config, arguments), search, compose_trial)
    array.start_background(path, config, arguments)
    return 0


def check_inputs(configs: Sequence[Config]) -> None:
    """Raise ConfigError if data or initial weights of the jobs of a sweep do not exist.

    Raises it, too, if the sweep would select a trial by the test images. The images of the first
    job are listed, so that what each job would reject is rejected before the first one starts.
    """
    is_on_test = any(config.data.validate_on_test for config in configs)
    if configs[0].sweep.test == "best" and is_on_test:
        raise config_error(
            "conflict",
            "sweep.test=best",
            "would select a trial by the test images (data.validate_on_test=true)",
            "set sweep.test=all",
        )
    if configs[0].cluster.name == "none":  # Otherwise the data may exist only on the nodes.
        checked_data = []
        for config in configs:
            if config.data not in checked_data:
                data_presence.check(config.data)
                checked_data.append(config.data)
        if errors := processes.call(_listing_errors, configs[0]):
            raise ConfigError(*errors)
    for init_from in {config.init_from for config in configs}:
        checkpoints.initial_checkpoint(init_from)


def _listing_errors(config: Config) -> list[Error]:
    """Return the errors of the list of image files of a configuration. This imports torch."""
    from lockstep.assembly.run_parts import open_source, refuse_shared_groups
    from lockstep.config.schema.target_sections import OF_FILES

    if config.data.target not in OF_FILES or config.data.is_copied:
        return []
    try:
        images, _ = open_source(config.seed, config.data.resolve_paths())
        refuse_shared_groups(config, images)
    except (OSError, ValueError) as error:
        return errors_of(error)
    return []


def _folder(job: Job, typed_overrides: Sequence[str], *, is_trusted: bool) -> tuple[Path, bool]:
    """Return the folder of a sweep, and True if it is a new one.

    It is the folder that `hydra.sweep.dir` names, or that of the sweep that is resumed, else a new
    one. A trusted sweep becomes a sweep of this user. Raises ConfigError if the folder cannot be
    created.
    """
    sweep_name, outputs = job.config.sweep.name, Path("outputs")
    resumed_path = find(outputs, sweep_name, redact(sweep_overrides(typed_overrides)))
    default_path = resumed_path or naming.free_path(outputs, sweep_name or "sweep", datetime.now())
    requested_path = None if job.folder is None else job.root
    path = Path(requested_path or default_path)
    if (path / SWEEP).exists():
        need_own(RunFolder(path.resolve()), is_trusted=is_trusted)
    if error := refusals.folder_error("hydra.sweep.dir", requested_path, str(default_path)):
        raise ConfigError(error)
    return path, requested_path is None and resumed_path is None


def _compose_trial(
    checked_jobs: dict[tuple[tuple[str, ...], int], Job],
    source: Source,
    trial_overrides: Sequence[str],
    number: int,
) -> tuple[Config, str]:
    """Return the checked configuration of a trial, and the name of its folder.

    Raises ConfigError.
    """
    job = checked_jobs.get((tuple(trial_overrides), number)) or overrides.compose_trial(
        trial_overrides, number, source
    )
    return job.config, job.subdir


def _run_grid(sweep: Sweep, jobs: Sequence[Job], compose_trial: Compose) -> int:
    trials: dict[int, Trial] = {}
    configs: dict[int, Config] = {}
    for job in jobs:
        trial, config = command.prepare_trial(sweep.ledger, job.overrides, compose_trial)
        trials[trial.number], configs[trial.number] = trial, config
    if sweep.config.cluster.name == "slurm":
        array.submit(sweep.ledger, list(trials.values()), configs)
        return 0
    remaining_trials = [trial for trial in trials.values() if trial.state not in DONE]
    num_done = len(trials) - len(remaining_trials)
    return command.run_sweep(
        sweep, Grid(remaining_trials), configs, total=len(trials), num_done=num_done
    )


def _run_search(
    sweep: Sweep, search: tuple[list[str], sweep_space.Space], compose_trial: Compose
) -> int:
    from lockstep.sweeps.search import Draws, distributions, study_in  # This imports optuna.
    from lockstep.trials.results import monitored_objective

    ledger, config, _ = sweep
    fixed_overrides, space = search
    configs: dict[int, Config] = {}

    def make_trial(drawn_overrides: Sequence[str]) -> Trial:
        trial, configs[trial.number] = command.prepare_trial(
            ledger, [*fixed_overrides, *drawn_overrides], compose_trial
        )
        # The ledger is written before the trial starts, so that a command that is killed finds its
        # job again.
        ledger.write()
        return trial

    assert config.search is not None
    objective, space_distributions = monitored_objective(config), distributions(space)
    draws = Draws(
        study_in(ledger, space_distributions, config.search, objective),
        space_distributions,
        ledger,
        make_trial,
        objective=objective,
        num_trials=config.search.num_trials,
    )
    num_done = sum(trial.state in DONE for trial in ledger.trials)
    return command.run_sweep(
        sweep, draws, configs, total=config.search.num_trials, num_done=num_done
    )
