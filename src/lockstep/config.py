"""Composes a configuration and reports everything that is wrong with it, at once, before any work starts.

The only module beside the entry points that knows Hydra and OmegaConf. Never imports torch by itself.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from lockstep import signatures, workers
from lockstep.run_folder import EXIT_CONFIG, write_atomically
from lockstep.schema import KNOWN, Config, Open, Target

CONF = Path(__file__).parents[2] / "conf"
METRICS = ("train/loss", "train/accuracy", "val/loss", "val/accuracy")
# what training.py adds when it calls the target of a section
SUPPLIED = {
    "model": ("in_channels", "num_classes"),
    "optimizer": ("params",),
    "scheduler": ("optimizer", "total_steps"),
    "logger": ("save_dir",),
}


class ConfigError(ValueError):
    """All faults of a configuration, one line each."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = list(faults)


def exit_with(error: ConfigError) -> NoReturn:
    """Print every fault and leave with the exit code of a bad configuration."""
    for fault in error.faults:
        print(f"config error: {fault}", file=sys.stderr)
    count = len(error.faults)
    print(f"{count} fault{'s' if count > 1 else ''}; nothing was started. See --help.", file=sys.stderr)
    raise SystemExit(EXIT_CONFIG)


# -- from overrides to a tree ------------------------------------------------------------------------------------------


def composed(overrides: Sequence[str], conf: Path = CONF, config_name: str = "config") -> DictConfig:
    """The configuration of a command line, as Hydra composes it."""
    with initialize_config_dir(config_dir=str(conf.resolve()), version_base="1.3"):
        return compose(config_name, list(overrides))


def checked(cfg: DictConfig) -> Config:
    """The typed configuration. Raises ConfigError with every fault the schema, the signatures and the machine show."""
    faults = [f"{key} has no value: add {key}=..." for key in sorted(OmegaConf.missing_keys(cfg))]
    try:
        tree = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError([*faults, f"{error.full_key or 'interpolation'}: {first_line(error)}"]) from error
    assert isinstance(tree, dict)
    tree.pop("hydra", None)
    return check_tree({str(key): value for key, value in tree.items()}, faults)


def check_tree(tree: dict[str, Any], faults: Sequence[str] = ()) -> Config:
    """The typed configuration of a plain tree. Raises ConfigError with `faults` and all that it finds."""
    found = list(faults)
    missing = {fault.partition(" ")[0] for fault in found}
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        found += [
            fault for fault in _schema_faults(tree, error) if fault.partition(": ")[0].split("=")[0] not in missing
        ]
        config = None
    found += _target_faults(tree)
    if config is not None:
        found += _cross_faults(config)
    if found:
        raise ConfigError(found)
    assert config is not None
    return config


def _schema_faults(tree: dict[str, Any], error: ValidationError) -> list[str]:
    """A line per key: what every member of a union says of it belongs together."""
    messages: dict[str, list[str]] = {}
    for item in error.errors():
        head, message = _schema_fault(tree, item)
        messages.setdefault(head, []).append(message)
    return [f"{head}: {' or '.join(found)}" if found[0] else head for head, found in messages.items()]


def _schema_fault(tree: dict[str, Any], item: Any) -> tuple[str, str]:
    path = [str(part) for part in item["loc"] if part not in KNOWN and part != "other"]
    # the names of union members stand at the end of a location
    while len(path) > 1 and not _has(tree, path) and item["type"] not in ("missing", "extra_forbidden"):
        path.pop()
    key = ".".join("_target_" if part == "target" else part for part in path)
    if item["type"] == "extra_forbidden":
        return f"unknown key {key}" + nearest(path[-1], _known_names(tree, path[:-1]), prefix=path[:-1]), ""
    if item["type"] == "missing":
        return f"{key} is missing", "it has no value in conf/"
    value: Any = tree
    for part in path:
        value = value[int(part)] if isinstance(value, list) else value.get(part)
    return f"{key}={_shown(value)}", item["msg"][0].lower() + item["msg"][1:]


def _has(tree: Any, path: Sequence[str]) -> bool:
    for part in path:
        if isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        elif isinstance(tree, dict) and part in tree:
            tree = tree[part]
        else:
            return False
    return True


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _known_names(tree: dict[str, Any], path: Sequence[str]) -> list[str]:
    """Names the schema allows below `path`."""
    model: Any = Config
    if path and path[0] in ("data", "model", "optimizer", "scheduler"):
        section = tree.get(path[0])
        model = KNOWN.get(section.get("_target_", "") if isinstance(section, dict) else "", Target)
    elif path:
        for part in path:
            field = model.model_fields.get(part) if isinstance(model, type) and issubclass(model, BaseModel) else None
            model = field.annotation if field else None
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return []
    return [field.alias or name for name, field in model.model_fields.items()]


def nearest(name: str, known: Iterable[str], prefix: Sequence[str] = ()) -> str:
    """A question about the likeliest name, or nothing."""
    import difflib  # 10 ms that a good configuration does not need

    near = difflib.get_close_matches(name, list(known), 1, 0.6)
    return f": did you mean {'.'.join([*prefix, near[0]])}?" if near else ""


# -- targets: parameters against signatures ----------------------------------------------------------------------------


