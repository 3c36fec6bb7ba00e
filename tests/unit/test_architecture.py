"""Arrows point down: what may import what. Imports inside functions count too."""

import ast
import graphlib
import importlib
import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import lockstep
from tests.support.architecture import (
    LAYERS,
    MODULES,
    arrows,
    direct,
    imports,
    layer_of,
    own_imports,
    part_of,
)
from tests.support.harness import ROOT

KNOW_HYDRA = {
    *("cli.train", "config.build", "config.compose", "config.options", "config.overrides", "config.resume"),
    *("config.saved_run", "config.sweep_space", "config.validation", "cli.help"),
}
PUBLIC = {
    "tasks": ["Accuracy", "Classification", "Multilabel", "Regression", "SupervisedTask", "Task"],
    "callbacks": [
        *("AveragedWeights", "Curves", "Pictures"),
        *("ResumableCSVLogger", "ResumableWandbLogger", "SplitTensorBoardLogger"),
    ],
    "data": [
        *("ImageError", "Images", "Splits", "Statistics"),
        *("cifar10", "dataset", "digits", "fashion_mnist", "image_folder", "image_list", "synthetic"),
    ],
    "models": ["Classifier", "Origin", "ResNet18", "constant", "cosine", "one_cycle_linear", "timm", "torchvision"],
}
STARTS_AT_ONCE = (
    *("cli.main", "cli.train", "config.validation", "launch.notification", "system.terminal", "runs.folder"),
    *("callbacks", "data", "models", "runs.discovery", "benchmark.command", "board.command"),
    *("monitoring.status", "monitoring.table", "monitoring.comparison", "monitoring.pruning"),
    *("cluster.commands", "cluster.submission", "python.run"),
)


def test_every_module_has_a_layer_and_every_layer_its_modules(record_property: Callable[[str, object], None]) -> None:
    parts = {part_of(name) for name in MODULES if name}
    assert parts == {part for layer in LAYERS for part in layer}
    record_property("layers, from the top", " / ".join(" ".join(layer) for layer in reversed(LAYERS)))


def test_no_modules_import_each_other_in_a_circle() -> None:
    arrows = {name: {other.removeprefix("lockstep.") for other in imports(path)} for name, path in MODULES.items()}
    graphlib.TopologicalSorter({name: to & MODULES.keys() - {name} for name, to in arrows.items()}).prepare()


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_imports_point_down(name: str) -> None:
    part = part_of(name)
    upward = {other for other in own_imports(MODULES[name]) - {part} if layer_of(other) >= layer_of(part)}
    assert not upward, f"lockstep.{name} imports {upward}"


def test_the_package_itself_imports_nothing_before_a_name_of_its_own_is_asked_for() -> None:
    asked = "import sys, lockstep; print(*sorted(name for name in sys.modules if name.startswith('lockstep')))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["lockstep"]


OWN_NAMES = [
    *("Batch", "ConfigError", "Prediction", "Predictions", "Predictor", "Run", "Task", "TrainingFailed"),
    *("load", "runs", "sum_over_global", "train"),
]


def test_names_of_the_package_itself_stay_and_no_package_takes_their_place() -> None:
    assert sorted(vars(lockstep)["__all__"]) == OWN_NAMES
    importlib.import_module("lockstep.runs.folder")  # from now on `lockstep.runs` is that package
    assert all(callable(getattr(lockstep, name)) for name in OWN_NAMES)
    assert importlib.import_module("lockstep.runs") is lockstep.runs
    with pytest.raises(FileNotFoundError, match="nowhere is no folder"):
        lockstep.runs("nowhere")
    with pytest.raises(AttributeError, match="No lockstep attribute trains"):
        _ = lockstep.trains  # pyright: ignore[reportAttributeAccessIssue]


def test_looking_at_runs_imports_no_torch_hydra_or_numpy(tmp_path: Path) -> None:
    asked = "import sys, lockstep; lockstep.runs(); print({'torch', 'hydra', 'numpy', 'pydantic'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "set()\n"


