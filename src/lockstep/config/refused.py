"""Errors about single overrides: of another command, or refused by Hydra."""

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from lockstep.config.compose import plain
from lockstep.config.errors import near, one_line
from lockstep.config.foreign_names import hint
from lockstep.config.key_scopes import OF_ENVIRONMENTS, SAME_FOR_ALL_JOBS, scope
from lockstep.config.targets import Groups, legal_names, meant_key, unknown_key
from lockstep.system.trees import at


def misplaced(override: Override, *, is_multirun: bool, is_benchmark: bool) -> str | None:
    """Describe an override of another command, or one with several values where there can be one."""
    key, text = override.key_or_group, override.input_line
    if is_benchmark:
        if key in ("resume", "changed_data"):
            return f"{text}: a benchmark starts new runs: remove it"
        if key in OF_ENVIRONMENTS:
            return f"{text}: set by each environment of a benchmark: see benchmark.environments and budget_s"
    elif key.partition(".")[0] == "benchmark":
        return f"{text}: only `lockstep benchmark` reads benchmark: remove it"
    if override.is_sweep_override() and not is_multirun:
        line = "give one" if is_benchmark else "add -m to sweep over them"
        return f"{text} lists several values: {line}, or quote a value with commas"
    if override.is_sweep_override() and scope(key) in SAME_FOR_ALL_JOBS:
        return f"{text} lists several values, but all jobs of a sweep share it: give one"
    return None


def option_error(override: Override, options: Groups) -> str | None:
    key, value = override.key_or_group, override.value()
    wrong = [option for option in (value if isinstance(value, list) else [value]) if option not in options.get(key, ())]
    if key not in options or not wrong:
        return None
    text = f"{override.input_line} is not an option"
    if line := hint(f"{key}={wrong[0]}"):
        return f"{text}: {line}"
    meant = near(str(wrong[0]), options[key])
    return text + (f", did you mean {meant[0]}? Choose" if meant else ": choose") + f" from {', '.join(options[key])}"


def refusal(cfg: DictConfig, override: Override, error: Exception, options: Groups) -> str:
    """Describe an override that Hydra refuses. If it lacks a +, its value is added, so that it is checked, too."""
    text, key = override.input_line or "", override.key_or_group
    path, tree = key.split("."), plain(cfg)[0]
    parent = at(tree, path[:-1])
    if isinstance(parent, dict) and path[-1] in parent:
        reason = one_line(error if error.__cause__ is None else error.__cause__)
        return f"{text}: {reason}" + (f", write +{text} to add it" if isinstance(override.value(), dict) else "")
    legal = legal_names(tree, path[:-1], options)
    is_unknown = path[-1] not in legal if legal is not None else bool(meant_key(tree, path, options))
    if override.is_delete() or not isinstance(parent, dict) or is_unknown:
        return unknown_key(tree, path, options)
    OmegaConf.update(cfg, key, override.value(), merge=True, force_add=True)
    return f"{key} is not set in conf/: add it with +{key}=..."
