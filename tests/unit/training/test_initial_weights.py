"""A new run takes all of a checkpoint's network but a head of other classes, or nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn

from lockstep.config.errors import ConfigError
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.models.weight_files import adapt_channels
from lockstep.tasks import Classification
from lockstep.training import initial_weights
from tests.support.modules import classifier
from tests.support.networks import Plain

RGB = ImageFormat(tuple("abcd"), (3, 8, 8), (0.1, 0.2, 0.6), (0.5, 0.25, 0.75))


class Learned(Classification):
    """Learns a factor of the outputs."""

    def __init__(self, factor: float) -> None:
        super().__init__(loss=None, label_smoothing=0.0, class_weights=None)
        self.factor = nn.Parameter(torch.tensor(factor))


def made(images: ImageFormat, hidden: int = 4, seed: int = 1) -> Classifier:
    torch.manual_seed(seed)
    net = Plain(images.image_shape[0], len(images.class_names), hidden)
    return classifier(net, Learned(float(seed)), image_format=images)


def source(path: Path) -> tuple[Any, dict[str, Tensor]]:
    """Save the checkpoint of a run.

    Returns the session of a new run on rank 0, and the state of the other one.
    """
    state = {name: value + 1 for name, value in made(RGB, seed=7).state_dict().items()}
    torch.save({"state_dict": state, "image_format": RGB._asdict()}, path / "initial.ckpt")
    config = SimpleNamespace(init_from="the-other", silent=False)
    folder = SimpleNamespace(initial_weights=path / "initial.ckpt")
    return SimpleNamespace(config=config, is_shown=not config.silent, folder=folder), state


def taken(session: Any, module: L.LightningModule, images: ImageFormat) -> dict[str, Tensor]:
    """Load the weights; return those tensors that have changed."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
    initial_weights.load(session, module, images)
    return {
        name: value
        for name, value in module.state_dict().items()
        if not torch.equal(value, before[name])
    }


def test_same_classes(tmp_path: Path) -> None:
    session, state = source(tmp_path)
    found = taken(session, made(RGB), RGB)
    assert found.keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in found.items())


@pytest.mark.parametrize(
    ("classes", "num_channels", "mean"),
    [
        pytest.param("xy", 3, [0.1, 0.2, 0.6], id="fewer classes"),
        pytest.param("abdc", 3, [0.1, 0.2, 0.6], id="other order"),
        pytest.param("abcd", 1, [0.3], id="one channel"),
        pytest.param("abcdefg", 4, [0.1, 0.2, 0.6, 0.1], id="more classes and channels"),
    ],
)
def test_other_classes_and_channels(
    tmp_path: Path, classes: str, num_channels: int, mean: list[float]
) -> None:
    """The head of other classes is new, the convolution of other channels is adapted."""
    session, state = source(tmp_path)
    images = ImageFormat(
        tuple(classes), (num_channels, 8, 8), (0.3,) * num_channels, (0.2,) * num_channels
    )
    module = made(images)
    found = taken(session, module, images)
    own = {"net.fc.weight", "net.fc.bias", "task.factor"} if classes != "abcd" else set[str]()
    assert state.keys() - found.keys() == own
    torch.testing.assert_close(
        found["net.conv.weight"], adapt_channels(state["net.conv.weight"], num_channels)
    )
    fixed = found.keys() - {"net.conv.weight", "mean", "std"}
    assert all(torch.equal(found[name], state[name]) for name in fixed)
    assert module.image_format.mean == pytest.approx([value + 1 / 255 for value in mean])
    assert found["mean"].flatten().tolist() == pytest.approx([255 * value + 1 for value in mean])


def test_foreign_file_refused(tmp_path: Path) -> None:
    session, _ = source(tmp_path)
    of_timm = {"state_dict": {"conv1.weight": torch.zeros(1)}, "epoch": 1}
    for content in ({"model": {}}, [1], {"state_dict": {}, "hyper_parameters": Path}, of_timm):
        torch.save(content, session.folder.initial_weights)
        with pytest.raises(
            ConfigError, match=r"is not a checkpoint of a run: .*model\.pretrained=FILE"
        ):
            initial_weights.load(session, made(RGB), RGB)
