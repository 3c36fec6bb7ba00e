"""The plugins that Hydra finds: a launcher of sweeps, and a sweeper that draws values; see lockstep.sweeps."""

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict
from typing_extensions import override

if TYPE_CHECKING:
    from lockstep.config.schema.configuration import Config
    from lockstep.trials.ledger import Ledger, Trial


class Composer:
    """Makes the configuration of a trial from its overrides."""

    def __init__(self, context: HydraContext, config: DictConfig) -> None:
        self._context = context
        self._config = config

    def __call__(self, overrides: Sequence[str], number: int) -> "tuple[Config, str]":
        """Return the checked configuration of a trial, and the name of its folder. Raises ConfigError."""
        from lockstep.config.overrides import check_job

        cfg = self._compose(list(overrides))
        with open_dict(cfg):
            cfg.hydra.job.id = cfg.hydra.job.num = number
        HydraConfig.instance().set_config(cfg)
        subdir = str(cfg.hydra.sweep.subdir)
        with open_dict(cfg):
            del cfg["hydra"]
        return check_job(cfg, overrides, self._compose), subdir

    def _compose(self, overrides: list[str]) -> DictConfig:
        return self._context.config_loader.load_sweep_config(self._config, overrides)


class Workstation(Launcher):
    """Runs the trials of a sweep in parallel, each on its own devices."""

    @override
    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._compose = Composer(hydra_context, config)
        self._config = config

    @override
    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the trials. Exits with the code of the sweep if it is not 0."""
        from lockstep.config.errors import ConfigError, exit_with
        from lockstep.sweeps import array, command
        from lockstep.sweeps.course import Grid
        from lockstep.trials.ledger import DONE

        (Path(self._config.hydra.sweep.dir) / "multirun.yaml").unlink(missing_ok=True)  # has all settings, with secrets
        try:
            config, _ = self._compose(job_overrides[0], initial_job_idx)
            if _is_handed_over(self._config, config, len(job_overrides)):
                return []
            with _ledger(self._config, config.sweep.name) as ledger:
                jobs = ((texts, partial(self._compose, texts)) for texts in job_overrides)
                each = (command.prepare_trial(ledger, texts, compose) for texts, compose in jobs)
                made = list({trial.number: (trial, trial_config) for trial, trial_config in each}.values())
                left = [trial for trial, _ in made if trial.state not in DONE]
                if config.cluster.name == "slurm":
                    array.submit(ledger, made)
                    return []
                code = command.run_sweep(
                    ledger,
                    Grid(left),
                    {trial.number: trial_config for trial, trial_config in made},
                    config=config,
                    total=len(made),
                    num_done=len(made) - len(left),
                )
        except ConfigError as error:
            exit_with(error)
        if code:
            raise SystemExit(code)
        return []  # for Hydra: the results are in the table


class Study(Sweeper):
    """Draws the values of a sweep by Optuna, and runs its trials like Workstation."""

    @override
    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._compose = Composer(hydra_context, config)
        self._options_of = hydra_context.config_loader.get_group_options
        self._config = config

    @override
    def sweep(self, arguments: list[str]) -> None:
        """Run the study. Exits with the code of the sweep if it is not 0."""
        from lockstep.config.composing.sweep_space import Interval, separate_space
        from lockstep.config.errors import ConfigError, Error, exit_with
        from lockstep.sweeps import command, search
        from lockstep.trials.ledger import DONE
        from lockstep.trials.results import monitored_objective

        try:
            fixed, space = separate_space(arguments, self._options_of)
            first = [f"{key}={drawn.low if isinstance(drawn, Interval) else drawn[0]}" for key, drawn in space.items()]
            config, _ = self._compose([*fixed, *first], 0)
            if config.search is None:
                raise ConfigError(
                    Error("conflict", "hydra/sweeper=optuna", "is chosen by search=...", "use search=tpe")
                )
            if _is_handed_over(self._config, config, 1):
                return
            with _ledger(self._config, config.sweep.name) as ledger:
                command.check_study(ledger, arguments, self._compose)
                objective = monitored_objective(config)
                configs: dict[int, Config] = {}

                drawn_from = search.distributions(space)

                def make_trial(drawn: Sequence[str]) -> "Trial":
                    texts = [*fixed, *drawn]
                    compose = partial(self._compose, texts)
                    trial, configs[trial.number] = command.prepare_trial(ledger, texts, compose)
                    ledger.write()  # before it starts: a command that is killed finds its job again
                    return trial

                draws = search.Draws(
                    search.study_in(ledger, drawn_from, config.search, objective),
                    drawn_from,
                    ledger,
                    make_trial,
                    objective=objective,
                    num_trials=config.search.num_trials,
                )
                code = command.run_sweep(
                    ledger,
                    draws,
                    configs,
                    config=config,
                    total=config.search.num_trials,
                    num_done=sum(trial.state in DONE for trial in ledger.trials),
                )
        except ConfigError as error:
            exit_with(error)
        if code:
            raise SystemExit(code)


def _is_handed_over(hydra_config: DictConfig, config: "Config", num_jobs: int) -> bool:
    """Print the script of a sweep (dry_run), or start it in the background. Returns False if this command runs it."""
    from lockstep.sweeps import array

    path = Path(hydra_config.hydra.sweep.dir)
    if config.cluster.name != "none" and config.dry_run:
        print(array.script(path, config, num_jobs), end="")
    elif config.cluster.name == "local":
        with _ledger(hydra_config, config.sweep.name) as ledger:
            ledger.write()  # so that the same command finds it
        array.start_background(path, config)
    else:
        return False
    _remove_empty(path)
    return True


def _remove_empty(path: Path) -> None:
    """Remove the empty folders that Hydra made for a sweep that does not start."""
    with contextlib.suppress(OSError):  # not empty, or not there
        for folder in (path, path.parent, path.parent.parent):
            folder.rmdir()


def _ledger(config: DictConfig, name: str | None) -> "contextlib.AbstractContextManager[Ledger]":
    from lockstep.sweeps import command
    from lockstep.trials.ledger import command_of

    return command.open_ledger(Path(config.hydra.sweep.dir), name, command_of(config.hydra.overrides.task))
