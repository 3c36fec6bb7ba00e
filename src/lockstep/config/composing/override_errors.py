"""Errors of single overrides that belong to another command or that Hydra refuses."""

import re
from importlib.util import find_spec
from pathlib import Path

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
)
UNUSED += (
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
    if override.is_sweep_override() and not is_multirun:
        hint = "give one" if is_benchmark else "add -m to sweep over them"
        if key in LISTS:
            hint = f"write {key}=[{line.partition('=')[2]}], or {hint}"
        return Error(
            "conflict", line, "lists several values", f"{hint}, or quote a value with commas"
        )
    is_shared = override.is_hydra_override() or scope(key) in SAME_FOR_ALL_JOBS
    if override.is_sweep_override() and is_shared:
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
    unknown_options = [
        option
        for option in (value if isinstance(value, list) else [value])
        if option not in options.get(key, ())
    ]
    if key not in options or not unknown_options:
        return None
    candidates = near_names(str(unknown_options[0]), options[key])
    all_options = ", ".join(options[key])
    hint = (
        f"did you mean {candidates[0]}? Choose from {all_options}"
        if candidates
        else f"choose from {all_options}"
    )
    return Error(
        "unknown",
        override.input_line or "",
        "is not an option",
        _option_hint(key, str(unknown_options[0])) or hint,
    )


def _option_hint(group: str, option: str) -> str:
    """Return the setting to write for an option of another framework or a network of a library."""
    option = option.lower()
    for library in ("torchvision", "timm") if group == "model" else ():
        spec = find_spec(library)
        function_name = option if library == "torchvision" else option.partition(".")[0]
        paths = Path(spec.origin).parent.glob("models/*.py") if spec and spec.origin else ()
        function = re.compile(
            rf"^@register_model\b.*\n(@.*\n)*def {re.escape(function_name)}\(", re.MULTILINE
        )
        # An import would take seconds.
        if any(function.search(path.read_text("utf-8")) for path in paths):
            return f"write model={library} model.name={option}"
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
    is_unknown = (
        path[-1] not in legal_keys
        if legal_keys is not None
        else bool(meant_key(tree, path, options))
    )
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
