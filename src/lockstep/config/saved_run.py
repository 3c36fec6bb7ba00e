"""Applies the overrides of a command to the saved configuration of a run.

The command resumes, evaluates or loads the run.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf

from lockstep.config import overrides
from lockstep.config.composing.compose import Source, parse_override
from lockstep.config.errors import ConfigError, config_error, file_error
from lockstep.config.overrides import Job
from lockstep.config.saved import config_file, project, trust
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import OF_FILES
from lockstep.runs import naming, permissions
from lockstep.runs.discovery import read_run_folder
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import display_path
from lockstep.system.launcher import World

# Keys of `data` by which an evaluation selects other images. Keys of the preprocessing are not
# among them.
SELECTING = {
    "root",
    "file",
    "path_column",
    "target_columns",
    "split_column",
    "val_fraction",
    "test_fraction",
    "split_seed",
    "group",
    "group_column",
    "date_column",
    "test_after",
}


def run_to_resume(override_lines: Sequence[str]) -> RunFolder | None:
    """Return the run that the override `resume=` names, or None without this override.

    Raises ConfigError if there is no such run.
    """
    run_name = OmegaConf.create({"resume": _typed_values(override_lines).get("resume")}).resume
    if run_name is None:
        return None
    try:
        return naming.find(str(run_name))
    except FileNotFoundError as error:
        raise config_error("missing", "", f"resume={error}") from error


def _typed_values(override_lines: Sequence[str]) -> dict[str, Any]:
    """Return the values of the overrides that set one, by key. The check reports the others."""
    values: dict[str, Any] = {}
    for line in override_lines:
        with contextlib.suppress(HydraException):
            override = parse_override(line)
            if not (override.is_sweep_override() or override.is_delete()):
                values[override.key_or_group] = override.value()
    return values


def check_resume(
    folder: RunFolder, override_lines: Sequence[str], source: Source, *, is_trusted: bool
) -> Job:
    """Check the run in `folder`, as these overrides change it, before it is resumed.

    Raises ConfigError with all errors.
    """
    try:
        permissions.need_own(folder, naming.ADOPT_HINT, is_trusted=is_trusted)
    except PermissionError as error:
        raise ConfigError(file_error(error).within("resume")) from error
    saved_config = config_file.load(folder.config)
    trust.check(folder, saved_config, source, override_lines, is_trusted=is_trusted)
    try:
        job = change_run(folder, saved_config, override_lines, source)
    except ConfigError as error:
        advice = config_file.version_errors(folder, "resume with that version")
        raise ConfigError(*error.errors, *advice) from error
    max_epochs = job.config.trainer.max_epochs
    epochs, epoch = progress(folder)
    if max_epochs <= epochs:
        raise config_error(
            "exists",
            f"resume={display_path(folder.path)}",
            "is finished",
            f"set trainer.max_epochs above {max_epochs} to train longer",
        )
    if max_epochs < epoch:
        raise config_error(
            "range",
            f"trainer.max_epochs={max_epochs}",
            f"is below epoch {epoch}, where {display_path(folder.path)} is already",
            "set at least that",
        )
    return job


def change_run(
    folder: RunFolder, saved_config: Config, override_lines: Sequence[str], source: Source
) -> Job:
    """Apply overrides to the saved configuration of a run, and find its data.

    Raises ConfigError for overrides that would make it another run, and for all other errors.
    """
    (job,) = overrides.plan(override_lines, source, saved_config=saved_config).jobs
    return job._replace(config=project.find_data(folder, job.config))


def replace_images(saved_config: Config, override_lines: Sequence[str]) -> tuple[Config, bool]:
    """Return the configuration with the images that these overrides select.

    Also returns whether the overrides select any.
    """
    data = saved_config.data
    if data.target not in OF_FILES:
        return saved_config, False
    values = _typed_values(override_lines)
    selecting_keys = SELECTING.intersection(data.arguments())
    changes = {key: values[f"data.{key}"] for key in selecting_keys if f"data.{key}" in values}
    update = {"data": data.model_copy(update=changes)}
    return saved_config.model_copy(update=update), bool(changes)


def adapt_to_machine(
    saved_config: Config,
    *,
    devices: int | list[int] | None,
    strategy: str | None,
    world: World | None = None,
    precision: str | None = None,
) -> Config:
    """Adapt the configuration of a run to an evaluation on this machine.

    `devices`, `strategy` and `precision` replace those of the run if they are given. They are not
    checked. If a launcher started this process, `world` describes its processes, which are the
    workers.
    """
    strategy = strategy or saved_config.strategy.name
    trainer: dict[str, Any] = {
        "graph": "auto",
        "precision": precision or evaluation_precision(saved_config),
    }
    if devices is not None or world is not None or saved_config.trainer.num_nodes > 1:
        default = saved_config.trainer.devices if world is None else "auto"
        count = devices if isinstance(devices, int) else len(devices or ())
        num_nodes = max(1, world.world_size // count) if world is not None and count else 1
        trainer |= {
            "devices": default if devices is None else devices,
            "worker_weights": None,
            "num_nodes": num_nodes,
        }
    # The saved network interface belongs to the machines that trained the run.
    update = {"name": strategy, "interface": None}
    return saved_config.model_copy(
        update={
            "trainer": saved_config.trainer.model_copy(update=trainer),
            "strategy": saved_config.strategy.model_copy(update=update),
        }
    )


def evaluation_precision(saved_config: Config) -> str:
    """Return the precision for everything that follows a training.

    It is the same on every machine, and keeps all bits of the weights.
    """
    return "float64" if saved_config.trainer.precision == "float64" else "float32"


def progress(folder: RunFolder) -> tuple[int, int]:
    """Return the epochs of a finished run, or 0, and the current epoch.

    Raises ConfigError for damaged files.
    """
    facts = read_run_folder(folder)
    if facts["state"] == "broken":
        raise config_error(
            "damaged", display_path(folder.status_file), "cannot be read", "remove it"
        )
    try:
        epochs = int(folder.read_summary().get("epochs", 0))
    except (OSError, OverflowError, TypeError, ValueError) as error:
        raise config_error(
            "damaged",
            f"{display_path(folder.path)}/summary.json",
            "cannot be read",
            "remove it",
        ) from error
    return epochs, facts.get("epoch", 0)
