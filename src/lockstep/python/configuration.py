"""What a list of overrides asks for in a process that goes on: the same checks as on the command line."""

import importlib
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lockstep.config import compose, options, overrides, project, saved_run, storage, trust
from lockstep.config.errors import ConfigError
from lockstep.config.schema import Config
from lockstep.config.targets import called
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import outer_world
from lockstep.training import refusals

OUTPUT = "hydra.run.dir"  # the one setting of Hydra's own that says something of a training
COMPOSING = (OUTPUT, "hydra.searchpath")


class Asked(NamedTuple):
    """What a list of overrides asks for: settings, and the folder of a new run if named, or that of the run resumed."""

    config: Config
    folder: Path | None
    resumed: RunFolder | None


def asked(typed: Sequence[str], *, is_trusted: bool) -> Asked:
    """What `typed` asks for, each as on the command line. Raises ConfigError with every error."""
    _refuse_unfit(typed)
    run = saved_run.named(typed)
    enter(None if is_trusted else run)
    source = compose.source_of(project.current())
    if run is not None:
        resumed = saved_run.resumed(run, typed, source, is_trusted=is_trusted)
        _refuse_cluster(resumed.config)
        return Asked(resumed.config, None, resumed.folder)
    (config,) = overrides.plan(typed, source).configs
    _refuse_cluster(config)
    later = [key for key, reason in compose.plain(compose.composed(typed, source))[1].items() if not reason]
    errors = [f"{key} asks Hydra for what it knows of python train.py alone: give it a value" for key in later]
    named = overrides.hydra_value(OUTPUT, typed, source)
    error = refusals.unwritable(Path(named or "outputs"))
    errors += [f"{OUTPUT}={named}: {error}" if named else error] if error else []
    if errors:
        raise ConfigError(errors)
    return Asked(config, Path(named) if named else None, None)


def _refuse_cluster(config: Config) -> None:
    if config.cluster.name != "none":
        raise ConfigError([f"cluster={config.cluster.name}: lockstep.train trains here: submit by python train.py"])


def _refuse_unfit(typed: Sequence[str]) -> None:
    """Raise ConfigError for what is no list of overrides of a training, or in a process of torchrun or srun."""
    if isinstance(typed, str) or not all(isinstance(text, str) for text in typed):
        raise ConfigError([f"{typed!r} is no list of overrides: lockstep.train(['optimizer.lr=0.1', 'seed=1'])"])
    errors = [f"{text}: sweeps are started by python train.py -m" for text in typed if text in ("-m", "--multirun")]
    for text in typed:
        try:
            override = options.parsed(text)
        except options.REFUSALS:
            continue  # the check says what is wrong with it
        if override.is_hydra_override() and override.key_or_group not in COMPOSING:
            errors.append(f"{text}: lockstep.train starts no job of Hydra: leave it out")
    world = outer_world(os.environ)
    if world is not None and world.world_size > 1:
        hint = f"use {world.launcher} with train.py"
        errors.append(f"{world.launcher} has started this process, and lockstep.train starts its own workers: {hint}")
    if errors:
        raise ConfigError(errors)


def enter(run: RunFolder | None) -> None:
    """As `project.enter` for the project in the current folder, whose modules are found as they are by now."""
    importlib.invalidate_caches()
    project.enter(project.current(), run)


def saved(folder: RunFolder, *, is_trusted: bool) -> Config:
    """The settings of a run, whose modules this process finds from now on.

    Raises ConfigError where they may not name what they do, where modules are gone, or it has imported others.
    """
    config = storage.load(folder.config)
    enter(None if is_trusted else folder)
    trust.check(folder, config, compose.source_of(project.current()), is_trusted=is_trusted)
    errors = []
    for key, target in called(storage.to_tree(config)):
        package = target.partition(".")[0]
        specs = (importlib.machinery.PathFinder.find_spec(package), getattr(sys.modules.get(package), "__spec__", None))
        origins = [os.path.realpath(spec.origin) for spec in specs if spec is not None and spec.origin is not None]
        if len(set(origins)) > 1:
            there, here = origins
            error = f"{key}={target}: the run has {package} from {there}, and this process has imported {here}"
            errors.append(f"{error}: use another process, or restart this one")
    if errors:
        raise ConfigError(errors)
    return config
