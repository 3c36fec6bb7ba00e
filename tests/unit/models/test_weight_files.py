"""What is taken from a file of weights, by which names, and how it is reported."""

import argparse
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lockstep.models import weight_files
from lockstep.models.origin import attach_ends
from tests.support.networks import Plain


def network(seed: int = 1, num_classes: int = 4, in_channels: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return Plain(in_channels, num_classes, 5)


def load(path: Path, net: nn.Module, num_classes: int = 4) -> str:
    return weight_files.load_weights(str(path), net, attach_ends(net, num_classes), dict)


def has_all(net: nn.Module, state: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin", ".pth.tar", ".safetensors"])
@pytest.mark.parametrize(
    "prefix",
    [
        *("", "module.", "_orig_mod.", "model.", "module._orig_mod.", "_orig_mod.module.", "model.model.module."),
        *("backbone.", "encoder.", "net.", "student.net."),
    ],
)
def test_prefixes_of_wrappers_are_removed_in_any_nesting(tmp_path: Path, prefix: str, suffix: str) -> None:
    state = network(7).state_dict()
    there, path = {f"{prefix}{name}": value for name, value in state.items()}, tmp_path / f"weights{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(there, path)
    net = network()
    said = f"{len(state)} of {len(state)} tensors taken"
    assert load(path, net) == (f"{said}; names without {prefix}" if prefix else said)
    assert has_all(net, state)


def test_a_prefix_of_most_names_leaves_the_others_out(tmp_path: Path) -> None:
    """The average of torchvision's script counts its updates in addition; a module around a network has a loss."""
    state = network(7).state_dict()
    there = {"n_averaged": torch.tensor(3), "loss.weight": torch.ones(4)}
    torch.save(there | {f"module.{name}": value for name, value in state.items()}, tmp_path / "weights.pth")
    net = network()
    assert "names without module." in load(tmp_path / "weights.pth", net)
    assert has_all(net, state)


def test_a_backbone_beside_other_layers_is_taken(tmp_path: Path) -> None:
    state = {name: value for name, value in network(7).state_dict().items() if not name.startswith("fc")}
    there = {f"backbone.{name}": value for name, value in state.items()} | {"head.0.weight": torch.ones(4, 4)}
    save_file(there, tmp_path / "weights.safetensors")
    net = network()
    assert "names without backbone." in load(tmp_path / "weights.safetensors", net)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in state.items())


def test_a_prefix_of_few_names_is_a_part_of_them(tmp_path: Path) -> None:
    state = {f"module.{name}" if name.startswith("fc") else name: v for name, v in network().state_dict().items()}
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=r"the weights are of another network: module\.fc\.weight is not expected"):
        load(tmp_path / "weights.pth", network())


@pytest.mark.parametrize(
    ("keys", "taken"),
    [
        (["state_dict", "state_dict_ema"], "state_dict_ema"),
        (["model", "model_ema"], "model_ema"),
        (["state_dict"], "state_dict"),
        (["model"], "model"),
    ],
)
def test_the_average_of_a_checkpoint_comes_first(tmp_path: Path, keys: list[str], taken: str) -> None:
    states = {key: network(seed).state_dict() for seed, key in enumerate(keys, 5)}
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1).state_dict()
    script = {"args": argparse.Namespace(lr=0.1, resume=argparse.Namespace()), "optimizer": optimizer, "epoch": 3}
    torch.save({**script, **states}, tmp_path / "weights.pth")
    net = network()
    assert load(tmp_path / "weights.pth", net).endswith(f"; from {taken}")
    assert has_all(net, states[taken])


def test_other_names_are_another_network(tmp_path: Path) -> None:
    state = network(7).state_dict()
    torch.save({f"_{name.replace('.', '_0.')}": value for name, value in state.items()}, tmp_path / "weights.pth")
    net = network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(ValueError, match=r"the weights are of another network: conv\.weight is missing"):
        load(tmp_path / "weights.pth", net)
    assert has_all(net, before)


def test_a_head_of_other_classes_is_new_and_other_channels_are_adapted(tmp_path: Path) -> None:
    state = network(7, num_classes=9).state_dict()
    torch.save({"model": state}, tmp_path / "weights.pth")
    net = network(in_channels=1)
    own = {name: value.clone() for name, value in net.state_dict().items()}
    new, adapted = "new: fc.weight, fc.bias (9 classes, here 4)", "adapted: conv.weight (3 channels, here 1)"
    assert load(tmp_path / "weights.pth", net) == f"7 of 9 tensors taken; {new}; {adapted}; from model"
    found = net.state_dict()
    torch.testing.assert_close(found["conv.weight"], state["conv.weight"].sum(1, keepdim=True))
    assert all(torch.equal(found[f"norm.{key}"], state[f"norm.{key}"]) for key in ("weight", "bias", "running_mean"))
    assert all(torch.equal(found[name], own[name]) for name in ("fc.weight", "fc.bias"))


# -- bad files ---------------------------------------------------------------------------------------------------------

DAMAGED = "it is damaged, or no file of torch or safetensors"


def saved_bytes(path: Path) -> bytearray:
    torch.save(network().state_dict(), path)
    return bytearray(path.read_bytes())


def write_bad_file(path: Path, what: str) -> None:
    if what == "a tensor":
        torch.save(torch.zeros(3), path)
    elif what == "a network":
        torch.save(nn.Linear(2, 2), path)
    elif what == "plain values":
        torch.save({"state_dict": {"epoch": 3}}, path)
    elif what == "a run":
        torch.save({"state_dict": network().state_dict(), "image_format": {}}, path)
    elif what == "arrays":
        np.savez(path.with_suffix(".npz"), weight=np.zeros(3))
        path.with_suffix(".npz").rename(path)
    elif what == "cut":
        path.write_bytes(saved_bytes(path)[:-100])
    elif what == "a wrong byte":
        content = saved_bytes(path)
        content[content.index(network().state_dict()["fc.weight"].numpy().tobytes())] ^= 1
        path.write_bytes(content)
    else:
        path.write_text(what)


@pytest.mark.parametrize(
    ("name", "what", "error"),
    [
        ("w.pth", "", DAMAGED),
        ("w.pth", "hello world", DAMAGED),
        ("w.safetensors", "hello world", DAMAGED),
        ("w.npz", "arrays", DAMAGED),
        ("w.pth", "cut", DAMAGED),
        ("w.pth", "a wrong byte", DAMAGED),
        ("w.pth", "a tensor", "it has no tensors with names: save the state_dict of the network"),
        ("w.pth", "plain values", "it has no tensors with names: save the state_dict of the network"),
        ("w.pth", "a network", "it has a torch.nn.modules.linear.Linear, which could run code: save its tensors alone"),
        ("w.pth", "a run", "it is the checkpoint of a run: use init_from in place of model.pretrained"),
    ],
)
def test_a_file_without_weights_is_one_line(tmp_path: Path, name: str, what: str, error: str) -> None:
    write_bad_file(tmp_path / name, what)
    with pytest.raises(ValueError, match=rf"^{re.escape(error)}(: \w+)?$"):
        load(tmp_path / name, network())
