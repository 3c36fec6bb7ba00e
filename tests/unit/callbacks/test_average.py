"""Averaged weights against torch's own update of them."""

from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lockstep.callbacks.average import AveragedWeights, exponential_average
from tests.support.modules import bare_trainer


class Module(L.LightningModule):
    """Weights in float32 and float64, and buffers of whole numbers and of floats, saved or not."""

    order: torch.Tensor
    wave: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).double())
        self.register_buffer("order", torch.arange(5))
        self.register_buffer("wave", torch.zeros(5), persistent=False)

    def whole(self) -> dict[str, torch.Tensor]:
        """The tensors that have no average."""
        named = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        return {
            name: value
            for name, value in named.items()
            if not (value.is_floating_point() or value.is_complex())
        }


def averages(average: Any = None) -> tuple[Module, AveragedModel, AveragedModel]:
    """A module, its average by the callback, and its average by torch."""
    module, average = Module(), average or get_ema_multi_avg_fn(0.9)
    callback = AveragedWeights(multi_avg_fn=average)
    callback.setup(None, pl_module=module, stage="fit")  # pyright: ignore[reportArgumentType]
    ours: Any = callback._average_model
    return module, ours, AveragedModel(module, use_buffers=True, multi_avg_fn=average)


def train(module: Module) -> None:
    """Change every weight and buffer."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.copy_(tensor + (torch.rand(tensor.shape) * 8).to(tensor.dtype))


def test_average_as_torch() -> None:
    module, ours, theirs = averages()
    for _ in range(4):
        train(module)
        for average in (ours, theirs):
            average.update_parameters(module)
        # torch's would round what is not a floating-point number
        expected = theirs.state_dict() | {
            f"module.{name}": value for name, value in module.whole().items()
        }
        assert all(torch.equal(value, expected[name]) for name, value in ours.state_dict().items())
        buffers = dict(ours.module.named_buffers())
        assert all(torch.equal(value, buffers[name]) for name, value in module.whole().items())


def test_decay() -> None:
    module, ours, _ = averages(exponential_average(0.5))
    expected = module.get_parameter("net.0.weight").detach().clone()
    for n in range(12):
        train(module)
        ours.update_parameters(module)
        decay = 0.0 if n == 0 else min(0.5, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * module.get_parameter("net.0.weight").detach()
        torch.testing.assert_close(ours.module.get_parameter("net.0.weight"), expected)


@pytest.mark.parametrize(
    ("function", "kept"), [(TrainerFn.FITTING, "current_model_state"), ("test", "state_dict")]
)
def test_weights_after_load(function: Any, kept: str) -> None:
    trainer = bare_trainer()
    trainer.state.fn = function
    callback, module = AveragedWeights(multi_avg_fn=get_ema_multi_avg_fn(0.9)), Module()
    callback.setup(trainer, module, "fit")
    train(module)
    checkpoint: dict[str, Any] = {"state_dict": module.state_dict()}
    callback.on_save_checkpoint(trainer, module, checkpoint)
    saved = {
        key: {name: value.clone() for name, value in checkpoint[key].items()} for key in checkpoint
    }
    module.load_state_dict(saved["state_dict"])
    callback.on_load_checkpoint(trainer, module, saved)
    assert not torch.equal(
        saved["state_dict"]["net.0.weight"], saved["current_model_state"]["net.0.weight"]
    )
    assert torch.equal(module.state_dict()["net.0.weight"], saved[kept]["net.0.weight"])
