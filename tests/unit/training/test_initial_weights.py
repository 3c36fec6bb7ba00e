"""What a new run takes from a checkpoint: all of the network but a head of other classes, or nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn

from lockstep.config.errors import ConfigError
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.models.origin import Origin
from lockstep.models.weight_files import adapt_channels
from lockstep.tasks import Classification
from lockstep.training import initial_weights
from tests.support.modules import classifier
from tests.support.networks import Plain

RGB = ImageFormat(tuple("abcd"), (3, 8, 8), (0.1, 0.2, 0.6), (0.5, 0.25, 0.75))
FROM = "init_from=the-other"


class Deeper(Plain):
    """Has every layer of Plain, and one more."""

    def __init__(self, in_channels: int, num_classes: int, hidden: int) -> None:
        super().__init__(in_channels, num_classes, hidden)
        self.more = nn.Linear(hidden, hidden)


class NoHead(Plain):
    """Has no layer with as many outputs as classes."""

    def __init__(self, in_channels: int, num_classes: int, hidden: int) -> None:
        super().__init__(in_channels, 9, hidden)


class TwoHeads(Plain):
    """Its last layer with as many outputs as classes is not its only head."""

    def __init__(self, in_channels: int, num_classes: int, hidden: int) -> None:
        super().__init__(in_channels, num_classes, hidden)
        self.early = nn.Linear(hidden, num_classes)
        self.origin = Origin(head=("fc", "early"))


class Learned(Classification):
    """Learns a factor of the outputs."""

    def __init__(self, factor: float) -> None:
        super().__init__(loss=None, label_smoothing=0.0, class_weights=None)
        self.factor = nn.Parameter(torch.tensor(factor))


def formatted(classes: str, num_channels: int) -> ImageFormat:
    return ImageFormat(tuple(classes), (num_channels, 8, 8), (0.3,) * num_channels, (0.2,) * num_channels)


def made(images: ImageFormat, kind: type[Plain] = Plain, hidden: int = 4, seed: int = 1) -> Classifier:
    torch.manual_seed(seed)
    net = kind(images.image_shape[0], len(images.class_names), hidden)
    return classifier(net, Learned(float(seed)), image_format=images)


def saved(path: Path, module: L.LightningModule, **more: Any) -> Any:
    """Save a module as the checkpoint of a run; return the session of a new run on rank 0."""
    state = {name: value + 1 for name, value in module.state_dict().items()}
    torch.save({"state_dict": state, **more}, path / "initial.ckpt")
    config = SimpleNamespace(init_from="the-other", silent=False)
    return SimpleNamespace(config=config, rank=0, folder=SimpleNamespace(initial_weights=path / "initial.ckpt"))


def source(path: Path, images: ImageFormat = RGB, kind: type[Plain] = Plain, hidden: int = 4) -> tuple[Any, Any]:
    """Return the session of a new run, and the state of the other one."""
    session = saved(path, made(images, kind, hidden, seed=7), image_format=images._asdict())
    return session, torch.load(session.folder.initial_weights)["state_dict"]


def taken(session: Any, module: L.LightningModule, images: ImageFormat) -> dict[str, Tensor]:
    """Load the weights; return those tensors that have changed."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
    initial_weights.load(session, module, images)
    return {name: value for name, value in module.state_dict().items() if not torch.equal(value, before[name])}


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
def test_other_classes_and_channels(tmp_path: Path, classes: str, num_channels: int, mean: list[float]) -> None:
    """The head of other classes is new, the convolution of other channels is adapted."""
    session, state = source(tmp_path)
    images = formatted(classes, num_channels)
    module = made(images)
    found = taken(session, module, images)
    own = {"net.fc.weight", "net.fc.bias", "task.factor"} if classes != "abcd" else set[str]()
    assert state.keys() - found.keys() == own
    torch.testing.assert_close(found["net.conv.weight"], adapt_channels(state["net.conv.weight"], num_channels))
    fixed = found.keys() - {"net.conv.weight", "mean", "std"}
    assert all(torch.equal(found[name], state[name]) for name in fixed)
    assert module.image_format.mean == pytest.approx([value + 1 / 255 for value in mean])
    assert found["mean"].flatten().tolist() == pytest.approx([255 * value + 1 for value in mean])


def test_other_classes_without_head(tmp_path: Path) -> None:
    session, state = source(tmp_path, kind=NoHead, hidden=5)
    images = formatted("wxyz", 3)
    found = taken(session, made(images, NoHead, 5), images)
    assert state.keys() - found.keys() == {"task.factor"}


def test_several_heads(tmp_path: Path) -> None:
    session, state = source(tmp_path, kind=TwoHeads)
    images = formatted("xyz", 3)
    found = taken(session, made(images, TwoHeads), images)
    left = {"net.fc.weight", "net.fc.bias", "net.early.weight", "net.early.bias", "task.factor"}
    assert state.keys() - found.keys() == left


@pytest.mark.parametrize(
    ("there", "here", "hidden", "classes", "error"),
    [
        # norm.num_batches_tracked fits: no reason to take it
        (Plain, Plain, 5, "xy", "conv.weight"),
        (Plain, Plain, 5, "abcd", "conv.weight"),
        (Plain, Deeper, 4, "xy", "more.weight is missing"),
        (Deeper, Plain, 4, "abcd", "more.weight is not expected"),
    ],
)
def test_other_network_refused(
    tmp_path: Path, there: type[Plain], here: type[Plain], hidden: int, classes: str, error: str
) -> None:
    session, _ = source(tmp_path, kind=there)
    images = formatted(classes, 3)
    with pytest.raises(ConfigError, match=f"{FROM}: the weights are of another network: {error}"):
        initial_weights.load(session, made(images, here, hidden), images)


class Own(L.LightningModule):
    """A custom module around a network."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.net = Plain(3, num_classes, 4)
        self.projection = nn.Linear(4, 7)


def test_custom_module_other_classes(tmp_path: Path) -> None:
    session = saved(tmp_path, Own(4), image_format=RGB._asdict())
    module, images = Own(2), formatted("xy", 3)
    found = taken(session, module, images)
    assert module.state_dict().keys() - found.keys() == {"net.fc.weight", "net.fc.bias"}


def test_network_of_custom_module(tmp_path: Path) -> None:
    """Its classes are unknown, so that the head is new."""
    session = saved(tmp_path, Own(4))
    found = taken(session, made(RGB), RGB)
    assert {"net.conv.weight", "net.norm.bias"} <= found.keys()
    assert not {"net.fc.weight", "mean", "projection.weight"} & found.keys()


def test_file_of_other_program_refused(tmp_path: Path) -> None:
    session, _ = source(tmp_path)
    of_timm = {"state_dict": {"conv1.weight": torch.zeros(1)}, "epoch": 1}
    for content in ({"model": {}}, [1], {"state_dict": {}, "hyper_parameters": Path}, of_timm):
        torch.save(content, session.folder.initial_weights)
        with pytest.raises(ConfigError, match=r"is not a checkpoint of a run: .*model\.pretrained=FILE"):
            initial_weights.load(session, made(RGB), RGB)
