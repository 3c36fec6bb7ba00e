"""Access to private parts of Lightning. The exception is callbacks/average.py, for the class that it extends.

Every function states why it is needed, and the consequence if a later version has moved the part; training continues.
"""

from collections.abc import Callable
from typing import Any

import lightning as L
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override


def keep_signals(trainer: L.Trainer) -> None:
    """Disable the signal handlers of Lightning: that of SIGTERM hangs in a broadcast if only one rank received it.

    Otherwise they are active until the stop callback replaces them at the start of the training.
    """
    connector: Any = getattr(trainer, "_signal_connector", None)
    if hasattr(connector, "register_signal_handlers"):
        connector.register_signal_handlers = _do_nothing


def silence_broadcast(trainer: L.Trainer) -> None:
    """Disable Lightning's blocking broadcast of a SIGTERM of rank 0 before every batch.

    Otherwise each step has one collective more than the exchange of the stop callback, which does not block.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    if hasattr(loop, "_broadcast_sigterm_tensor"):
        loop._broadcast_sigterm_tensor = _do_nothing


def _do_nothing() -> None:
    return None


def set_global_step(trainer: L.Trainer, step: int) -> None:
    """Set the step count of a trainer that has trained nothing, for the curves; otherwise its points are at 0."""
    loop = getattr(trainer.fit_loop.epoch_loop, "manual_optimization", None)
    progress: Any = getattr(loop, "optim_step_progress", None)
    if hasattr(progress, "total"):
        progress.total.completed = step


class OneStream(DDPStrategy):
    """Wraps the model on the CUDA stream of the training.

    `on_wrapped` is called with the wrapped model; what it returns is called after every averaging backward pass.

    Lightning 2.6 wraps it on a separate stream, for CUDA graphs. Then every gradient waits for an event of that stream
    in each backward pass, and torch warns about it.
    """

    def __init__(self, *, on_wrapped: Callable[[DistributedDataParallel], Callable[[], None]], **settings: Any) -> None:
        super().__init__(**settings)
        self._on_wrapped = on_wrapped
        self._complete = _do_nothing

    @override
    def _setup_model(self, model: nn.Module) -> DistributedDataParallel:
        settings = getattr(self, "_ddp_kwargs", None)
        if settings is None:
            return super()._setup_model(model)
        return DistributedDataParallel(module=model, device_ids=self.determine_ddp_device_ids(), **settings)

    @override
    def setup(self, trainer: L.Trainer) -> None:
        super().setup(trainer)
        if isinstance(self.model, DistributedDataParallel):
            self._complete = self._on_wrapped(self.model)

    @override
    def post_backward(self, closure_loss: Tensor) -> None:
        super().post_backward(closure_loss)
        self._complete()
