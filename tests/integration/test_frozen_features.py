"""Features of a frozen network are computed once for each image.

They are used for no other image, weights or preprocessing.
"""

import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision import models

from lockstep.config.errors import ConfigError
from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support.exact import cut_after, train
from tests.support.harness import difference, train_all, write_run
from tests.support.image_files import write_folder, write_image

PLAIN = (
    *("data=image_folder", "data.image_size=16", "data.val_fraction=0.2", "data.test_fraction=0.2"),
    *(
        "model=torchvision",
        "model.name=shufflenet_v2_x0_5",
        "trainer.precision=float64",
        "trainer.max_epochs=2",
    ),
    *("trainer.log_every_n_steps=1", "global_batch_size=16", "eval_batch_size=7", "strategy=cpu"),
    *("strategy.timeout_s=300", "callbacks.pictures=null"),
)


def save_weights(path: Path, name: str, seed: int) -> Path:
    """Save random weights, with the statistics of noise.

    Without these statistics all features would be nearly 0.
    """
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
        self.weights = save_weights(folder / "weights.pth", "shufflenet_v2_x0_5", 1)
        self._num_runs = 0

    def run(self, *overrides: str, head_only: str = "true") -> RunFolder:
        self._num_runs += 1
        files = (
            f"data.root={self.images}",
            f"data.cache={self.folder / 'cache'}",
            f"model.pretrained={self.weights}",
        )
        settings = (*PLAIN, *files, f"model.head_only={head_only}", *overrides)
        return write_run(self.folder / f"run{self._num_runs}", settings)

    @property
    def stores(self) -> list[Path]:
        return sorted((self.folder / "cache").glob("features-*.npy"))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, RunFolder, Path]:
    """Files, a run on them, and the file of its features."""
    files = Files(tmp_path_factory.mktemp("stored"))
    run = files.run()
    assert train(run) == 0
    (store,) = files.stores
    return files, run, store


@pytest.mark.processes
@pytest.mark.parametrize("cache", ["there", pytest.param("null", marks=pytest.mark.full)])
def test_head_from_features(files: Files, cache: str) -> None:
    more = ("data.cache=null",) if cache == "null" else ()
    whole = files.run(head_only="each_epoch")
    assert train(whole) == 0
    run = files.run("trainer.devices=2", *more)
    train_all([run], 2)
    assert difference(whole, run) < 1e-12
    assert len(files.stores) == (cache == "there")


@pytest.mark.full
def test_resume_without_files(stored: tuple[Files, RunFolder, Path], files: Files) -> None:
    """On another machine, which has neither the features nor the pretrained weights."""
    _, complete, _ = stored
    run = files.run()
    cut_after(run, 2)
    for path in (*files.stores, files.weights):
        path.unlink()
    assert train(run) == 0
    assert difference(complete, run) < 1e-12


@pytest.mark.full
def test_changed_images(files: Files) -> None:
    """A file that has the features of all images is not written again."""
    assert train(files.run()) == 0
    changed, removed = sorted(files.images.rglob("*07.png"))
    inodes = [files.stores[0].stat().st_ino]
    removed.unlink()
    for new_images in ((), (changed, changed.with_name("new.png"))):
        for seed, path in enumerate(new_images, 98):
            write_image(path, seed)
        run, plain = files.run(), files.run(head_only="each_epoch")
        assert train(run) == train(plain) == 0
        assert difference(run, plain) < 1e-12
        inodes.append(files.stores[0].stat().st_ino)
    assert inodes[0] == inodes[1] != inodes[2]


@pytest.mark.full
@pytest.mark.parametrize(
    ("more", "name", "seed", "bound"),
    [
        pytest.param((), "shufflenet_v2_x0_5", 2, 1e-12, id="weights"),
        pytest.param(("data.crop_percent=0.5",), "shufflenet_v2_x0_5", 1, 1e-12, id="transform"),
        pytest.param(("trainer.precision=float32",), "shufflenet_v2_x0_5", 1, 1e-3, id="precision"),
        pytest.param(
            ("model.name=shufflenet_v2_x1_0",), "shufflenet_v2_x1_0", 1, 1e-12, id="network"
        ),
    ],
)
def test_recomputed_other_settings(
    stored: tuple[Files, RunFolder, Path],
    more: tuple[str, ...],
    name: str,
    seed: int,
    bound: float,
) -> None:
    files, _, _ = stored
    weights = save_weights(files.folder / f"{name} {seed}.pth", name, seed)
    settings = (f"model.pretrained='{weights}'", *more)
    run, plain = files.run(*settings), files.run(*settings, head_only="each_epoch")
    assert train(run) == train(plain) == 0
    assert difference(run, plain) < bound


@pytest.mark.full
@pytest.mark.parametrize("content", [b"", b"no array", None])
def test_damaged_file(stored: tuple[Files, RunFolder, Path], content: bytes | None) -> None:
    files, first, store = stored
    second = files.run()
    store.write_bytes(store.read_bytes()[:-100] if content is None else content)
    assert train(second) == 0
    assert difference(first, second) == 0


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_of_other_user(stored: tuple[Files, RunFolder, Path]) -> None:
    """It is computed and written again."""
    files, _, store = stored
    os.chown(store, 12345, -1)
    assert train(files.run()) == 0
    assert store.stat().st_uid == 0


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (("augment.flip=true", "augment.mixup=0.2"), "augment.mixup=0.2 needs images"),
        (("compile=true",), "compile=true needs images"),
        (("model.drop_path=0.1",), "model.drop_path=0.1 has no effect below the last layer"),
    ],
)
def test_wrong_settings_refused(files: Files, settings: tuple[str, ...], error: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(error)):
        files.run(*settings)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (("model.name=squeezenet1_1",), "model.head_only=true needs a linear last layer"),
        (
            ("optimizer=newton", "scheduler=constant", "global_batch_size=40"),
            "global_batch_size=40",
        ),
        (
            ("data.memory=stream", "data.cache={weights}"),
            "data.cache={weights} cannot keep features",
        ),
    ],
)
def test_wrong_parts_refused(files: Files, settings: tuple[str, ...], error: str) -> None:
    run = files.run(*(text.format(weights=files.weights) for text in settings))
    assert train(run) == EXIT_CONFIG
    assert error.format(weights=files.weights) in run.failure.read_text()


def test_outputs_beside_head_refused(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    network = models.shufflenetv2.ShuffleNetV2
    monkeypatch.setattr(network, "forward", lambda self, x: 2 * self._forward_impl(x))
    run = files.run()
    assert train(run) == EXIT_CONFIG
    assert "are not those of its last layer" in run.failure.read_text()
