"""Private parts of other libraries exist today, and a training continues if a later version has moved some of them."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import distributed as dist
from torch import nn

from lockstep.system import internals
from tests.support.modules import bare_trainer


def test_the_private_parts_exist() -> None:
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


def test_the_private_parts_of_python_do_what_they_are_used_for() -> None:
    code = (
        "import atexit, os; from multiprocessing import forkserver; from lockstep.system import internals\n"
        "assert internals.fork_server_pid() is None; forkserver.ensure_running()\n"
        "os.kill(internals.fork_server_pid(), 9)\n"
        "internals.keep_fork_server(); forkserver._forkserver.ensure_running()\n"
        "atexit.register(print, 'ran'); internals.run_exit_functions()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


def test_a_part_that_has_moved_is_skipped() -> None:
    moved: Any = SimpleNamespace(fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace()))
    internals.keep_signals(moved)
    internals.silence_broadcast(moved)
    internals.set_global_step(moved, 3)
    assert vars(moved.fit_loop.epoch_loop) == {}
    assert not internals.can_skip_update(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
