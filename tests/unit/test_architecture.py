"""Imports point down the layers, those of the promise stay in it, and fast commands skip torch."""

import ast
import graphlib
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockstep
from tests.support.architecture import (
    LAYERS,
    MODULES,
    imports,
    layer_of,
    nodes,
    outward_imports,
    own_imports,
    part_of,
)
from tests.support.harness import ROOT

STANDARD_ONLY = {name for name in MODULES if part_of(name) == "runs"} | {"distributed.partition"}


def test_import_layers() -> None:
    """Imports point down and have no cycle."""
    of = {name: set(imports(path)) for name, path in MODULES.items() if name}
    assert {part_of(name) for name in of} == {part for layer in LAYERS for part in layer}
    upward = {
        f"{name} -> {other}"
        for name in of
        for other in own_imports(MODULES[name]) - {part_of(name)}
        if layer_of(other) >= layer_of(part_of(name))
    }
    assert not upward
    graph = {
        name: {other.removeprefix("lockstep.") for other in found} & of.keys()
        for name, found in of.items()
    }
    graphlib.TopologicalSorter({name: others - {name} for name, others in graph.items()}).prepare()
    for name in STANDARD_ONLY:
        assert {part_of(other) for other in of[name]} - {"lockstep"} <= sys.stdlib_module_names, (
            name
        )
    with_hydra = {
        name for name, found in of.items() if {"hydra", "omegaconf"} & {*map(part_of, found)}
    }
    assert {part_of(name) for name in with_hydra - {"system.internals"}} == {"cli", "config"}


def test_private_names_single_module() -> None:
    """Deferred modules have stand-ins for their private names: libraries."""
    ours = {
        node.name
        for path in MODULES.values()
        for node in _nodes(path, ast.FunctionDef, ast.ClassDef)
    }
    ours |= {
        node.attr
        for path in MODULES.values()
        for node in _nodes(path, ast.Attribute)
        if _is_set(node)
    }
    ours |= {
        ast.unparse(node.target)
        for path in MODULES.values()
        for node in _nodes(path, ast.AnnAssign)
    }
    named_tuple, hydra = {"_asdict", "_replace", "_fields", "_exit"}, {"_target_"}
    found = set()
    for name, path in MODULES.items():
        for node in _nodes(path, ast.Attribute, ast.ImportFrom, ast.FunctionDef):
            if isinstance(node, ast.Attribute):
                names = {node.attr} - ours - named_tuple - hydra
            elif isinstance(node, ast.ImportFrom):
                parts = {*str(node.module).split("."), *(alias.name for alias in node.names)}
                names = parts - {"__future__", "_typeshed"}
            else:
                names = (
                    {node.name} if "override" in map(ast.unparse, node.decorator_list) else set()
                )
            found |= {
                f"{name}.{part}"
                for part in names
                if part.startswith("_") and not part.endswith("__")
            }
    used = {
        each for each in found if not each.startswith(("system.internals.", "system.libraries."))
    }
    assert used == {"system.signals._handle"}  # whose base is ours


def _nodes(path: Path, *kinds: type[ast.AST]) -> "Iterator[Any]":
    return (node for node in nodes(path) if isinstance(node, kinds))


def _is_set(node: ast.Attribute) -> bool:
    """True for `self._x = ...`; a part of another library is set elsewhere."""
    return (
        isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("self", "cls")
    )


def test_promise_imports() -> None:
    """What makes N workers compute what one would imports nothing above it."""
    assert not outward_imports()


@pytest.mark.parametrize(
    ("names", "left_out"),
    [
        (
            [
                *("cli.main", "cli.train", "config.checks.validation"),
                *("benchmark.command", "board.command", "data", "models"),
            ],
            {"torch", "lightning"},
        ),
        (
            [
                *("runs.folder", "monitoring.status", "monitoring.table"),
                *("cluster.commands", "python.run"),
            ],
            {"torch", "hydra", "pydantic", "yaml", "numpy"},
        ),
    ],
    ids=["checked", "only reads run folders"],
)
@pytest.mark.processes
def test_command_imports(names: list[str], left_out: set[str]) -> None:
    """Commands start without torch, and those that only read runs start without Hydra, too."""
    modules = ", ".join(f"lockstep.{name}" for name in names)
    code = f"import sys, {modules}; print({left_out} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "set()\n"


def test_public_names() -> None:
    """Names in conf are public, and no module hides one."""
    text = "".join(path.read_text() for path in (ROOT / "conf").rglob("*.yaml"))
    for target in set(re.findall(r"(?<![\w./=])lockstep\.[\w.]+", text)):
        package, _, name = target.rpartition(".")
        assert name in importlib.import_module(package).__all__, target
    importlib.import_module("lockstep.runs.folder")  # binds `lockstep.runs` to the package
    assert all(callable(getattr(lockstep, name)) for name in vars(lockstep)["__all__"])
