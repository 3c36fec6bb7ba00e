"""Features of a frozen network: computed once for each image, and used for no other image, weights or view."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchvision import models

from lockstep.assembly import frozen_features
from lockstep.callbacks.stop import StopTogether
from lockstep.config.errors import ConfigError
from lockstep.models.frozen import take_features
from lockstep.runs.folder import EXIT_CONFIG, EXIT_STOPPED, RunFolder
from tests.support import commands
from tests.support.exact import cut_after, train
from tests.support.harness import difference, train_all, write_run
from tests.support.image_files import CHANGES, write_folder
from tests.support.recipes import turned

PLAIN = (
    *("data=image_folder", "data.image_size=16", "data.val_fraction=0.2", "data.test_fraction=0.2"),
    *("model=torchvision", "model.name=shufflenet_v2_x0_5", "trainer.precision=float64", "trainer.max_epochs=2"),
    *("trainer.log_every_n_steps=1", "global_batch_size=16", "eval_batch_size=7", "strategy=cpu"),
    *("strategy.timeout_s=300", "callbacks.pictures=null"),
)


def save_weights(path: Path, name: str, seed: int) -> Path:
    """Save random weights, with the statistics of noise: without them all features would be nearly 0."""
    torch.manual_seed(seed)
    net = models.get_model(name)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    net(torch.randn(64, 3, 16, 16))
    torch.save(net.state_dict(), path)
    return path


class Files:
    """A folder of images and a file of weights, and trainings of the head on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.images = write_folder(folder / "images", count=35)
        self.weights = self.write_weights(1)
        self._num_runs = 0

    def write_weights(self, seed: int) -> Path:
        return save_weights(self.folder / f"weights{seed}.pth", "shufflenet_v2_x0_5", seed)

    def run(self, *overrides: str, head_only: str = "true") -> RunFolder:
        self._num_runs += 1
        files = (f"data.root={self.images}", f"data.cache={self.folder / 'cache'}", f"model.pretrained={self.weights}")
        settings = (*PLAIN, *files, f"model.head_only={head_only}", *overrides)
        return write_run(self.folder / f"run{self._num_runs}", settings)

    @property
    def stores(self) -> list[Path]:
        return sorted((self.folder / "cache").glob("features-*.npy"))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of each call that computes features."""
    counts: list[int] = []
    compute = frozen_features._compute

    def count(*arguments: Any) -> Any:
        table, request = compute(*arguments)
        counts.append(len(table))
        return table, request

    monkeypatch.setattr(frozen_features, "_compute", count)
    return counts


@pytest.mark.processes
@pytest.mark.parametrize("cache", ["there", "null"])
def test_the_head_learns_what_it_learns_from_images_on_any_number_of_workers(files: Files, cache: str) -> None:
    more = ("data.cache=null",) if cache == "null" else ()
    whole = files.run(head_only="each_epoch")
    assert train(whole) == 0
    for num_workers in (1, 2, 3):
        run = files.run(f"trainer.devices={num_workers}", *more)
        train_all([run], num_workers)
        assert difference(whole, run) < 1e-12
    assert len(files.stores) == (cache == "there")


@pytest.mark.processes
def test_a_training_that_was_cut_continues_on_others(files: Files) -> None:
    whole, run = files.run(head_only="each_epoch"), files.run()
    assert train(whole) == 0
    cut_after(run, 2)
    for store in files.stores:
        store.unlink()  # resumed on a machine without them
    files.weights.unlink()
    run.config.write_text(run.config.read_text().replace("devices: auto", "devices: 2"))
    train_all([run], 2)
    assert difference(whole, run) < 1e-12


@pytest.mark.processes
def test_virtual_shards_have_the_same_bits_on_any_number_of_workers(files: Files) -> None:
    runs = [files.run("trainer.virtual_shards=4", f"trainer.devices={n}", "trainer.precision=float32") for n in (1, 2)]
    for num_workers, run in enumerate(runs, 1):
        for store in files.stores:
            store.unlink()
        train_all([run], num_workers)
    assert difference(*runs) == 0


def test_a_stop_keeps_what_was_computed(files: Files, computed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    whole, run = files.run(head_only="each_epoch"), files.run()
    assert train(whole) == 0
    with monkeypatch.context() as patch:
        patch.setattr(StopTogether, "request", lambda self, trainer: 15)
        assert train(run) == EXIT_STOPPED
    assert not run.last_checkpoint.exists()
    assert train(run) == 0
    assert computed == [64, 6]
    assert difference(whole, run) < 1e-12


def test_trials_folds_and_seeds_share_them(files: Files, computed: list[int]) -> None:
    folds = ("data.folds=3", "data.fold=0"), ("data.folds=3", "data.fold=1")
    for more in ((), ("seed=1",), ("optimizer.lr=0.01", "data.split_seed=4"), *folds):
        assert train(files.run(*more)) == 0
    assert computed == [70]


@pytest.mark.parametrize("change", ["changed", "added", "removed"])
def test_a_changed_image_has_features_of_its_own(files: Files, computed: list[int], change: str) -> None:
    assert train(files.run()) == 0
    path = next(iter(sorted(files.images.rglob("*07.png"))))
    CHANGES[change](path)
    run, plain = files.run(), files.run(head_only="each_epoch")
    assert train(run) == train(plain) == 0
    assert difference(run, plain) < 1e-12
    assert computed == ([70] if change == "removed" else [70, 1])


def test_a_test_after_a_training_in_bfloat16_has_features_in_float32(files: Files, tmp_path: Path) -> None:
    run = files.run("trainer.precision=bfloat16")
    train_all([run], 1)
    assert len(files.stores) == 2
    done = commands.run([sys.executable, "-m", "lockstep", "eval", str(run.path), "--json"], tmp_path)
    assert json.loads(done.stdout)["metrics"]["loss"] == pytest.approx(run.read_summary()["test_loss"], rel=1e-6)


@pytest.mark.parametrize("other", ["weights", "view", "precision", "network"])
def test_other_weights_and_views_have_features_of_their_own(files: Files, computed: list[int], other: str) -> None:
    more: tuple[str, ...] = ()
    assert train(files.run()) == 0
    match other:
        case "weights":
            files.weights = files.write_weights(2)
        case "view":
            more = ("data.crop_percent=0.5",)
        case "precision":
            more = ("trainer.precision=float32",)
        case _:
            files.weights = save_weights(files.folder / "other.pth", "shufflenet_v2_x1_0", 1)
            more = ("model.name=shufflenet_v2_x1_0",)
    run, plain = files.run(*more), files.run(*more, head_only="each_epoch")
    assert train(run) == train(plain) == 0
    assert difference(run, plain) < (1e-12 if other != "precision" else 1e-3)
    assert computed == [70, 70]


@pytest.mark.parametrize("content", [b"", b"no array", None])
def test_a_damaged_file_is_computed_again(files: Files, computed: list[int], content: bytes | None) -> None:
    first, second = files.run(), files.run()
    assert train(first) == 0
    (store,) = files.stores
    store.write_bytes(store.read_bytes()[:-100] if content is None else content)
    assert train(second) == 0
    assert difference(first, second) == 0
    assert computed == [70, 70]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_not_used(files: Files, computed: list[int]) -> None:
    assert train(files.run()) == 0
    (store,) = files.stores
    os.chown(store, 12345, -1)
    assert train(files.run()) == 0
    assert computed == [70, 70]


def test_the_run_has_the_whole_network(files: Files) -> None:
    run = files.run()
    assert train(run) == 0
    saved = torch.load(run.best_checkpoint, weights_only=True)
    there = torch.load(files.weights, weights_only=True)
    assert saved["image_format"]["image_shape"] == (3, 16, 16)
    assert not saved["image_format"]["is_float"]
    for name, value in saved["state_dict"].items():
        if name.startswith("net.") and not name.startswith("net.fc."):
            np.testing.assert_array_equal(value, there[name.removeprefix("net.")].double())


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (("augment.flip=true", "augment.mixup=0.2"), "augment.mixup=0.2 needs images, and model.head_only=true serves"),
        (("compile=true",), "compile=true needs images"),
        (("model.drop_path=0.1",), "model.drop_path=0.1 has no effect below the last layer with model.head_only"),
    ],
)
def test_what_features_do_not_allow_is_refused(files: Files, settings: tuple[str, ...], error: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(error)):
        files.run(*settings)


def test_a_convolution_as_head_is_refused(files: Files) -> None:
    run = files.run("model.name=squeezenet1_1")
    assert train(run) == EXIT_CONFIG
    assert (
        "model.head_only=true needs a linear last layer with a bias: use model.head_only=each_epoch"
        in run.failure.read_text()
    )


def test_a_probe_of_several_batches_is_refused(files: Files) -> None:
    run = files.run("optimizer=newton", "scheduler=constant", "global_batch_size=40")
    assert train(run) == EXIT_CONFIG
    error = "global_batch_size=40 cuts the training images, and optimizer=newton needs all: raise it"
    assert error in run.failure.read_text()


def test_a_network_without_a_head_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a linear last layer with a bias"):
        take_features(nn.Sequential(nn.Conv2d(3, 4, 1)), ())


def test_outputs_that_are_not_those_of_the_head_are_refused(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    network = models.shufflenetv2.ShuffleNetV2
    monkeypatch.setattr(network, "forward", lambda self, x: 2 * self._forward_impl(x))
    run = files.run()
    assert train(run) == EXIT_CONFIG
    assert "the outputs of lockstep.models.torchvision are not those of its last layer" in run.failure.read_text()


def test_samples_that_may_be_drawn_at_random_are_refused(tmp_path: Path) -> None:
    network = ("model=torchvision", "model.name=shufflenet_v2_x0_5", "model.head_only=true")
    run = write_run(tmp_path / "run", [*(text for text in turned() if not text.startswith("model.")), *network])
    assert train(run) == EXIT_CONFIG
    assert "model.head_only=true computes features once, and lockstep.data.dataset may draw" in run.failure.read_text()


def test_a_cache_that_cannot_be_written_is_named(files: Files) -> None:
    run = files.run("data.memory=stream", f"data.cache={files.weights}")
    assert train(run) == EXIT_CONFIG
    error = f"data.cache={files.weights} cannot keep features (["
    assert error in run.failure.read_text()
    assert "set a folder of your own, or data.cache=null" in run.failure.read_text()
