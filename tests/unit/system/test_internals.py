"""Private parts of other libraries exist today."""

import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import distributed as dist
from torch import nn

from lockstep.system import internals
from tests.support.modules import bare_trainer


def test_private_names_exist() -> None:
    """A failure means that Lightning or torch has moved one."""
    trainer = bare_trainer()
    internals.keep_signals(trainer)
    assert trainer._signal_connector.register_signal_handlers is internals._do_nothing
    internals.set_global_step(trainer, 3)
    assert trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed == 3
    fused = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, fused=True)
    assert internals.can_skip_update(fused)
    strategy = internals.one_stream(lambda model: lambda: None)
    parts = {
        "_broadcast_sigterm_tensor": trainer.fit_loop.epoch_loop,
        "_ddp_kwargs": strategy,
        "_setup_model": type(strategy).__base__,
        "_get_default_store": dist.distributed_c10d,
        "_check_reducer_finalized": vars(dist)["Reducer"],
        "_forward_pre_hooks": nn.Module(),
        "_backward_pre_hooks": nn.Module(),
    }
    assert [name for name, owner in parts.items() if not hasattr(owner, name)] == []
    assert internals.average_of(WeightAveraging()) is None
    seen, x = [], torch.ones(1, requires_grad=True)
    x.register_hook(lambda gradient: seen.append(internals.is_in_backward()))
    x.sum().backward()
    assert [*seen, internals.is_in_backward()] == [True, False]
    assert issubclass(nn.SyncBatchNorm, internals.BatchNorm)
    assert issubclass(nn.InstanceNorm1d, internals.InstanceNorm)
