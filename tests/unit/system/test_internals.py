"""Private parts of Lightning and torch exist today, and nothing breaks if a later version has moved them."""

from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from lockstep.system import internals, trainer_internals


@pytest.fixture
def trainer() -> L.Trainer:
    return L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)


def test_the_private_parts_exist(trainer: L.Trainer) -> None:
    """A failure means that Lightning or torch has moved one."""
    trainer_internals.keep_signals(trainer)
    assert trainer._signal_connector.register_signal_handlers is trainer_internals._do_nothing
    assert hasattr(trainer.fit_loop.epoch_loop, "_broadcast_sigterm_tensor")
    trainer_internals.set_global_step(trainer, 3)
    assert trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed == 3
    fused = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, fused=True)
    assert internals.can_skip_update(fused)
    assert hasattr(SummaryWriter, "_get_file_writer")
    assert hasattr(trainer_internals.DDPStrategy(), "_ddp_kwargs")


def test_a_part_that_has_moved_is_skipped() -> None:
    moved: Any = SimpleNamespace(fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace()))
    trainer_internals.keep_signals(moved)
    trainer_internals.silence_broadcast(moved)
    trainer_internals.set_global_step(moved, 3)
    internals.add_summary(SimpleNamespace(), None)
    assert vars(moved.fit_loop.epoch_loop) == {}
    assert not internals.can_skip_update(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
