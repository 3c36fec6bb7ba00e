"""Trainings of experiment=probe have the same head on any number of workers and after a stop.

The tests also check what they report.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from lockstep.assembly import checkpoints, run_parts, session
from lockstep.config.saved import config_file
from lockstep.models.classifier import Classifier
from lockstep.runs.folder import RunFolder
from lockstep.training.train import prepare_training
from tests.support.exact import cut_after, trained
from tests.support.harness import difference, train_all, write_run
from tests.support.image_files import write_folder

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    folder = tmp_path_factory.mktemp("probe")
    return [
        "experiment=probe",
        f"data.root={write_folder(folder / 'images')}", f"data.cache={folder / 'cache'}",
        "data.image_size=32", "data.val_fraction=0.25", "model=timm", "model.name=test_resnet",
        "model.pretrained=false", "trainer.precision=float64", "trainer.max_epochs=4",
        "strategy=cpu",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def alone(settings: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("alone") / "run", settings)


@pytest.mark.processes
def test_resume_other_workers(alone: RunFolder, settings: Sequence[str], tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [*settings, "trainer.devices=1"])
    cut_after(run, 2)
    run.config.write_text(run.config.read_text().replace("devices: 1", "devices: 3"))
    train_all([run], 3)
    assert difference(run, alone) < 1e-9


@pytest.mark.filterwarnings(
    "ignore:.*LeafSpec.* is deprecated", "ignore:.*does not have many workers"
)
def test_fine_tuning_init_from(alone: RunFolder, settings: Sequence[str], tmp_path: Path) -> None:
    of_both = [
        text for text in settings if not text.startswith(("experiment", "trainer.max_epochs"))
    ]
    run = write_run(tmp_path / "run", ["experiment=finetune", *of_both, f"init_from={alone.path}"])
    checkpoints.copy_initial_checkpoint(run, checkpoints.initial_checkpoint(str(alone.path)))
    with session.open_session(run, config_file.load(run.config), None) as here:
        here, data, module, _ = prepare_training(here, is_new=True)
        assert any(
            value.requires_grad for name, value in module.named_parameters() if "conv" in name
        )
        run_parts.lightning_trainer(here, module, logger=False).validate(
            module, data, verbose=False
        )
        assert isinstance(module, Classifier)
    best = min(float(row["val/loss"]) for row in alone.read_metrics())
    assert module.metrics["val/loss"] == pytest.approx(best, rel=1e-9)