def test_arrows_that_the_picture_leaves_out_follow_from_those_it_draws() -> None:
    every, drawn = arrows(), direct(arrows())
    for part, to in every.items():
        seen: set[str] = set()
        to_see = [part]
        while to_see:
            found = drawn[to_see.pop()] - seen
            seen |= found
            to_see += found
        assert to <= seen
        assert drawn[part] <= to


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_stay_where_they_are(package: str) -> None:
    face = importlib.import_module(f"lockstep.{package}")
    assert sorted(face.__all__) == PUBLIC[package]
    assert all(getattr(face, name).__name__ == name for name in face.__all__)
    with pytest.raises(AttributeError, match="attribute digit"):
        _ = face.digit


def test_the_configuration_uses_public_names_alone() -> None:
    public = {f"lockstep.{package}.{name}" for package, names in PUBLIC.items() for name in names}
    texts = [path.read_text() for path in (ROOT / "conf").rglob("*.yaml")]
    used = {name for text in texts for name in re.findall(r"(?<![\w.])lockstep\.[\w.]+", text)}
    assert used
    assert used <= public


def test_the_folder_of_a_run_needs_the_standard_library_only() -> None:
    outside = {part_of(name) for name in MODULES if part_of(name) == "runs" for name in imports(MODULES[name])}
    assert outside - {"lockstep"} <= sys.stdlib_module_names


def test_the_partition_knows_no_torch() -> None:
    assert {part_of(name) for name in imports(MODULES["distributed.partition"])} <= sys.stdlib_module_names


@pytest.mark.parametrize(("one", "other"), [("data", "models"), ("models", "data")])
def test_data_and_models_never_meet(one: str, other: str) -> None:
    assert all(other not in own_imports(path) for name, path in MODULES.items() if part_of(name) == one)


def test_hydra_stays_at_the_entry() -> None:
    know = {
        name
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
    "name",
    ["runs.folder", "monitoring.status", "monitoring.table", "monitoring.pruning", "cluster.commands", "python.run"],
)
def test_what_only_looks_at_runs_starts_without_hydra_and_pydantic_too(name: str) -> None:
    code = f"import sys, lockstep.{name}; print(sorted({{'hydra', 'pydantic', 'yaml', 'numpy'}} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_no_file_of_tests_imports_another_one() -> None:
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name.startswith("test_")]
    assert len(files) > 80
    for path in files:
        shared = {name for name in imports(path) if name.startswith("tests.")}
        assert {".".join(name.split(".")[:2]) for name in shared} <= {"tests.support"}, path


# private parts of others: those of Lightning and torch in one module, of the rest each where it is used
REACHES_IN = {
    "board.command": {"_DATA_SERVER_ADVISORY_MESSAGE"},  # tensorboard says it where it has no fast reader
    "callbacks.average": {"_average_model"},  # of its own parent class; torch's update stays without it
    "config.overrides": {"_apply_overrides_to_config"},  # Hydra's own: one override, so that one error hides no other
    "cluster.slurm": {"_make_submission_file_text", "_submitit_command_str"},  # submitit has no dry run
    # of torchmetrics: the states of a metric, how they add up, what values are rounded to, and its way over the ranks
    "tasks.reduction": {"_defaults", "_dtype", "_reductions", "_sync_dist"},
    "sweeps.search": {"_trial_id"},  # Optuna's storage asks for it
    "system.internals": None,
    "system.lazy_imports": None,  # the names of packages, which are Python's
    "launch.worker": {"_run_exitfuncs"},  # of atexit: nothing else is done at the exit
    "system.process": {"_run_exitfuncs"},  # likewise
    # of multiprocessing: a fork of the server is to ask that one, and a command ends its own
    "system.processes": {"_forkserver", "_forkserver_pid"},
}
PUBLIC_IN_SPITE = {"_asdict", "_replace", "_fields", "_exit", "_target_", "_partial_", "_check_", "_args_"}


