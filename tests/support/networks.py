"""Custom networks, some of them wrong."""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.runs.files import LEFTOVER


class Plain(nn.Module):
    """A small network with batch norm and torch's dropout."""

    def __init__(self, in_channels: int, num_classes: int, hidden: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, hidden, 3, padding=1)
        self.norm = nn.BatchNorm2d(hidden)
        self.dropout = nn.Dropout2d(0.3)
        self.fc = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.dropout(torch.relu(self.norm(self.conv(x)))).mean((2, 3)))


class Tied(Plain):
    """Uses a convolution several times in a pass."""

    def __init__(self, in_channels: int, num_classes: int, hidden: int) -> None:
        super().__init__(in_channels, num_classes, hidden)
        self.tied = nn.Conv2d(hidden, hidden, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        for _ in range(3):
            x = x + torch.relu(self.tied(x))
        return self.fc(self.dropout(x).mean((2, 3)))


class OfFixedBatch(Plain):
    """Calls `len`, which makes the number of images a constant of a traced network."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__(in_channels, num_classes, hidden=4)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(len(x), *x.shape[1:]))


class OfValues(OfFixedBatch):
    """Branches by the values of its images, which a traced network cannot."""

    def forward(self, x: Tensor) -> Tensor:
        return Plain.forward(self, x if x.mean() > 0 else -x)


class WaitsInTheThirdBatch(Plain):
    """A plain network that waits in its third batch of rows.

    It waits while the current folder has a file `hold`.
    """

    num_batches = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_batches += len(x) > 0
        names = (path.name for path in Path().glob(".*"))
        is_predicting = any(map(LEFTOVER.fullmatch, names))
        while self.num_batches == 3 and is_predicting and Path("hold").exists():
            time.sleep(0.02)
        return super().forward(x)


class HasADomain(Plain):
    """Gives NaN once the last bias is longer than 0.1, after a high learning rate."""

    def __init__(self, in_channels: int, num_classes: int, hidden: int) -> None:
        super().__init__(in_channels, num_classes, hidden)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.log(1 - 100 * self.fc.bias.square().sum())


class _Large(torch.autograd.Function):
    """The identity, whose gradient is a million times as large for some samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, is_large: Tensor) -> Tensor:
        ctx.save_for_backward(is_large)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (is_large,) = ctx.saved_tensors
        return grad_outputs[0] * torch.where(is_large, 1e6, 1.0).to(grad_outputs[0].dtype)[
            :, None
        ], None


class Overflows(nn.Module):
    """A linear layer whose gradient overflows float16 for samples whose first value is high."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_inputs, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return _Large.apply(self.linear(x), x[:, 0] > 1.7)  # pyright: ignore[reportReturnType]


class HasOverflows(nn.Sequential):
    """A small network with batch norm for digits of 8 pixels.

    Its first layer may have gradients that overflow.
    """

    def __init__(self, in_channels: int, num_classes: int, hidden: int) -> None:
        first = Overflows(64 * in_channels, hidden)
        super().__init__(
            nn.Flatten(), first, nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, num_classes)
        )


class Unnormalized(nn.Module):
    """A network without batch norm, with both kinds of dropout."""

    def __init__(self, in_channels: int, num_classes: int, hidden: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, hidden, 3, padding=1)
        self.channels = nn.Dropout2d(0.3)
        self.values = nn.Dropout(0.2)
        self.fc = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.values(self.channels(torch.tanh(self.conv(x)))).mean((2, 3)))


class PartlyUsed(Plain):
    """Layers are used never, in every other batch, for images with a bright corner, or rarely.

    In most batches the rare ones are used for no image. Counts batches in a buffer of whole
    numbers, and has another one that is not saved.
    """

    order: Tensor
    num_batches: Tensor

    def __init__(self, in_channels: int, num_classes: int, hidden: int) -> None:
        super().__init__(in_channels, num_classes, hidden)
        self.never = nn.Linear(3, 3)
        self.sometimes, self.bright, self.rarely = (
            nn.Linear(in_channels, num_classes) for _ in range(3)
        )
        self.register_buffer("num_batches", torch.tensor(0))
        self.register_buffer("order", torch.arange(num_classes).flip(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        outputs, corner, means = super().forward(x), x[:, 0, 0, 0], x.mean((2, 3))
        self.never.bias.requires_grad_(False)  # frozen when DDP already waits for it
        self.num_batches += self.training
        if self.num_batches % 2:
            outputs = outputs + self.sometimes(means)
        for layer, least in ((self.bright, 0.0), (self.rarely, 1.6)):
            if (is_chosen := corner > least).any():
                outputs = outputs.index_add(0, is_chosen.nonzero()[:, 0], layer(means[is_chosen]))
        return outputs[:, self.order]


class NormalizesSingleValues(nn.Module):
    """Has a batch norm of maps that are down to one pixel."""

    def __init__(self, in_channels: int, num_classes: int, hidden: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, hidden, 3, padding=1)
        self.norm = nn.BatchNorm2d(hidden)
        self.fc = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x).mean((2, 3), keepdim=True)).flatten(1))


def rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


class Counted(Plain):
    """Counts its forward passes in training; the first one is the trial of two samples."""

    num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += self.training
        return super().forward(x)


class FailsOnRank1(Counted):
    """Raises in the third forward pass of a training, on rank 1."""

    def forward(self, x: Tensor) -> Tensor:
        outputs = super().forward(x)
        if self.num_calls == 4 and rank() == 1:
            raise ZeroDivisionError("the network of rank 1 is broken")
        return outputs


class BecomesNan(Counted):
    """Gives NaN in training from its 30th forward pass on."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (float("nan") if self.num_calls >= 31 else 1.0)


class NanOnRank1(Counted):
    """Gives NaN on rank 1 from the third forward pass of a training on."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (float("nan") if self.num_calls >= 4 and rank() == 1 else 1.0)


class WaitsOnRank1(Plain):
    """Waits for the device in its forward pass, on rank 1."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and rank() == 1:
            x.sum().item()
        return super().forward(x)


class OutOfMemoryAfterACapture(Plain):
    """Refused by the allocator on rank 1 in the pass after its capture."""

    is_captured = False

    def forward(self, x: Tensor) -> Tensor:
        if self.is_captured and rank() == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        self.is_captured = torch.cuda.is_current_stream_capturing()
        return super().forward(x)


class Debugged(Counted):
    """Calls the debugger before its second pass of a training."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.num_calls == 2:
            breakpoint()
        return super().forward(x)
