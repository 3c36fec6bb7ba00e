"""What TensorBoard and the folder of pictures hold of a run: complete, and the same from any number of workers."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.util import tensor_util
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from lockstep import drawing, launch
from lockstep.callbacks import curves
from lockstep.callbacks.curves import settings
from lockstep.models.classifier import Classifier
from lockstep.run_folder import RunFolder
from tests.harness import SMALL, WATCHED, train_all, write_run
from tests.modules import classifier

pytestmark = pytest.mark.processes
PICTURES = {"class_accuracy", "confusion_matrix", "precision_recall", "predictions", "worst_mistakes"}
EVERY_TAG = {
    "train_step/loss", "train_step/accuracy", "learning_rate", "gradient_norm", "train/loss", "train/accuracy",
    "val/loss", "val/accuracy", "test/loss", "test/accuracy", "machine/images_per_s", "machine/memory_gib",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, RunFolder]:
    """The same training by one process, and by three with uneven shares."""
    root: Path = tmp_path_factory.mktemp("monitoring")
    recipe = [
        *SMALL,
        *WATCHED,
        "data.num_classes=4",
        "callbacks.pictures.every_n_epochs=2",
        "callbacks.pictures.num_images=8",
    ]
    recipe.append("trainer.gradient_clip_norm=null")
    found = {}
    for world_size, loads in ((1, "null"), (3, "[2,0,1]")):
        overrides = [*recipe, f"trainer.devices={world_size}", f"trainer.loads={loads}"]
        found[world_size] = write_run(root / str(world_size), overrides)
        found[world_size].overrides.write_text("model.width=4\nname=a b\n")
        others = []
        if world_size == 1:
            others = [write_run(root / "no logger", [*SMALL, *WATCHED, "logger=none", "trainer.max_epochs=1"])]
        train_all([found[world_size], *others], world_size)
    return found


def events(folder: RunFolder) -> EventAccumulator:
    """Everything TensorBoard reads of a run."""
    return EventAccumulator(str(folder.tensorboard), size_guidance={"scalars": 0, "images": 0, "tensors": 0}).Reload()


def tensors(found: EventAccumulator, tag: str) -> Any:
    return tensor_util.make_ndarray(found.Tensors(tag)[-1].tensor_proto)


def test_every_number_has_its_curve_and_the_charts_name_no_other(runs: dict[int, RunFolder]) -> None:
    found = events(runs[3])
    assert set(found.Tags()["scalars"]) == EVERY_TAG
    layout = Layout.FromString(tensors(found, "custom_scalars__config__").item())
    charts = {chart.title: list(chart.multiline.tag) for category in layout.category for chart in category.chart}
    assert charts["Loss"] == ["train/loss", "val/loss"]
    assert charts["Accuracy"] == ["train/accuracy", "val/accuracy"]
    assert {tag for tags in charts.values() for tag in tags} <= EVERY_TAG


def test_curves_of_any_number_of_workers_are_the_same(runs: dict[int, RunFolder]) -> None:
    alone, shared = events(runs[1]), events(runs[3])
    for tag in EVERY_TAG - {"machine/images_per_s", "machine/memory_gib"}:
        one, other = ([(e.step, e.value) for e in found.Scalars(tag)] for found in (alone, shared))
        assert len(one) > 0
        assert [step for step, _ in one] == [step for step, _ in other], tag
        assert [value for _, value in one] == pytest.approx([value for _, value in other], rel=1e-6), tag


def test_pictures_are_the_same_from_any_number_of_workers(runs: dict[int, RunFolder]) -> None:
    for split in ("val", "test"):
        for name in PICTURES:
            one, other = (np.asarray(Image.open(folder.pictures / f"{split}_{name}.png")) for folder in runs.values())
            assert one.shape == other.shape
            assert (one == other).mean() > 0.999, f"{split}_{name}"
    assert {path.name for path in runs[3].pictures.iterdir()} == {
        f"{s}_{n}.png" for s in ("val", "test") for n in PICTURES
    }
    images = events(runs[3])
    assert set(images.Tags()["images"]) == {f"{split}/{name}" for split in ("val", "test") for name in PICTURES}
    assert [event.step for event in images.Images("val/predictions")] == [10]  # the second of two epochs


def test_precision_recall_counts_every_test_sample_once(runs: dict[int, RunFolder]) -> None:
    for folder in runs.values():
        found = events(folder)
        for name in ("class 0", "class 1", "class 2", "class 3"):
            counts = tensors(found, f"test/{name}")[:4]  # true and false positives, true and false negatives
            assert (counts.sum(0) == 31).all()
            assert counts[0, 0] + counts[3, 0] == counts[0, -1] + counts[3, -1]


def test_settings_command_commit_and_machine_stand_as_text(runs: dict[int, RunFolder]) -> None:
    folder = runs[3]
    found = events(folder)
    texts = {
        name: tensors(found, f"{name}/text_summary").item().decode()
        for name in ("config", "command", "commit", "environment")
    }
    assert "    global_batch_size: 16" in texts["config"]
    environment = json.loads(folder.environment.read_text())
    assert environment["commit"] in texts["commit"]
    assert texts["command"] == "    python train.py model.width=4 'name=a b'"
    assert json.loads(texts["environment"]) == environment


def test_the_graph_is_the_network(runs: dict[int, RunFolder]) -> None:
    names = {node.name for node in events(runs[1]).Graph().node}
    assert any("ResNet18" in name and "conv" in name for name in names)


def test_hyperparameters_are_the_settings_and_name_the_results(runs: dict[int, RunFolder]) -> None:
    found = events(runs[1])
    content = {
        tag: HParamsPluginData.FromString(found.SummaryMetadata(tag).plugin_data.content)
        for tag in found.PluginTagToContent("hparams")
    }
    start = content["_hparams_/session_start_info"].session_start_info.hparams
    assert start["optimizer.lr"].number_value == 0.1
    assert start["optimizer"].string_value == "SGD"
    assert set(start) == set(settings(runs[1]))
    metrics = {info.name.tag for info in content["_hparams_/experiment"].experiment.metric_infos}
    assert metrics <= set(found.Tags()["scalars"])
    assert "test/accuracy" in metrics
    first = [info.name for info in content["_hparams_/experiment"].experiment.hparam_infos if info.differs]
    assert first == ["model.width"]
    assert content["_hparams_/session_end_info"].session_end_info.status == 1  # success


def test_the_status_tells_all_a_watcher_needs(runs: dict[int, RunFolder]) -> None:
    status = runs[3].read_status()
    with open(runs[3].path / "metrics.csv") as file:
        last = list(csv.DictReader(file))[-1]
    assert status["state"] == "finished"
    assert (status["epoch"], status["step"], status["total_steps"], status["percent"]) == (2, 10, 10, 100.0)
    assert (status["workers"], status["precision"], status["name"]) == (3, "float64", "synthetic_resnet18")
    assert status["learning_rate"] == float(last["learning_rate"])
    assert status["epoch_s"] == pytest.approx(float(last["seconds"]), abs=2e-3)
    assert status["metrics"]["val/loss"] == float(last["val/loss"])


def test_without_a_logger_pictures_are_still_in_the_folder(runs: dict[int, RunFolder]) -> None:
    folder = RunFolder(runs[1].path.parent / "no logger")
    assert {path.name for path in folder.pictures.iterdir()} == {f"test_{name}.png" for name in PICTURES}
    assert not folder.tensorboard.exists()


def test_a_picture_that_cannot_be_drawn_costs_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("no space left")

    folder = write_run(tmp_path / "run", [*SMALL, *WATCHED, "logger=none", "trainer.max_epochs=1"])
    folder.pictures.mkdir()
    (folder.pictures / "test_worst_mistakes.png").write_text("of an earlier session")
    monkeypatch.setattr(drawing, "class_accuracy", fail)
    with pytest.warns(UserWarning, match="pictures of the test split are not complete: OSError"):
        assert launch.run_here(launch.Job("train", str(folder.path), {"command": "", "has_test": True}), None) == 0
    assert folder.read_status()["state"] == "finished"
    assert "test_accuracy" in folder.read_summary()
    assert [path.name for path in folder.pictures.iterdir()] == ["test_confusion_matrix.png"]


class Untraceable(nn.Linear):
    """Fails in a trace, as networks do that look at their input."""

    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
            raise RuntimeError("cannot be traced")
        return super().forward(input)


def test_a_network_that_cannot_be_drawn_is_trained_without_its_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SummaryWriter(tmp_path) as writer, pytest.warns(UserWarning, match="no graph.*: RuntimeError"):
        curves._add_graph(writer, classifier(nn.Sequential(nn.Flatten(), Untraceable(9, 4))))
    assert capsys.readouterr().out == ""


def test_a_compiled_network_with_dropout_is_drawn(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(9, 4))
    with SummaryWriter(tmp_path) as writer:
        curves._add_graph(writer, classifier(net, compile_mode="default"))
    assert EventAccumulator(str(tmp_path)).Reload().Graph().node


def test_a_failure_of_the_test_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = Classifier._evaluate

    def fail(self: Classifier, split: str, batch: Any) -> Tensor | None:
        if split == "test":
            raise RuntimeError("out of memory")
        return evaluate(self, split, batch)

    folder = write_run(tmp_path / "run", [*SMALL, WATCHED[1], "trainer.max_epochs=1"])
    monkeypatch.setattr(Classifier, "_evaluate", fail)
    assert launch.run_here(launch.Job("train", str(folder.path), {"command": "", "has_test": True}), None) == 1
    assert folder.failure.read_text().splitlines()[-1] == "RuntimeError: out of memory"
