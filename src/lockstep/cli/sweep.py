"""Checks the folder of a run or sweep, and the command line of a sweep (`train -m`), before Hydra starts it."""

import os
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.runs import naming
from lockstep.runs.folder import SWEEP, RunFolder
from lockstep.system import processes
from lockstep.system.launcher import start_once
from lockstep.system.redaction import redact

if TYPE_CHECKING:
    from argparse import Namespace

    from lockstep.config.composing.compose import Source
    from lockstep.config.errors import Error
    from lockstep.config.schema.configuration import Config


def check(arguments: "Namespace", source: "Source") -> None:
    """Raise ConfigError, with all errors of the first jobs, before anything is written."""
    from lockstep.config import overrides
    from lockstep.config.errors import ConfigError, errors_of

    try:
        start_once("train -m", os.environ)
    except ValueError as error:
        raise ConfigError(*errors_of(error)) from error
    configs = overrides.check(arguments.overrides, source, is_multirun=True).configs
    _check_launcher(arguments.overrides, source)
    check_inputs(configs)
    name_folder(configs[0].sweep.name, arguments.overrides, source, is_trusted=arguments.is_trusted)


def _check_launcher(typed: Sequence[str], source: "Source") -> None:
    """Raise ConfigError for another launcher than Lockstep's: it has neither ledger nor table."""
    from lockstep.config.composing import compose
    from lockstep.config.errors import ConfigError, Error

    target = compose.hydra_value("hydra.launcher._target_", typed, source)
    if target not in (None, "hydra_plugins.lockstep.Workstation"):
        hint = "remove hydra/launcher; launcher.parallel=1 runs one trial at a time"
        raise ConfigError(Error("unsupported", target, "cannot run a sweep of Lockstep", hint))


def check_inputs(configs: Sequence["Config"]) -> None:
    """Raise ConfigError if data or initial weights of the jobs of a sweep do not exist.

    The images of the first job are listed: what each job would refuse is refused before the first starts.
    """
    from lockstep.assembly import checkpoints
    from lockstep.config.checks import data_presence  # it imports numpy, which neither help nor an error needs
    from lockstep.config.errors import ConfigError

    if configs[0].cluster.name == "none":  # else the data may exist only on the nodes
        for index, config in enumerate(configs):
            if all(config.data != other.data for other in configs[:index]):
                data_presence.check(config.data)
        if errors := processes.call(_listing_errors, configs[0]):
            raise ConfigError(*errors)
    for init_from in {config.init_from for config in configs}:
        checkpoints.initial_checkpoint(init_from)


def _listing_errors(config: "Config") -> "list[Error]":
    """Return the errors of the list of image files of a configuration. It imports torch."""
    from lockstep.assembly.run_parts import open_source
    from lockstep.assembly.try_out import refuse_shared_groups
    from lockstep.config.errors import errors_of
    from lockstep.config.schema.target_sections import OF_FILES

    if config.data.target not in OF_FILES or config.data.is_copied:
        return []
    try:
        images, _ = open_source(config.seed, config.data.resolve_paths())
        refuse_shared_groups(config, images)
    except (OSError, ValueError) as error:
        return errors_of(error)
    return []


def name_folder(name: str | None, typed: Sequence[str], source: "Source", *, is_trusted: bool) -> None:
    """Resolve Hydra's sweep folder: that of the sweep that this command resumes, else a new one, made on first use.

    A trusted sweep becomes this user's. Raises ConfigError if the folder cannot be made.
    """
    from omegaconf import OmegaConf

    from lockstep.config.composing import compose
    from lockstep.trials.ledger import command_of, find, need_own

    new = Path("outputs"), name or "sweep", datetime.now()
    known = find(new[0], name, redact(command_of(typed)))
    chosen = compose.hydra_value("hydra.sweep.dir", typed, source) or known
    if chosen and Path(chosen, SWEEP).exists():  # before Hydra writes into it
        need_own(RunFolder(Path(chosen).resolve()), is_trusted=is_trusted)
    path = str(known or naming.free_path(*new))
    OmegaConf.register_new_resolver("sweep_folder", lambda: path, replace=True)
    check_folder("hydra.sweep.dir", path, typed, source)
    if known is None:
        made = cache(lambda: str(naming.create_path(*new)))
        OmegaConf.register_new_resolver("sweep_folder", made, replace=True)


def check_folder(key: str, default: str, typed: Sequence[str], source: "Source") -> None:
    """Raise ConfigError if the folder of a run or sweep cannot be made: Hydra would show a traceback."""
    from lockstep.assembly import refusals
    from lockstep.config.composing import compose
    from lockstep.config.errors import ConfigError

    if error := refusals.folder_error(key, compose.hydra_value(key, typed, source), default):
        raise ConfigError(error)
