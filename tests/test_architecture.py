"""Arrows point down: what may import what. Imports inside functions count too."""

import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockstep

PACKAGE = Path(lockstep.__file__).parent
# lowest first; a module imports from its own package and from lower layers
LAYERS = (
    ("output", "signals", "annotations", "lazy_imports", "title"),
    ("run_folder", "parallel", "schema", "signatures", "environment", "terminal", "drawing", "entry"),
    ("data", "models", "checkpoint_io", "allocation", "runs", "memory", "vitals", "processes"),
    ("workers", "disk"),
    ("callbacks", "config", "watching", "notification", "board"),
    ("staging", "overrides", "project", "checkpoints", "presence"),
    ("session",),
    ("training", "evaluation", "prediction", "measurement", "preparation", "help"),
    ("launch",),
    ("supervision",),
    ("benchmark", "runner"),
    ("cluster",),
    ("sweeps",),
    ("cli",),
    ("__main__",),
)
KNOW_HYDRA = {"cli", "config", "overrides", "help", "runner"}
STARTS_AT_ONCE = (
    *("cli", "run_folder", "runs", "config", "terminal", "benchmark.command", "board.command", "notification"),
    *("watching.status", "watching.table", "watching.comparison", "watching.pruning"),
    *("cluster.commands", "cluster.submission"),
)


def sources() -> dict[str, Path]:
    """Every module by its name below lockstep, e.g. `data.sampler`; the package itself has the empty name."""
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(part for part in parts if part != "__init__")] = path
    return names


def imports(path: Path) -> Iterator[str]:
    """Full names of all modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides where it points"
            assert node.module is not None
            # `from lockstep import config` names a module, `from lockstep.config import Config` does not
            yield from (
                (f"lockstep.{alias.name}" for alias in node.names) if node.module == "lockstep" else [node.module]
            )


def part_of(name: str) -> str:
    return name.split(".")[0]


def own_imports(path: Path) -> set[str]:
    """The parts of lockstep, modules or packages, that a file imports."""
    return {name.split(".")[1] for name in imports(path) if name.startswith("lockstep.")}


def layer_of(part: str) -> int:
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


MODULES = sources()


def test_every_module_has_a_layer_and_every_layer_its_modules() -> None:
    parts = {part_of(name) for name in MODULES if name}
    assert parts == {part for layer in LAYERS for part in layer}


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_imports_point_down(name: str) -> None:
    part = part_of(name)
    upward = {other for other in own_imports(MODULES[name]) - {part} if layer_of(other) >= layer_of(part)}
    assert not upward, f"lockstep.{name} imports {upward}"


def test_the_package_itself_imports_nothing() -> None:
    assert list(imports(MODULES[""])) == []


def test_the_run_folder_imports_the_standard_library_only() -> None:
    assert {part_of(name) for name in imports(MODULES["run_folder"])} <= sys.stdlib_module_names


def test_the_partition_knows_no_torch() -> None:
    assert {part_of(name) for name in imports(MODULES["parallel.partition"])} <= sys.stdlib_module_names


@pytest.mark.parametrize(("one", "other"), [("data", "models"), ("models", "data")])
def test_data_and_models_never_meet(one: str, other: str) -> None:
    assert all(other not in own_imports(path) for name, path in MODULES.items() if part_of(name) == one)


def test_hydra_stays_at_the_entry() -> None:
    know = {
        part_of(name)
        for name, path in MODULES.items()
        if {"hydra", "omegaconf"} & {part_of(imported) for imported in imports(path)}
    }
    assert know == KNOW_HYDRA


@pytest.mark.parametrize("name", STARTS_AT_ONCE)
def test_what_must_start_at_once_imports_no_torch(name: str) -> None:
    code = (
        f"import sys, lockstep.{name}; print([m for m in ('torch', 'lightning', 'torchmetrics') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


@pytest.mark.parametrize(
    "name", ["run_folder", "watching.status", "watching.table", "watching.pruning", "cluster.commands"]
)
def test_what_only_looks_at_runs_starts_without_hydra_and_pydantic_too(name: str) -> None:
    code = f"import sys, lockstep.{name}; print(sorted({{'hydra', 'pydantic', 'yaml', 'numpy'}} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


HINT = re.compile(r"(lockstep (eval|predict|status|stop|board --logdir|jobs \w+)|resume)[ =]$")
QUOTED = ("run", "where", "job", "record.id", "ids", "live[0].id", "found[0].id")


@pytest.mark.parametrize("name", [name for name in MODULES if name and name != "run_folder"])
def test_every_hint_of_a_command_has_its_folder_from_the_function_that_quotes(name: str) -> None:
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.JoinedStr):
            for before, after in itertools.pairwise(node.values):
                if isinstance(after, ast.FormattedValue) and isinstance(before, ast.Constant):
                    is_setting = before is node.values[0] and before.value == "resume="  # names what was typed
                    if HINT.search(str(before.value)) and not is_setting:
                        assert ast.unparse(after.value).startswith((*QUOTED, "quoted(", "run_folder.quoted("))
