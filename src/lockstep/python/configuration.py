"""Reads overrides and the settings of runs, in a process that continues.

The checks are those of the command line.
"""

import contextlib
import importlib
import importlib.machinery
import os
import sys
from collections.abc import Sequence

from lockstep.cluster import request
from lockstep.cluster.request import Request
from lockstep.config import overrides, saved_run
from lockstep.config.composing import compose, typed_text
from lockstep.config.errors import Error, Errors, config_error, refuse
from lockstep.config.saved import config_file, project, trust
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import named_callables
from lockstep.runs import permissions
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import outer_world

OUTPUT = "hydra.run.dir"  # This is the only setting of Hydra that concerns a training.
COMPOSING = (OUTPUT, "hydra.searchpath")


def is_sweep(typed_overrides: Sequence[str]) -> bool:
    """Return whether an override lists several values."""
    for argument in typed_overrides:
        with contextlib.suppress(*compose.REFUSALS):  # The check reports such errors.
            if compose.parse_override(argument).is_sweep_override():
                return True
    return False


def check_sweep(typed_overrides: Sequence[str]) -> Config:
    """Check the overrides of a sweep, and return the configuration of its first trial.

    Raises ConfigError.
    """
    enter(None)
    return overrides.plan(
        typed_overrides, compose.source_of(project.current()), is_multirun=True
    ).configs[0]


def check_request(
    typed_overrides: Sequence[str], *, is_trusted: bool, is_submitted: bool = False
) -> Request:
    """Check overrides as the command line does. Raises ConfigError with every error."""
    enter(None if is_trusted else saved_run.run_to_resume(typed_overrides))
    training_request = request.read(
        typed_overrides, compose.source_of(project.current()), is_trusted=is_trusted
    )
    if training_request.is_submitted != is_submitted:
        hint = "add cluster=slurm or cluster=local" if is_submitted else "use lockstep.submit"
        problem = (
            "is not for lockstep.submit"
            if is_submitted
            else "is not for lockstep.train, which trains here"
        )
        raise config_error(
            "conflict", f"cluster={training_request.config.cluster.name}", problem, hint
        )
    return training_request


def readable(typed_overrides: Sequence[str]) -> list[str]:
    """Return overrides as Hydra reads them.

    Raises ConfigError unless they are overrides of one training, in a process without torchrun or
    srun.
    """
    if isinstance(typed_overrides, str) or not all(
        isinstance(argument, str) for argument in typed_overrides
    ):
        raise config_error(
            "value",
            repr(typed_overrides),
            "is not a list of settings",
            "write ['optimizer.lr=0.1']",
        )
    refuse(_misplaced(typed_overrides))
    return typed_text.hydra_overrides(typed_overrides)


def _misplaced(typed_overrides: Sequence[str]) -> Errors:
    """Yield the errors of overrides that are not for one training in this process."""
    for argument in typed_overrides:
        if argument in ("-m", "--multirun"):
            yield Error(
                "conflict", argument, "is for a sweep", "remove it, and call lockstep.sweep"
            )
    for argument in typed_overrides:
        try:
            override = compose.parse_override(argument)
        except compose.REFUSALS:
            continue  # The check reports such errors.
        if override.is_hydra_override() and override.key_or_group not in COMPOSING:
            yield Error(
                "conflict",
                argument,
                "is for a Hydra job, which lockstep.train does not start",
                "remove it",
            )
    world = outer_world(os.environ)
    if world is not None and world.world_size > 1:
        yield Error(
            "conflict",
            world.launcher,
            "started this process, but lockstep.train starts its own workers",
            f"use {world.launcher} with train.py",
        )


def enter(run: RunFolder | None) -> None:
    """Call `project.enter` for the project in the current folder.

    Modules that were written since the last import are found.
    """
    importlib.invalidate_caches()
    project.enter(project.current(), run)


def load_settings(folder: RunFolder, *, is_trusted: bool) -> Config:
    """Read the settings of a run, and make its modules importable.

    Raises ConfigError or PermissionError.
    """
    if not is_trusted:
        permissions.need_readable(folder)
    config = config_file.load_for_inference(folder.config)
    enter(None if is_trusted else folder)
    trust.check(folder, config, compose.source_of(project.current()), is_trusted=is_trusted)
    refuse(_other_packages(config))
    return config


def _other_packages(config: Config) -> Errors:
    """Yield an error for each package that this process has imported from another place."""
    for key, target in named_callables(config_file.to_tree(config)):
        package = target.partition(".")[0]
        specs = (
            importlib.machinery.PathFinder.find_spec(package),
            getattr(sys.modules.get(package), "__spec__", None),
        )
        origins = [
            os.path.realpath(spec.origin)
            for spec in specs
            if spec is not None and spec.origin is not None
        ]
        if len(set(origins)) > 1:
            run_origin, process_origin = origins
            yield Error(
                "changed",
                f"{key}={target}",
                f": the run has {package} from {run_origin}, "
                f"but this process has imported {process_origin}",
                "use another process, or restart this one",
            )