def private_names(tree: ast.AST) -> set[str]:
    """Names with an underscore that are asked of another object than `self`, also by getattr, or imported."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            found.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
            found |= {str(each.value) for each in node.args if isinstance(each, ast.Constant)}
        elif isinstance(node, ast.ImportFrom) and not str(node.module).startswith(("_typeshed", "hydra._internal")):
            found |= {*str(node.module).split("."), *(alias.name for alias in node.names)}
    return {name for name in found if name.startswith("_") and not name.endswith("__")} - PUBLIC_IN_SPITE


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_private_parts_of_others_are_reached_into_where_it_is_said_only(name: str) -> None:
    text = MODULES[name].read_text()
    allowed = REACHES_IN.get(name, set())
    if allowed is not None:
        assert private_names(ast.parse(text)) <= allowed


def test_an_access_to_private_parts_is_found() -> None:
    for line in ("x = trainer._loop", "getattr(x, '_loop')", "from torch._C import y", "from torch import _loop"):
        assert private_names(ast.parse(line)), line


HINT = re.compile(r"(lockstep (eval|predict|status|stop|board --logdir|jobs \w+)|resume)[ =]$")
QUOTE = ("quoted", "naming.quoted")
IDS = ("job.id", "live[0].id", "chosen_jobs[0].id")  # of jobs, as `record.ID` allows them


def is_quote(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in QUOTE


def assigned(function: ast.AST, name: str) -> list[ast.expr]:
    """All that a function assigns to a name, also in `a, b = x, y`."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    for node in ast.walk(function):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            assert isinstance(node, ast.Assign)
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs += zip(target.elts, node.value.elts, strict=True)
            else:
                pairs.append((target, node.value))
    return [value for target, value in pairs if ast.unparse(target) == name]


def unquoted(text: str) -> list[str]:
    """What stands behind the hint of a command and is neither quoted in the same function nor the id of a job."""
    found = []
    for function in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)):
        ids = {*IDS, *(each.arg for each in function.args.args if each.arg == "job")}
        for node in (node for node in ast.walk(function) if isinstance(node, ast.JoinedStr)):
            for before, after in itertools.pairwise(node.values):
                if not (isinstance(after, ast.FormattedValue) and isinstance(before, ast.Constant)):
                    continue
                is_setting = before is node.values[0] and before.value == "resume="  # names what was typed
                if is_setting or not HINT.search(str(before.value)):
                    continue
                name = ast.unparse(after.value)
                values = assigned(function, name)
                if not (is_quote(after.value) or all(map(is_quote, values) if values else [name in ids])):
                    found.append(name)
    return found


@pytest.mark.parametrize("name", [name for name in MODULES if name and name != "runs.naming"])
def test_every_hint_of_a_command_has_its_folder_from_the_function_that_quotes(name: str) -> None:
    assert unquoted(MODULES[name].read_text()) == []


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ("return f'lockstep eval {naming.shown(path)}'", "naming.shown(path)"),
        ("return f'lockstep jobs show {job.folder.path}'", "job.folder.path"),
        ("return f'lockstep stop {run}'", "run"),
        ("run = shown(path); return f'lockstep stop {run}'", "run"),
        ("run = quoted(path); run = path; return f'lockstep stop {run}'", "run"),
        ("job, run = 1, shown(path); return f'lockstep jobs cancel {job}, lockstep stop {run}'", "job"),
        ("where = quoted(path).strip(); return f'lockstep predict {where}'", "where"),
    ],
)
def test_a_hint_that_does_not_quote_is_found(lines: str, name: str) -> None:
    good = "x, run = 1, quoted(path)\n    return f'lockstep eval {run}; lockstep jobs show {job.id}, {naming.x}'"
    assert unquoted(f"def hint(path, job):\n    {good}\n") == []
    assert name in unquoted(f"def hint(path, job):\n    {lines}\n")