def _targets(tree: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any], tuple[str, ...]]]:
    """(path, section, parameters added by the training) of every `_target_`, nested ones too."""

    def inside(path: str, value: Any, supplied: tuple[str, ...]) -> Iterable[tuple[str, Any, tuple[str, ...]]]:
        if isinstance(value, dict):
            if isinstance(value.get("_target_"), str):
                yield path, value, supplied
                supplied = ()
            for key, child in value.items():
                yield from inside(f"{path}.{key}" if path else str(key), child, SUPPLIED.get(path, supplied))
        elif isinstance(value, list):
            for i, child in enumerate(value):
                yield from inside(f"{path}.{i}", child, ())

    for key, value in tree.items():
        yield from inside(key, value, SUPPLIED.get(key, ()))


def _target_faults(tree: dict[str, Any]) -> list[str]:
    faults = []
    for path, section, supplied in _targets(tree):
        target = section["_target_"]
        if target in KNOWN:
            continue
        try:
            signature = signatures.read(target)
        except signatures.Missing as error:
            faults.append(f"{path}._target_={target}: {error.args[0]}" + nearest(target.split(".")[-1], error.known))
            continue
        if signature is None:
            continue
        name = target.rpartition(".")[2]
        given = [k for k in section if not k.startswith("_") and not (path == "data" and k == "memory")]
        for key in given:
            if key in supplied:
                faults.append(f"{path}.{key}: the training sets it itself, remove it")
            elif key not in signature.names and not signature.takes_any:
                near = nearest(key, signature.names, prefix=[path])
                faults.append(f"unknown key {path}.{key}, {name} has no such parameter{near}")
        for key in signature.required:
            if key not in given and key not in supplied and not section.get("_partial_"):
                faults.append(f"{path}.{key} is missing: {name} needs it")
    return faults


# -- settings against each other ---------------------------------------------------------------------------------------------


def _cross_faults(config: Config) -> list[str]:
    trainer, faults = config.trainer, []
    if config.global_batch_size % trainer.accumulate_grad_batches:
        faults.append(
            f"trainer.accumulate_grad_batches={trainer.accumulate_grad_batches} does not divide "
            f"global_batch_size={config.global_batch_size}: a global batch is cut into that many equal micro-batches"
        )
    if getattr(config.optimizer, "nesterov", False) is True and getattr(config.optimizer, "momentum", 1) == 0:
        faults.append("optimizer.nesterov=true needs optimizer.momentum above 0: set one of them")
    val, test = getattr(config.data, "val_fraction", 0), getattr(config.data, "test_fraction", 0)
    if isinstance(val, float) and isinstance(test, float) and val + test >= 1:
        faults.append(f"data.val_fraction={val} and data.test_fraction={test} leave nothing to train on")
    if config.scale_with_workers and learning_rate(config) is None:
        faults.append("scale_with_workers=true multiplies optimizer.lr, but it has no value: add +optimizer.lr=...")
    for key, callback in config.callbacks.items():
        monitor = callback.arguments().get("monitor") if callback is not None else None
        if monitor is not None and monitor not in METRICS:
            faults.append(
                f"callbacks.{key}.monitor={monitor} is never measured, there are {', '.join(METRICS)}"
                + nearest(str(monitor), METRICS)
            )
    return faults + workers.faults(config)


def learning_rate(config: Config) -> float | None:
    """optimizer.lr, where the optimizer has one."""
    value = config.optimizer.arguments().get("lr")
    return float(value) if isinstance(value, int | float) else None


def scaled(config: Config) -> Config:
    """The configuration with batch size and learning rate multiplied by the workers, if it asks for that."""
    if not config.scale_with_workers:
        return config
    num_workers = workers.found(config).world_size
    tree = to_tree(config)
    tree["global_batch_size"] *= num_workers
    tree["optimizer"]["lr"] *= num_workers
    tree["scale_with_workers"] = False
    return Config.model_validate(tree)


# -- files -------------------------------------------------------------------------------------------------------------


def to_tree(config: Config) -> dict[str, Any]:
    """Plain values, with `_target_` and `_partial_` as they stand in YAML."""
    return config.model_dump(by_alias=True)


def fingerprint(config: Config) -> str:
    """Equal for equal configurations: ranks compare it before the first step."""
    return hashlib.sha256(json.dumps(to_tree(config), sort_keys=True).encode()).hexdigest()[:16]


def save(config: Config, path: Path) -> None:
    """Write the resolved configuration as YAML."""
    write_atomically(path, yaml.safe_dump(to_tree(config), sort_keys=False, allow_unicode=True))


def load(path: Path) -> Config:
    """Read a saved configuration. Raises ConfigError when it does not fit this version of Lockstep."""
    tree: Any = OmegaConf.to_container(OmegaConf.load(path))
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError([f"{path}: {fault}" for fault in _schema_faults(tree, error)]) from error


def build(section: Target | Open, **supplied: Any) -> Any:
    """Call the target of a section, or bind it where it is partial."""
    from hydra.utils import instantiate

    is_partial = getattr(section, "partial", False)
    return instantiate({"_target_": section.target, "_partial_": is_partial, **section.arguments()}, **supplied)


def first_line(error: Exception) -> str:
    """What an error says, without its details."""
    return str(error).strip().splitlines()[0]
