"""All that reaches into private parts of Lightning and torch; tests/unit/test_architecture.py finds any other access.

Alone callbacks/average.py has one of its own, into the class that it extends.

Every function says why it is needed, and what happens where a later version has moved the part: training goes on in the
plainer way.
"""

from collections.abc import Callable
from typing import Any

import lightning as L
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import override

BatchNorm = _BatchNorm  # the base of torch's batch norms, which has no public name
InstanceNorm = _InstanceNorm  # as well


# -- signals -----------------------------------------------------------------------------------------------------------


def keep_signals(trainer: L.Trainer) -> None:
    """Lightning takes no signals: its SIGTERM handler waits for a broadcast, for ever on a rank that is told alone.

    Otherwise they are Lightning's until the training starts, where the stop callback takes them back.
    """
    connector: Any = getattr(trainer, "_signal_connector", None)
    if hasattr(connector, "register_signal_handlers"):
        connector.register_signal_handlers = _do_nothing


def silence_broadcast(trainer: L.Trainer) -> None:
    """Lightning broadcasts no SIGTERM of rank 0 before every batch, for which all ranks would wait.

    Otherwise it does so beside the stop callback, which asks all ranks without waiting: one collective more a step.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    if hasattr(loop, "_broadcast_sigterm_tensor"):
        loop._broadcast_sigterm_tensor = _do_nothing


def _do_nothing() -> None:
    return None


# -- steps -------------------------------------------------------------------------------------------------------------


def set_global_step(trainer: L.Trainer, step: int) -> None:
    """A trainer that has trained nothing counts from `step`, for the curves; otherwise they show its points at 0."""
    loop = getattr(trainer.fit_loop.epoch_loop, "manual_optimization", None)
    progress: Any = getattr(loop, "optim_step_progress", None)
    if hasattr(progress, "total"):
        progress.total.completed = step


def can_skip_update(optimizer: Optimizer) -> bool:
    """Whether the fused update reads `found_inf` and leaves the weights alone, as for torch's GradScaler.

    Otherwise the loss guard asks for every loss before the backward pass, and waits for the GPU.
    """
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


# -- processes and curves ----------------------------------------------------------------------------------------------


class OneStream(DDPStrategy):
    """Wraps the model on the stream on which it is trained, and calls `on_wrapped` with it.

    Lightning 2.6 does so on a stream of its own, for CUDA graphs. Then every gradient waits for an event of another
    stream before it is added up, in each backward pass, and torch warns of it.
    """

    def __init__(self, *, on_wrapped: Callable[[DistributedDataParallel], None], **settings: Any) -> None:
        super().__init__(**settings)
        self._on_wrapped = on_wrapped

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
            self._on_wrapped(self.model)


def add_summary(writer: Any, summary: Any) -> None:
    """Write a summary that torch's SummaryWriter has no method for, such as the start of a session of hyperparameters.

    Otherwise it is left out, and the page of hyperparameters stays empty.
    """
    files = getattr(writer, "_get_file_writer", None)
    if files is not None:
        files().add_summary(summary)
