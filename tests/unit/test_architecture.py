"""Imports point down the layers and into the rings of tests/support/architecture.py; fast commands import no torch."""

import ast
import graphlib
import importlib
import re
import subprocess
import sys

import lockstep
from lockstep.config import features
from tests.support.architecture import (
    LAYERS,
    MODULES,
    PACKAGE,
    imports,
    layer_of,
    outward_imports,
    own_imports,
    part_of,
    ring_of,
)
from tests.support.harness import ROOT

STANDARD_ONLY = {name for name in MODULES if part_of(name) == "runs"} | {"distributed.partition"}
# commands that only read run folders
FAST = ("runs.folder", "monitoring.status", "monitoring.table", "monitoring.pruning", "cluster.commands", "python.run")
CHECKED = ("cli.main", "cli.train", "config.validation", "benchmark.command", "board.command", "data", "models")


def test_imports_point_down_and_never_in_a_circle() -> None:
    of = {name: set(imports(path)) for name, path in MODULES.items() if name}
    assert {part_of(name) for name in of} == {part for layer in LAYERS for part in layer}
    upward = {
        f"{name} -> {other}"
        for name in of
        for other in own_imports(MODULES[name]) - {part_of(name)}
        if layer_of(other) >= layer_of(part_of(name))
    }
    assert not upward
    graph = {name: {other.removeprefix("lockstep.") for other in found} & of.keys() for name, found in of.items()}
    graphlib.TopologicalSorter({name: others - {name} for name, others in graph.items()}).prepare()
    for name in STANDARD_ONLY:
        assert {part_of(other) for other in of[name]} - {"lockstep"} <= sys.stdlib_module_names, name
    with_hydra = {part_of(name) for name, found in of.items() if {"hydra", "omegaconf"} & {*map(part_of, found)}}
    assert with_hydra == {"cli", "config"}


def test_the_promise_knows_no_run_and_a_run_no_feature() -> None:
    assert not outward_imports("promise")
    assert not outward_imports("run")


def test_one_training_is_read_in_an_afternoon() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.split("## One training, straight down")[1].split("\n## ")[0]
    paths = [ROOT / "train.py", *(PACKAGE / name for name in set(re.findall(r"`(\w+/[\w/]+\.py)`", section)))]
    lines = {path.name: len(path.read_text().splitlines()) for path in paths}
    assert len(lines) <= 20, sorted(lines)
    assert sum(lines.values()) <= 3900, lines


def test_every_feature_has_its_function() -> None:
    for feature in features.FEATURES:
        assert ring_of(feature.function.partition(":")[0].removeprefix("lockstep.")) == "features"
        assert callable(features.named_function(feature.function))


def test_commands_start_without_torch_and_those_that_only_read_runs_without_hydra_too() -> None:
    for names, left_out in ((CHECKED, {"torch", "lightning"}), (FAST, {"torch", "hydra", "pydantic", "yaml", "numpy"})):
        code = f"import sys, {', '.join(f'lockstep.{name}' for name in names)}; print({left_out} & sys.modules.keys())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        assert done.stdout == "set()\n"


def test_public_names_are_those_of_conf_and_no_module_hides_one() -> None:
    text = "".join(path.read_text() for path in (ROOT / "conf").rglob("*.yaml"))
    for target in set(re.findall(r"(?<![\w.])lockstep\.[\w.]+", text)):
        package, _, name = target.rpartition(".")
        assert name in importlib.import_module(package).__all__, target
    importlib.import_module("lockstep.runs.folder")  # binds `lockstep.runs` to the package
    assert all(callable(getattr(lockstep, name)) for name in vars(lockstep)["__all__"])


def test_no_file_of_tests_imports_another_one() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        names = {str(node.module) for node in nodes if str(node.module).startswith("tests")}
        assert all(name.startswith("tests.support") for name in names), path
