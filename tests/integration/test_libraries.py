"""Networks of torchvision and timm: their weights, how they are fitted, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision import models

from lockstep.assembly.networks import parameter_rules
from lockstep.config.overrides import plan
from lockstep.models import timm as of_timm
from lockstep.models import torchvision as of_torchvision
from lockstep.models.parameter_groups import ParameterGroups
from lockstep.models.weight_files import adapt_channels
from lockstep.runs.folder import RunFolder
from tests.support.exact import refusal
from tests.support.harness import train_all, write_run
from tests.support.recipes import of_library

pytestmark = pytest.mark.full

PLAIN: dict[str, Any] = {
    **{"pretrained": False, "head_only": False, "frozen_norms": False},
    **{"dropout": None, "drop_path": None},
}


# -- weights ---------------------------------------------------------------------------------------

STILL = ("optimizer.lr=1e-300", "scheduler=constant")  # no weight moves by it


def weights(folder: RunFolder) -> dict[str, Any]:
    return torch.load(folder.last_checkpoint, weights_only=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Weights of networks for 3 channels and 1,000 classes, as their libraries have them."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(5)
    found = {"torchvision": folder / "squeezenet.pth", "timm": folder / "resnet.safetensors"}
    torch.save({"state_dict": models.squeezenet1_1().state_dict()}, found["torchvision"])
    save_file(timm.create_model("test_resnet").state_dict(), found["timm"])
    return found


@pytest.fixture(scope="module")
def runs(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """Trainings of two workers from the weights of a file."""
    settings = {
        "torchvision": ("torchvision squeezenet1_1", *STILL),
        "timm": ("timm test_resnet", *STILL),
        "frozen norms": ("timm test_resnet", "model.frozen_norms=true"),
    }
    root, found = tmp_path_factory.mktemp("runs"), {}
    for name, (network, *more) in settings.items():
        library, _ = network.split(" ")
        more += [f"model.pretrained={files[library]}", "trainer.devices=2"]
        found[name] = write_run(root / name, of_library(network, *more))
    train_all([*found.values()], 2)
    return found


@pytest.mark.processes
@pytest.mark.parametrize(
    ("library", "first", "head", "mean"),
    [
        ("torchvision", "features.0.weight", "classifier.1", (0.485 + 0.456 + 0.406) / 3),
        ("timm", "conv1.0.weight", "fc", 0.5),
    ],
)
def test_pretrained_file(
    files: dict[str, Path],
    runs: dict[str, RunFolder],
    library: str,
    first: str,
    head: str,
    mean: float,
) -> None:
    path = files[library]
    there = (timm.models.load_state_dict if library == "timm" else torch.load)(str(path))
    there = there.get("state_dict", there)
    saved = weights(runs[library])
    for key, value in there.items():
        here = saved["state_dict"][f"net.{key}"].to(value.dtype)
        if key.startswith(f"{head}."):
            assert here.shape[0] == 10
        elif key == first:
            torch.testing.assert_close(here, value.sum(1, keepdim=True))
        elif "running" not in key and "num_batches" not in key:
            torch.testing.assert_close(here, value, rtol=0, atol=1e-30)
    assert saved["image_format"]["mean"] == pytest.approx([mean])
    assert saved["state_dict"]["mean"].item() == pytest.approx(255 * mean)


@pytest.mark.parametrize(
    ("name", "is_file"), [("densenet121", False), ("squeezenet1_1", False), ("squeezenet1_1", True)]
)
def test_old_names_torchvision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_file: bool
) -> None:
    saved = models.get_model(name).state_dict()
    saved = {key: value for key, value in saved.items() if not key.endswith("num_batches_tracked")}
    there = {
        re.sub(r"(denselayer\d+\.[a-z]+)(\d)", r"\1.\2", key): value for key, value in saved.items()
    }
    file: Any = True
    if is_file:
        torch.save(there, file := str(tmp_path / "weights.pth"))
    monkeypatch.setattr(
        models._api, "load_state_dict_from_url", lambda *arguments, **more: dict(there)
    )
    net: Any = of_torchvision(3, 1000, name=name, **{**PLAIN, "pretrained": file})
    net.origin.load()
    assert all(torch.equal(net.state_dict()[key], value) for key, value in saved.items())


# -- how they are fitted ---------------------------------------------------------------------------


@pytest.mark.parametrize("num_channels", [1, 3, 4, 7])
def test_adapt_channels(num_channels: int) -> None:
    weight = torch.randn(5, 3, 2, 2, dtype=torch.float64)
    found = adapt_channels(weight, num_channels)
    assert found.shape == (5, num_channels, 2, 2)
    gray = torch.randn(2, 1, 6, 6, dtype=torch.float64)
    expected = nn.functional.conv2d(gray.expand(-1, 3, -1, -1), weight)
    if num_channels in (1, 3):
        torch.testing.assert_close(
            nn.functional.conv2d(gray.expand(-1, num_channels, -1, -1), found), expected
        )
    else:
        torch.testing.assert_close(found[:, :3] * num_channels / 3, weight)


def test_gray_as_color() -> None:
    networks = []
    for num_channels in (1, 3):
        torch.manual_seed(0)
        networks.append(of_torchvision(num_channels, 5, name="squeezenet1_1", **PLAIN).eval())
    of_gray, of_color = networks
    images = torch.rand(2, 1, 64, 64)
    torch.testing.assert_close(of_gray(images), of_color(images.expand(-1, 3, -1, -1)))


@pytest.mark.parametrize(
    ("make", "name", "head"),
    [
        (of_torchvision, "shufflenet_v2_x0_5", "fc"),
        (of_torchvision, "mobilenet_v3_small", "classifier.3"),
        (of_torchvision, "squeezenet1_1", "classifier.1"),
        (of_timm, "test_resnet", "fc"),
        (of_timm, "test_convnext", "head.fc"),
        (of_timm, "test_vit", "head"),
    ],
)
def test_finetune_head_rate(make: Any, name: str, head: str) -> None:
    """conf/experiment/finetune.yaml is composed: its pattern null is the head of any network."""
    library = make.__name__
    config = plan(
        ["experiment=finetune", "data.root=here", f"model={library}", f"model.name={name}"]
    ).configs[0]
    net = make(3, 7, name=name, **PLAIN)
    rules = parameter_rules(config, net, nn.Module(), 7)
    groups = ParameterGroups(net, nn.Module(), rules).optimizer_groups(0.01)
    assert {group.get("lr_factor", 1.0) for group in groups} == {1.0, 10.0}
    names = {parameter: key for key, parameter in net.named_parameters()}
    fast = {names[p] for group in groups if group.get("lr_factor") == 10 for p in group["params"]}
    assert fast == {f"{head}.weight", f"{head}.bias"}


@pytest.mark.parametrize(
    ("make", "name", "head"),
    [
        (of_torchvision, "efficientnet_b0", "classifier.1"),
        (of_timm, "test_efficientnet", "classifier"),
    ],
)
def test_new_head_equal_outputs(make: Any, name: str, head: str) -> None:
    """A new head of an EfficientNet gives equal outputs.

    As the libraries draw a head for few classes, it begins at a loss of several times log(5).
    """
    net = make(3, 5, name=name, **{**PLAIN, "pretrained": True}).eval()
    assert not net(torch.randn(4, 3, 64, 64)).any()
    assert make(3, 5, name=name, **PLAIN).get_submodule(head).weight.std() > 0.2


@pytest.mark.processes
def test_frozen_norms(files: dict[str, Path], runs: dict[str, RunFolder]) -> None:
    saved = weights(runs["frozen norms"])["state_dict"]
    there = timm.models.load_state_dict(str(files["timm"]))
    norms = {name.removesuffix("running_mean") for name in there if name.endswith("running_mean")}
    for name, value in there.items():
        if name.startswith("fc."):
            continue
        is_norm = name.rpartition(".")[0] + "." in norms
        here = saved[f"net.{name}"].to(value.dtype)
        assert is_norm == (here.shape == value.shape and torch.equal(here, value)), name


@pytest.mark.parametrize(
    ("make", "name"), [(of_torchvision, "mobilenet_v2"), (of_timm, "test_efficientnet")]
)
def test_head_only(make: Any, name: str) -> None:
    net = make(2, 7, name=name, **{**PLAIN, "head_only": True})
    trained = [key for key, parameter in net.named_parameters() if parameter.requires_grad]
    assert all(key.startswith("classifier") for key in trained)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    assert net(torch.randn(3, 2, 32, 32)).shape == (3, 7)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


@pytest.mark.parametrize("network", ["torchvision squeezenet1_1", "timm resnet18"])
def test_failed_download_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str
) -> None:
    def refuse(*arguments: Any, **more: Any) -> Any:
        raise OSError("<urlopen error [Errno -2] Name or service not known>")

    monkeypatch.setattr(models._api, "load_state_dict_from_url", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    assert "model.pretrained=true: cannot load the weights" in refusal(
        tmp_path / "run", of_library(network, "model.pretrained=true")
    )


def test_old_names_timm(tmp_path: Path) -> None:
    """ConvNeXt's weights as its authors published them."""
    saved, names = timm.create_model("test_convnext").state_dict(), dict[str, str]()
    for name in saved:
        there = re.sub(r"^stem\.", "downsample_layers.0.", name)
        there = re.sub(r"^stages\.(\d)\.blocks\.", r"stages.\1.", there)
        there = re.sub(r"^stages\.(\d)\.downsample\.", r"downsample_layers.\1.", there)
        for here, before in (
            ("conv_dw", "dwconv"),
            ("mlp.fc", "pwconv"),
            ("head.norm", "norm"),
            ("head.fc", "head"),
        ):
            there = there.replace(here, before)
        names[there] = name
    torch.save(
        {"model": {there: saved[name] for there, name in names.items()}}, tmp_path / "weights.pth"
    )
    net: Any = of_timm(
        3, 1000, name="test_convnext", **{**PLAIN, "pretrained": str(tmp_path / "weights.pth")}
    )
    net.origin.load()
    assert all(torch.equal(net.state_dict()[key], value) for key, value in saved.items())


@pytest.mark.parametrize(
    ("make", "settings", "error"),
    [
        (
            of_torchvision,
            {"name": "resnet18", "dropout": 0.1},
            "unexpected keyword argument 'dropout'",
        ),
        (
            of_torchvision,
            {"name": "swin_t", "drop_path": 0.1},
            "values for keyword argument 'stochastic_depth_prob'",
        ),
        (of_torchvision, {"name": "googlenet"}, "model.name=googlenet has auxiliary outputs"),
        (of_timm, {"name": "resnet18.nope"}, "model.name=resnet18.nope: Invalid pretrained tag"),
    ],
)
def test_unknown_settings_refused(make: Any, settings: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(error)):
        make(1, 4, **{**PLAIN, **settings})
