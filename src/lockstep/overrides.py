"""The overrides of a command line: every fault of them at once, and what they may change on a resume."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from lockstep.config import CONF, ConfigError, check_tree, checked, composed, first_line, nearest, to_tree
from lockstep.schema import Config

# a resumed run must go on with the same mathematics
FROZEN_ON_RESUME = (
    "data",
    "model",
    "optimizer",
    "scheduler",
    "augment",
    "seed",
    "label_smoothing",
    "global_batch_size",
    "scale_with_workers",
    "experiment",
    "debug",
    "trainer.accumulate_grad_batches",
    "trainer.limit_train_batches",
    "trainer.overfit_batches",
)


def groups(conf: Path) -> dict[str, list[str]]:
    """Options of every configuration group."""
    return {
        folder.relative_to(conf).as_posix(): sorted(file.stem for file in folder.glob("*.yaml"))
        for folder in sorted(conf.rglob("*"))
        if folder.is_dir() and any(folder.glob("*.yaml"))
    }


def check(overrides: Sequence[str], *, conf: Path = CONF, config_name: str = "config", is_multirun: bool) -> None:
    """Raise ConfigError with all faults of these overrides; every value of a sweep is tried."""
    faults: list[str] = []
    good: list[Override] = []
    options = groups(conf)
    for text in overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException as error:
            faults.append(f"{text!r} is no override: {first_line(error)}")
            continue
        if override.is_sweep_override() and not is_multirun:
            faults.append(f"{text} lists several values: add -m to sweep over them, or quote a value with commas")
        elif fault := _option_fault(override, options):
            faults.append(fault)
        else:
            good.append(override)
    for variant in _variants(good):
        try:
            cfg = _composed(variant, options, conf, config_name, faults)
            if cfg is not None:
                checked(cfg)
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))


def _option_fault(override: Override, options: dict[str, list[str]]) -> str | None:
    """What is wrong with the choice of an option of a group."""
    key = override.key_or_group
    if key not in options or override.is_delete() or override.is_sweep_override():
        return None
    value = override.value()
    for option in value if isinstance(value, list) else [value]:
        if isinstance(option, str) and option not in options[key]:
            question = nearest(option, options[key])
            return f"{key}={option} is no option of {key}{question or ':'} choose from {', '.join(options[key])}"
    return None


def _variants(overrides: Sequence[Override]) -> Iterable[list[str]]:
    """The first value of every sweep together, then every other value alone in its place.

    Values that a sweeper draws itself (intervals) are left to the jobs.
    """
    values = []
    for override in overrides:
        if override.is_discrete_sweep():
            values.append([f"{override.get_key_element()}={text}" for text in override.sweep_string_iterator()])
        elif not override.is_sweep_override():
            values.append([override.input_line or ""])
    first = [texts[0] for texts in values]
    yield first
    for position, texts in enumerate(values):
        for text in texts[1:]:
            yield [*first[:position], text, *first[position + 1 :]]


def _composed(
    overrides: Sequence[str], options: dict[str, list[str]], conf: Path, config_name: str, faults: list[str]
) -> DictConfig | None:
    """Compose; where Hydra refuses, find the overrides it refuses, say why, and compose the rest."""
    try:
        return composed(overrides, conf, config_name)
    except HydraException as error:
        reason = first_line(error)
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    choices = [o.input_line or "" for o in parsed if o.key_or_group in options or o.key_or_group.startswith("hydra")]
    try:
        tree = OmegaConf.to_container(composed(choices, conf, config_name))
    except HydraException:
        faults.append(reason)
        return None
    names = [*_dotted_names(tree), *options]
    kept: list[str] = []
    for override in parsed:
        key, text = override.key_or_group, override.input_line or ""
        if key in options or key in names or key.startswith("hydra") or override.is_add():
            kept.append(text)
        elif override.is_delete() or not _could_be_added(text, choices, conf, config_name):
            faults.append(f"unknown key {key}" + nearest(key, names))
        else:
            faults.append(f"{key} has no value in conf/ yet: add it with +{text}")
    try:
        return composed(kept, conf, config_name)
    except HydraException as error:
        faults.append(first_line(error))
        return None


def _could_be_added(text: str, choices: Sequence[str], conf: Path, config_name: str) -> bool:
    """Whether the key of an override is one that the schema or a signature knows."""
    key = text.partition("=")[0]
    try:
        checked(composed([*choices, f"++{text}"], conf, config_name))
    except HydraException:
        return False
    except ConfigError as error:
        return not any(
            fault.startswith("unknown key") and key.startswith(fault.split()[2].rstrip(":,")) for fault in error.faults
        )
    return True


def _dotted_names(tree: Any, prefix: str = "") -> Iterable[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield f"{prefix}{key}"
            yield from _dotted_names(value, f"{prefix}{key}.")


def resumed(saved: Config, cfg: DictConfig, overrides: Sequence[str]) -> Config:
    """The saved configuration of a run with the overrides of this command line on top.

    Raises ConfigError for settings that would make it another run.
    """
    faults: list[str] = []
    tree = to_tree(saved)
    typed: Any = OmegaConf.to_container(cfg, resolve=True)
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key = override.key_or_group
        if key == "resume" or key.startswith("hydra"):
            continue
        if any(key == name or key.startswith(f"{name}.") for name in FROZEN_ON_RESUME):
            faults.append(f"{key} cannot change on resume, it would be another run: start a new one")
            continue
        *parents, last = key.split(".")
        source, target = typed, tree
        for parent in parents:
            source, target = source.get(parent, {}), target.setdefault(parent, {})
        if override.is_delete():
            target.pop(last, None)
        else:
            target[last] = source[last]
    tree["resume"] = None
    return check_tree(tree, faults)
