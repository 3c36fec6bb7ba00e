"""Errors of single overrides that belong to another command or that Hydra refuses."""

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from lockstep.config.composing.compose import plain_tree
from lockstep.config.errors import Error, one_line
from lockstep.config.schema.key_scopes import OF_ENVIRONMENTS, SAME_FOR_ALL_JOBS, scope
from lockstep.config.schema.legal_keys import (
    Groups,
    foreign_name_hint,
    legal_names,
    meant_key,
    unknown_key,
)
from lockstep.config.schema.target_sections import is_ours
from lockstep.system import hardware
from lockstep.system.text import near_names
from lockstep.system.trees import at

# These settings are for jobs that Hydra starts. Lockstep only composes with Hydra, so they have no
# effect.
UNUSED = (
    "hydra/launcher",
    "hydra/sweeper",
    "hydra/callbacks",
    "hydra.launcher",
    "hydra.sweeper",
    "hydra.callbacks",
    "hydra.job.chdir",
    "hydra.job.env_set",
    "hydra.job.env_copy",
    "hydra.output_subdir",
    "hydra.mode",
)
# The values of these settings may be lists.
LISTS = ("trainer.devices", "trainer.worker_weights", "data.target_columns")


def misplacement(override: Override, *, is_multirun: bool, is_benchmark: bool) -> Error | None:
    """Describe an override that this command does not allow.

    The override belongs to another command, or has several values where only one is possible.
    """
    key, line = override.key_or_group, override.input_line or ""
    if key.startswith(UNUSED):
        return Error("unsupported", line, "is for jobs that Hydra starts", "remove it")
    if is_benchmark:
        if key in ("resume", "changed_data"):
            return Error(
                "conflict", line, "is not for a benchmark, which starts new runs", "remove it"
            )
        if key in OF_ENVIRONMENTS:
            return Error(
                "conflict",
                line,
                "is set by each environment",
                "see benchmark.environments and budget_s",
            )
    elif key.partition(".")[0] == "benchmark":
        return Error("conflict", line, "is only for `lockstep benchmark`", "remove it")
    is_sweep = override.is_sweep_override()
    if is_sweep and not is_multirun:
        hint = "give one" if is_benchmark else "add -m to sweep over them"
        if key in LISTS:
            hint = f"write {key}=[{line.partition('=')[2]}], or {hint}"
        return Error(
            "conflict", line, "lists several values", f"{hint}, or quote a value with commas"
        )
    if is_sweep and (override.is_hydra_override() or scope(key) in SAME_FOR_ALL_JOBS):
        return Error(
            "conflict", line, "lists several values, but all jobs of a sweep share it", "give one"
        )
    return None


def unused_settings(cfg: DictConfig) -> list[Error]:
    """Return the errors of settings in files that would change how Hydra starts a job."""
    settings = {"hydra.job.chdir": cfg.hydra.job.chdir, "hydra.callbacks": cfg.hydra.callbacks}
    problem = "is for jobs that Hydra starts"
    return [
        Error("unsupported", key, problem, "remove it") for key, value in settings.items() if value
    ]


def option_error(override: Override, options: Groups) -> Error | None:
    key, value = override.key_or_group, override.value()
    typed_options = value if isinstance(value, list) else [value]
    unknown_options = [option for option in typed_options if option not in options.get(key, ())]
    if key not in options or not unknown_options:
        return None
    option = str(unknown_options[0])
    all_options = ", ".join(options[key])
    candidates = near_names(option, options[key], cutoff=0.8)
    if candidates:
        hint = f"did you mean {candidates[0]}? Choose from {all_options}"
    else:
        hint = _option_hint(key, option) or f"choose from {all_options}"
    return Error("unknown", override.input_line or "", "is not an option", hint)


def _option_hint(group: str, option: str) -> str:
    """Return the setting to write for an option of another framework or a network of a library."""
    option = option.lower()
    if group == "model":
        return f"write model=torchvision model.name={option}, or model=timm model.name={option}"
    line = foreign_name_hint(f"{group}={option}")
    if line == "write strategy=single_device" and not hardware.num_visible_gpus():
        return "this machine has no GPU, write strategy=cpu"
    return line


def _with_value(hint: str, value: str, options: Groups) -> str:
    """Insert the value that was typed into a hint: epochs=5 means trainer.max_epochs=5."""
    prefix, separator, suffix = hint.partition("=...")
    setting = prefix.split(" ")[-1]
    if not (value and separator and suffix in ("", "?")):
        return hint
    if setting in options and value not in options[setting]:
        return _option_hint(setting, value) or hint
    return f"{prefix}={value}{suffix}"


def refusal(cfg: DictConfig, override: Override, error: Exception, options: Groups) -> Error:
    """Describe an override that Hydra refuses.

    If the override only lacks a +, its value is added to `cfg`, so that it is checked, too.
    """
    line, key = override.input_line or "", override.key_or_group
    path, tree = key.split("."), plain_tree(cfg)[0]
    parent = at(tree, path[:-1])
    if isinstance(parent, dict) and path[-1] in parent:
        reason = one_line(error if error.__cause__ is None else error.__cause__)
        hint = f"write +{line} to add it" if isinstance(override.value(), dict) else ""
        return Error("failed", line, f": {reason}", hint)
    legal_keys = legal_names(tree, path[:-1], options)
    if legal_keys is None:
        is_unknown = bool(meant_key(tree, path, options))
    else:
        is_unknown = path[-1] not in legal_keys
    if override.is_delete() or not isinstance(parent, dict) or is_unknown:
        key_error = unknown_key(tree, path, options)
        return key_error._replace(hint=_with_value(key_error.hint, line.partition("=")[2], options))
    if path[-1] in ("fold", "folds") and is_ours(parent.get("_target_")):
        return Error(
            "conflict",
            line,
            "is not for this source, which has no folds",
            "remove it, or choose another data=...",
        )
    OmegaConf.update(cfg, key, override.value(), merge=True, force_add=True)
    return Error("missing", key, "is not set in conf/", f"add it with +{line}")
