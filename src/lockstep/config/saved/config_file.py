"""Writes, reads and compares the configuration in a run folder."""

import hashlib
import json
from pathlib import Path

import yaml
from pydantic import ValidationError

import lockstep
from lockstep.config.errors import ConfigError, Error, config_error, one_line
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import IMAGE_FOLDER, IMAGE_LIST, LIBRARIES
from lockstep.runs import naming
from lockstep.runs.files import read_text, write_atomically
from lockstep.runs.folder import RunFolder
from lockstep.system.trees import Tree, at, from_yaml

# Earlier versions had these keys.
GONE = (
    "trainer.cudnn_search",
    "search.objectives",
    "search.seeds",
    "launcher.mode",
    "sweep.max_failed",
    "data.copy_remove",
    "cluster.parallel",
    "callbacks.curves",
    "logger.csv",
    "callbacks.pictures.every_n_epochs",
    "strategy.gradient_dtype",
    "notify",
    "flip_test",
    "data._check_",
)
# Earlier versions did not have these keys.
ADDED_KEYS = {
    IMAGE_FOLDER: ("group", "test_after"),
    IMAGE_LIST: ("group", "group_column", "date_column", "test_after"),
}


def to_tree(config: Config) -> Tree:
    """Return plain values, with the keys of YAML, such as `_target_`."""
    return config.model_dump(by_alias=True)


def fingerprint(config: Config) -> str:
    """Return a hash that is equal for equal trainings.

    Ranks compare it before the first step. Names of network interfaces, which may differ between
    machines, and environment variables of the workers are not part of it.
    """
    from lockstep.config.schema.key_scopes import NOT_OF_A_TRAINING, scope

    tree = {
        key: value for key, value in to_tree(config).items() if scope(key) not in NOT_OF_A_TRAINING
    }
    tree["strategy"] = {
        k: v for k, v in tree["strategy"].items() if k not in ("interface", "variables")
    }
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


def save(config: Config, path: Path) -> None:
    write_atomically(path, yaml.safe_dump(to_tree(config), sort_keys=False, allow_unicode=True))


def version_errors(folder: RunFolder, hint: str) -> list[Error]:
    """Return an error that names the version of Lockstep that trained a run, if it is another."""
    version = other_version(folder)
    path = naming.display_path(folder.path)
    return [Error("changed", path, f"was trained by {version}", hint)] if version else []


def other_version(folder: RunFolder) -> str | None:
    """Describe the version of Lockstep that trained a run, or return None.

    None means that it is this version, or that the version is unknown.
    """
    try:
        version = (folder.fact("environment") or {})["packages"]["lockstep"]
    except (OSError, ValueError, KeyError):
        return None
    if version in (None, lockstep.__version__):
        return None
    return f"Lockstep {version} (this is {lockstep.__version__})"


def load(path: Path) -> Config:
    """Read a saved configuration.

    Raises ConfigError if it does not fit this version of Lockstep.
    """
    tree = to_this_version(load_tree(path))
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        # Only an invalid configuration needs this import.
        from lockstep.config.checks.schema_errors import schema_errors

        errors = dict(schema_errors(tree, error, {}))
        raise ConfigError(
            *(entry.within(str(path)) for entry in errors.values()),
            *version_errors(RunFolder(path.parent), "use that version"),
        ) from error
    needs_images = config.augment.used or config.compile
    is_library = config.model.target in LIBRARIES
    if is_library and needs_images and config.model.arguments().get("head_only") is True:
        # In earlier versions, true had the meaning of each_epoch.
        tree["model"]["head_only"] = "each_epoch"
        return Config.model_validate(tree)
    return config


def load_for_inference(path: Path) -> Config:
    """Read a saved configuration without its custom transforms, which only a training calls.

    Raises ConfigError if it does not fit this version of Lockstep.
    """
    config = load(path)
    return config.model_copy(update={"augment": config.augment.model_copy(update={"custom": {}})})


def to_this_version(tree: Tree) -> Tree:
    """Drop keys and values that this version no longer has, and add those that are new in it."""
    for gone_key in GONE:
        *parents, key = gone_key.split(".")
        section = at(tree, parents)
        if isinstance(section, dict):
            section.pop(key, None)
    # Earlier versions did not have this key, and their checkpoints have no calibration to apply.
    tree.setdefault("calibrate", True)
    if isinstance(tree.get("augment"), dict):
        tree["augment"].setdefault("custom", {})
    if isinstance(tree.get("trainer"), dict):
        # Earlier versions did not have this key.
        tree["trainer"].setdefault("virtual_shards", None)
        if "loads" in tree["trainer"]:
            weights = tree["trainer"].pop("loads")
            # "auto" was saved for one worker only. For several workers, numbers replaced it.
            tree["trainer"]["worker_weights"] = None if weights == "auto" else weights
    for section in (tree.get("logger") or {}).values():
        if at(section, ["_target_"]) == "lockstep.callbacks.ResumableWandbLogger":
            section["_target_"] = "lightning.pytorch.loggers.WandbLogger"
            section["settings"] = {"console": "off", "silent": True, "x_disable_meta": True}
    for key in ADDED_KEYS.get(str(at(tree, ["data", "_target_"])), ()):
        tree["data"].setdefault(key, None)
    if at(tree, ["data", "background"]) == "grey":
        tree["data"]["background"] = "gray"
    if tree.get("compile") == "reduce-overhead":
        tree["compile"] = True
    if at(tree, ["model", "_target_"]) in LIBRARIES:
        tree["model"].setdefault("frozen_norms", False)
        if tree["model"].get("head_only"):
            tree["model"] |= {"dropout": None, "drop_path": None}
    return tree


def load_tree(path: Path) -> Tree:
    """Read the plain values of a saved configuration of any version.

    Raises ConfigError if it cannot be read.
    """
    try:
        tree = from_yaml(read_text(path))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise config_error("damaged", str(path), "cannot be read", one_line(error)) from error
    if not isinstance(tree, dict):
        raise config_error("damaged", str(path), "contains no configuration")
    return tree
