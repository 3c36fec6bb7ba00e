"""A run that is used again, by a resume or an evaluation: its saved configuration with the overrides of a command."""

from collections.abc import Sequence
from typing import NamedTuple

from hydra.errors import HydraException
from omegaconf import OmegaConf

from lockstep.config import options, overrides, project, storage, trust
from lockstep.config.compose import Source
from lockstep.config.errors import ConfigError
from lockstep.config.schema import Config
from lockstep.runs import naming
from lockstep.runs.discovery import look_at
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import shown


class SavedRun(NamedTuple):
    """The folder of a run, and its configuration as this command changes it."""

    folder: RunFolder
    config: Config


def named(texts: Sequence[str]) -> RunFolder | None:
    """The run that `resume=` among the overrides names; None without it. Raises ConfigError where it is not there."""
    name = None
    for text in texts:
        try:
            override = options.parsed(text)
        except HydraException:
            continue  # the check reports it
        if override.key_or_group == "resume" and not override.is_delete() and not override.is_sweep_override():
            name = OmegaConf.create({"resume": override.value()}).resume
    if name is None:
        return None
    try:
        return naming.find(str(name))
    except FileNotFoundError as error:
        raise ConfigError([f"resume={error}"]) from error


def resumed(folder: RunFolder, texts: Sequence[str], source: Source, *, is_trusted: bool) -> SavedRun:
    """The run in `folder` as these overrides change it, to go on with. Raises ConfigError with all errors."""
    saved = storage.load(folder.config)
    trust.check(folder, saved, source, texts, is_trusted=is_trusted, settings=trust.OF_A_TRAINING)
    try:
        config = changed(folder, saved, texts, source)
        overrides.check_called([config])
    except ConfigError as error:
        before = storage.other_version(folder)
        advice = [f"{shown(folder.path)} was trained by {before}: go on with that one"] if before else []
        raise ConfigError([*error.errors, *advice]) from error
    _refuse_finished(folder, config)
    return SavedRun(folder, config)


def changed(folder: RunFolder, saved: Config, texts: Sequence[str], source: Source) -> Config:
    """The saved configuration of a run with the overrides on top, its data found where they are now.

    Raises ConfigError for overrides that would make it another run, and for all else that is wrong.
    """
    (config,) = overrides.plan(texts, source, saved=saved).configs
    return project.found(folder, config)


def _refuse_finished(folder: RunFolder, config: Config) -> None:
    """Raise ConfigError where the configuration leaves nothing to train."""
    max_epochs = config.trainer.max_epochs
    epochs, epoch = progress(folder)
    if max_epochs <= epochs:
        hint = f"train longer with trainer.max_epochs above {max_epochs}"
        raise ConfigError([f"resume={shown(folder.path)} is finished: {hint}"])
    if max_epochs < epoch:
        where = f"{shown(folder.path)} is in epoch {epoch} already"
        raise ConfigError([f"trainer.max_epochs={max_epochs}: {where}: take that, or more"])


def progress(folder: RunFolder) -> tuple[int, int]:
    """How many epochs a finished run has, else 0, and the epoch in which a run is. Raises ConfigError for damage."""
    facts = look_at(folder)
    if facts["state"] == "broken":
        raise ConfigError([f"{shown(folder.status_file)} cannot be read: remove it"])
    try:
        epochs = int(folder.read_summary().get("epochs", 0))
    except (OSError, OverflowError, TypeError, ValueError) as error:
        raise ConfigError([f"{shown(folder.path)}/summary.json cannot be read: remove it"]) from error
    return epochs, facts.get("epoch", 0)
