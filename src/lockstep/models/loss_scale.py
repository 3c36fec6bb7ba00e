"""Scale the loss, so that gradients stay within the range of float16."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class LossScale:
    """A scale for all ranks, which torch's GradScaler chooses with its defaults.

    It starts at 2**16, is halved by an overflow, and is doubled after 2,000 steps in a row without
    one. After the all-reduce, an overflow makes a gradient infinite or NaN on every rank, so that
    all ranks find it and skip the same update. Nothing here waits for the device. `num_skipped` and
    `value` are the values that the loss guard has read from it.
    """

    def __init__(self) -> None:
        # torch disables the scaler for a device type that is not available.
        self._scaler = torch.amp.GradScaler("cuda" if torch.cuda.is_available() else "cpu")
        self.num_skipped = 0
        self.value = self._scaler.get_scale()

    def to(self, device: torch.device) -> None:
        self._one = torch.ones((), device=device)
        # It is 1 if the update of the last step is skipped.
        self.overflowed = torch.zeros((), device=device)
        self._num_skipped = torch.full((), float(self.num_skipped), device=device)

    def scale(self, loss: Tensor) -> Tensor:
        return self._scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Unscale the gradients of a step after their all-reduce, and choose the next scale.

        An overflow is found here.
        """
        before = self._scaler.scale(self._one)
        self._scaler.unscale_(optimizer)
        self._scaler.update()
        self.overflowed = (self._scaler.scale(self._one) < before).to(before.dtype)
        self._num_skipped = self._num_skipped + self.overflowed

    def facts(self) -> tuple[Tensor, Tensor]:
        """Return the scale of the next step and the number of skipped steps, on the device."""
        return self._scaler.scale(self._one), self._num_skipped

    def read(self, value: float, num_skipped: float) -> None:
        self.value, self.num_skipped = value, int(num_skipped)

    def state_dict(self) -> dict[str, Any]:
        return {"scaler": self._scaler.state_dict(), "num_skipped": self.num_skipped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._scaler.load_state_dict(state["scaler"])
        self.read(state["scaler"]["scale"], state["num_skipped"])
