"""A run folder may name targets of known libraries and of the project in the current folder."""

import sys
from pathlib import Path

import pytest

from lockstep.config.checks import signatures
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError
from lockstep.config.saved import project, trust
from lockstep.runs.folder import RunFolder
from tests.support.composed import config_of

KNOWN = [
    "albumentations.Compose",
    *(
        "lockstep.data.digits",
        "lockstep.models.ResNet18",
        "lockstep.callbacks.Pictures",
        "lockstep.tasks.Accuracy",
    ),
    *(
        "torch.nn.MSELoss",
        "torch.nn.functional.huber_loss",
        "torch.optim.RAdam",
        "torch.optim.lr_scheduler.StepLR",
    ),
    *(
        "torchvision.models.resnet18",
        "torchmetrics.F1Score",
        "lightning.pytorch.callbacks.Timer",
        "torch.tensor",
    ),
]
UNKNOWN = [
    *(
        "os.system",
        "torch.os.system",
        "torch.nn.modules.module.os.system",
        "torchvision.models._api.torch.hub.load",
    ),
    *(
        "torch.hub.load",
        "torch.load",
        "builtins.eval",
        "hydra.utils.get_method",
        "functools.partial",
    ),
    *(
        "lockstep.load",
        "lockstep.data.lazy_loader",
        "lockstep.launch.runner.start",
        "src.lockstep.launch.worker.take_job",
    ),
    *(
        "torchvision.datasets.LSUN",
        "albumentations.save",
        "lightning.pytorch.loggers.MLFlowLogger",
        "torch.nn.__getattr__",
        "timm.create_model",
    ),
    *(
        "tests.support.commands.run",
        "benchmarks.faults.main",
        "nowhere.Net",
        "",
        "torch.nn.",
        "torch..nn",
        ["os.system"],
        7,
    ),
]


@pytest.mark.parametrize(
    ("target", "expected"),
    [*((target, True) for target in KNOWN), *((target, False) for target in UNKNOWN)],
)
def test_known_targets(target: object, expected: bool) -> None:
    assert trust._is_known(target, RunFolder(Path("/somewhere/run"))) == expected


def test_service_logger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A logger of a service is accepted only where trainings alone build it."""
    monkeypatch.setattr(signatures, "is_there", lambda package: True)
    run, comet = RunFolder(tmp_path), "{_target_:lightning.pytorch.loggers.CometLogger}"
    trust.check(run, config_of("logger=wandb", f"+logger.mine={comet}"), compose.DEFAULT)
    with pytest.raises(ConfigError, match=r"^callbacks\.mine\._target_="):
        trust.check(run, config_of(f"+callbacks.mine={comet}"), compose.DEFAULT)


def test_project_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target belongs to the project if a module of the project defines it."""
    run, package = RunFolder(tmp_path / "theirs" / "run"), tmp_path / "flower_project"
    for folder in (run.path, package, tmp_path / "outputs", tmp_path / "libraries"):
        folder.mkdir(parents=True)
    (package / "network.py").write_text("import os\nfrom os import system\n\nclass Net: ...\n")
    (package / "__init__.py").write_text(
        "from flower_project.network import Net, system\nfrom torch.nn import ReLU\n"
    )
    files = ("theirs/code.py", "theirs/run/code.py", "outputs/code.py", "libraries/installed.py")
    for path in (*files, "photos/helper.py", "flower_project/data/helper.py", "network.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("class Net: ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "libraries")])
    project.enter(tmp_path)
    project_names = (
        "flower_project.Net",
        "flower_project.network.Net",
        "flower_project.ReLU",
        "network.Net",
    )
    names = (
        *project_names,
        # imported from elsewhere
        *("flower_project.system", "flower_project.network.system"),
        "flower_project.network.os.system",
        # of others
        *("theirs.code.Net", "theirs.run.code.Net", "outputs.code.Net", "installed.Net"),
        "flower_project.Net.mro",
        # in folders without __init__.py
        *("photos.helper.Net", "flower_project.data.helper.Net"),
    )
    assert [name for name in names if trust._is_known(name, run)] == [*project_names]
