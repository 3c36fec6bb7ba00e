"""Refuses targets and variables in the saved configuration of a run that is not trusted."""

import ast
import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import lockstep
from lockstep.config.checks import signatures
from lockstep.config.composing.compose import REFUSALS, Source, compose_config, plain_tree
from lockstep.config.errors import config_error, literal
from lockstep.config.saved import project
from lockstep.config.saved.config_file import to_tree
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import DATA_PATHS, SERVICES, VARIABLE
from lockstep.runs import naming
from lockstep.runs.folder import RunFolder
from lockstep.system.provenance import project_root
from lockstep.system.trees import Tree

# Some of these variables name libraries that worker processes load.
VARIABLES = ("strategy.variables.",)
PATHS = tuple(f"data.{key}" for key in DATA_PATHS)
OWN = ("lockstep.callbacks", "lockstep.data", "lockstep.models", "lockstep.tasks")
# The public names of these modules run no command, unpickle nothing except in LSUN, and call
# nothing by name. Some entries are single names. Other loggers are not listed, because some send a
# key from the environment to the address that they are given.
LIBRARIES = {
    "torch.nn",
    "torch.nn.functional",
    "torch.utils.data",
    "torchmetrics",
    "torchmetrics.classification",
    "torch.optim",
    "torch.optim.lr_scheduler",
    "torch.optim.swa_utils",
    "timm.optim",
    "torchmetrics.regression",
    "torchvision.datasets",
    "torchvision.models",
    "torchvision.transforms",
    "torchvision.transforms.v2",
    "torchvision.ops",
    "lightning.pytorch.callbacks",
    "optuna.pruners",
    "optuna.samplers",
    "torch.tensor",
    "lightning.pytorch.loggers.CSVLogger",
    "lightning.pytorch.loggers.TensorBoardLogger",
    "datetime.timedelta",
}
# In a copy of Lockstep's repository, two of these folders run commands.
NO_PACKAGES = ("benchmarks", "outputs", "tests")


def check(
    run: RunFolder,
    saved_config: Config,
    project_source: Source,
    overrides: Sequence[str] = (),
    *,
    is_trusted: bool = False,
    settings: tuple[str, ...] = VARIABLES,
) -> None:
    """Raise ConfigError for unknown targets and for `settings` that run commands.

    Both are checked in `saved_config`. Values that `project_source` also has, and values that
    `overrides` replace, are accepted. All values of a trusted run are accepted, and its
    modules are found from now on, after all others. All `PATHS` of a run that was made here are
    accepted. The paths of other runs may contain no $NAME, which could carry a secret of this user
    to a server.
    """
    if is_trusted:
        project.use(run, saved_config, is_last=True)
        return
    default_values = cache(lambda: dict(_values(_compose_defaults(project_source))))
    for key, value in _values(to_tree(saved_config)):
        is_target = "_target_" in key.split(".")
        # Only trainings build these loggers, and they do not resume a run of someone else.
        if key.startswith("logger.") and value in SERVICES:
            continue
        is_path = key in PATHS
        if is_path and (run.is_made_here() or not VARIABLE.search(str(value))):
            continue
        if value is None or not (is_target or key.startswith(settings)):
            continue
        # A {...} is merged with the existing values.
        assignments = (line.lstrip("+~").partition("=") for line in overrides)
        is_typed = any(
            f"{key}.".startswith(f"{typed_key}.") and new_value.lstrip()[:1] != "{"
            for typed_key, _, new_value in assignments
        )
        if (
            not is_typed
            and not (is_target and _is_known(value, run))
            and default_values().get(key) != value
        ):
            setting = key if not (is_path or is_target) else f"{key}={literal(value)}"
            problem = "contains a variable of this machine"
            hint = f"set {key}=..., or add --trust"
            if not is_path:
                origin = "a known library" if is_target else "the command line"
                problem = f"comes neither from {origin} nor from the project in the current folder"
                hint = naming.TRUST_HINT
            escaped_setting = setting.encode("unicode_escape").decode()
            location = naming.display_path(run.path)
            raise config_error("untrusted", f"{escaped_setting} of {location}", problem, hint)


def _compose_defaults(source: Source) -> Tree:
    try:
        return plain_tree(compose_config([], source))[0]
    except REFUSALS:
        return {}


def _values(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        for child_key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _values(child, f"{key}.{child_key}".lstrip("."))
    else:
        yield key, value


def _is_known(target: Any, run: RunFolder) -> bool:
    """Return whether a dotted name is in a known library or in the current project.

    A module of the project must define it. A name that the module imports is looked up where it
    comes from. A package that contains the `run` does not belong to the project.
    """
    if not isinstance(target, str) or not all(map(str.isidentifier, target.split("."))):
        return False
    module, _, name = target.rpartition(".")
    if module in OWN:
        lockstep_module = importlib.import_module(module)
        # The second round reports a missing name.
        return name in lockstep_module.__all__ or not hasattr(lockstep_module, name)
    if module == "albumentations":
        return name[:1].isupper()  # Its functions load and save files.
    if module in LIBRARIES or target in LIBRARIES:
        return not name.startswith(("_", "LSUN"))
    file, package = _source(module), module.partition(".")[0]
    if file is None or package in NO_PACKAGES:
        return False
    # PYTHONPATH is not searched, because it often contains libraries.
    folders = (project_root(), project_root() / "src", Path.cwd())
    packages = [
        path
        for path in (folder.resolve() / package for folder in folders)
        if not run.path.is_relative_to(path)
    ]
    is_inside = any(
        file.is_relative_to(path) or file == path.with_suffix(".py") for path in packages
    )
    if not is_inside or file.is_relative_to(Path(lockstep.__file__).resolve().parent):
        return False
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            for alias in (alias for alias in node.names if (alias.asname or alias.name) == name):
                parent = module if file.name == "__init__.py" else module.rpartition(".")[0]
                source_module = importlib.util.resolve_name(
                    "." * node.level + (node.module or ""), parent
                )
                return _is_known(f"{source_module}.{alias.name}", run)
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return True
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in node.targets
        ):
            return True
    return False


def _source(module: str) -> Path | None:
    """Return the file of a module without importing it, or None if Python does not find it.

    The result is also None below a folder without `__init__.py`, because Python would take any
    folder of data for a package.
    """
    package, *submodules = module.split(".")
    spec = importlib.util.find_spec(package) if signatures.is_there(package) else None
    if spec is None or spec.origin in ("built-in", "frozen"):
        return None
    folders = [*(spec.submodule_search_locations or ())]
    path = Path(spec.origin or "")
    if submodules and folders:
        parent_folders = [Path(folders[0], *submodules[:depth]) for depth in range(len(submodules))]
        module_path = Path(folders[0], *submodules)
        path = (
            module_path / "__init__.py" if module_path.is_dir() else module_path.with_suffix(".py")
        )
        if not all((folder / "__init__.py").is_file() for folder in parent_folders):
            return None
    return path.resolve() if path.suffix == ".py" and path.is_file() else None
