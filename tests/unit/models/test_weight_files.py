"""What is taken from a file of weights, by which names, and how it is reported."""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lockstep.models import weight_files
from lockstep.models.pretrained_metadata import attach_ends
from tests.support.networks import Plain


def network(seed: int = 1, num_classes: int = 4, in_channels: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return Plain(in_channels, num_classes, 5)


def load(path: Path, net: nn.Module, num_classes: int = 4) -> str:
    return weight_files.load_weights(str(path), net, attach_ends(net, num_classes), dict)


def has_all(net: nn.Module, state: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


# -- names -----------------------------------------------------------------------------------------


# the average of torchvision's script counts its updates in addition; a module around a network has
# a loss
BESIDE = {"n_averaged": torch.tensor(3), "loss.weight": torch.ones(4)}


@pytest.mark.parametrize(
    ("prefix", "others", "suffix"),
    [
        ("", {}, ".pt"),
        ("module._orig_mod.", {}, ".bin"),
        ("model.model.module.", {}, ".pth.tar"),
        ("student.net.", {}, ".safetensors"),
        ("module.", BESIDE, ".pth"),
    ],
)
def test_prefixes_removed(
    tmp_path: Path, prefix: str, others: dict[str, Tensor], suffix: str
) -> None:
    """Wrappers in any nesting; what has no prefix where most names have one is left out."""
    state = network(7).state_dict()
    saved, path = (
        {f"{prefix}{name}": value for name, value in state.items()},
        tmp_path / f"weights{suffix}",
    )
    (save_file if suffix == ".safetensors" else torch.save)(saved | others, path)
    net = network()
    load(path, net)
    assert has_all(net, state)


def test_backbone_beside_other_layers(tmp_path: Path) -> None:
    state = {
        name: value for name, value in network(7).state_dict().items() if not name.startswith("fc")
    }
    there = {f"backbone.{name}": value for name, value in state.items()} | {
        "head.0.weight": torch.ones(4, 4)
    }
    save_file(there, tmp_path / "weights.safetensors")
    net = network()
    load(tmp_path / "weights.safetensors", net)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in state.items())


@pytest.mark.parametrize(
    ("keys", "taken"),
    [
        (["state_dict", "state_dict_ema"], "state_dict_ema"),
        (["model", "model_ema"], "model_ema"),
        (["state_dict"], "state_dict"),
        (["model"], "model"),
    ],
)
def test_average_first(tmp_path: Path, keys: list[str], taken: str) -> None:
    states = {key: network(seed).state_dict() for seed, key in enumerate(keys, 5)}
    script = {
        "args": argparse.Namespace(lr=0.1, resume=argparse.Namespace()),
        "optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1).state_dict(),
        "epoch": 3,
    }
    torch.save(script | states, tmp_path / "weights.pth")
    net = network()
    assert load(tmp_path / "weights.pth", net).endswith(f"; from {taken}")
    assert has_all(net, states[taken])


@pytest.mark.parametrize(
    ("rename", "error"),
    [
        (lambda name: f"_{name.replace('.', '_0.')}", r"conv\.weight is missing"),
        # a prefix that few names have is not removed
        (lambda name: name.replace("fc.", "module.fc."), r"module\.fc\.weight is not expected"),
    ],
    ids=["all names", "rare prefix"],
)
def test_other_network_refused(tmp_path: Path, rename: Callable[[str], str], error: str) -> None:
    state = {rename(name): value for name, value in network(7).state_dict().items()}
    torch.save(state, tmp_path / "weights.pth")
    net = network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(ValueError, match=f"the weights are of another network: {error}"):
        load(tmp_path / "weights.pth", net)
    assert has_all(net, before)


def test_other_classes_and_channels(tmp_path: Path) -> None:
    state = network(7, num_classes=9).state_dict()
    torch.save({"model": state}, tmp_path / "weights.pth")
    net = network(in_channels=1)
    own = {name: value.clone() for name, value in net.state_dict().items()}
    new, adapted = (
        "new: fc.weight, fc.bias",
        "adapted to the channels: conv.weight",
    )
    assert (
        load(tmp_path / "weights.pth", net)
        == f"7 of 9 tensors loaded; {new}; {adapted}; from model"
    )
    found = net.state_dict()
    torch.testing.assert_close(found["conv.weight"], state["conv.weight"].sum(1, keepdim=True))
    assert all(
        torch.equal(found[f"norm.{key}"], state[f"norm.{key}"])
        for key in ("weight", "bias", "running_mean")
    )
    assert all(torch.equal(found[name], own[name]) for name in ("fc.weight", "fc.bias"))


# -- bad files -------------------------------------------------------------------------------------


def write_damaged(path: Path) -> None:
    """Write a file with one wrong bit in a weight."""
    torch.save(network().state_dict(), path)
    content = bytearray(path.read_bytes())
    content[content.index(network().state_dict()["fc.weight"].numpy().tobytes())] ^= 1
    path.write_bytes(content)


BAD_FILES: dict[str, Callable[[Path], object]] = {
    "no bytes": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("hello world"),
    "a wrong bit": write_damaged,
    "arrays": lambda path: np.savez(path, weight=np.zeros(3)),
    "a tensor": lambda path: torch.save(torch.zeros(3), path),
    "a network": lambda path: torch.save(nn.Linear(2, 2), path),
    "plain values": lambda path: torch.save({"state_dict": {"epoch": 3}}, path),
    "a run": lambda path: torch.save(
        {"state_dict": network().state_dict(), "image_format": {}}, path
    ),
}


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("w.pth", "no bytes", "it is damaged"),
        ("w.pth", "text", "it is damaged"),
        ("w.safetensors", "text", "it is damaged"),
        ("w.pth", "a wrong bit", "it is damaged"),
        ("w.npz", "arrays", "it is damaged"),
        ("w.pth", "a tensor", "it has no tensors with names"),
        ("w.pth", "plain values", "it has no tensors with names"),
        ("w.pth", "a network", "which could run code"),
        ("w.pth", "a run", "it is the checkpoint of a run: use init_from"),
    ],
)
def test_bad_files_refused(tmp_path: Path, name: str, content: str, error: str) -> None:
    BAD_FILES[content](tmp_path / name)
    with pytest.raises(ValueError, match=error) as caught:
        load(tmp_path / name, network())
    assert "\n" not in str(caught.value)
