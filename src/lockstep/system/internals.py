"""All access to private parts of other libraries, enforced by tests/unit/test_architecture.py.

Importing this module imports none of the libraries. A later version of a library may have moved a
part. If the training can then continue, the docstring of the function states the consequence.
tests/unit/system/test_internals.py fails once a part has moved.
"""

import atexit
import contextlib
import functools
import itertools
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing import forkserver
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    import lightning as L
    import optuna
    import submitit
    from lightning.pytorch.callbacks import WeightAveraging
    from lightning.pytorch.strategies import DDPStrategy
    from torch import Tensor, nn
    from torch.nn.modules.batchnorm import _BatchNorm
    from torch.nn.modules.instancenorm import _InstanceNorm
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer
    from torch.optim.swa_utils import AveragedModel
    from torchmetrics import Metric

    BatchNorm = _BatchNorm
    InstanceNorm = _InstanceNorm

_FORK_SERVER: Any = forkserver._forkserver  # pyright: ignore[reportAttributeAccessIssue]


def __getattr__(name: str) -> Any:
    """Import BatchNorm and InstanceNorm, the base classes of layers, which have no public name.

    Raises AttributeError for other names.
    """
    if name not in ("BatchNorm", "InstanceNorm"):
        raise AttributeError(name)
    from torch.nn import modules

    return getattr(modules.batchnorm if name == "BatchNorm" else modules.instancenorm, f"_{name}")


# -- Lightning -------------------------------------------------------------------------------------


def keep_signals(trainer: "L.Trainer") -> None:
    """Disable the signal handlers of Lightning.

    That of SIGTERM hangs in a broadcast if only one rank received the signal. Otherwise they are
    active until the stop callback replaces them at the start of the training.
    """
    connector: Any = getattr(trainer, "_signal_connector", None)
    if hasattr(connector, "register_signal_handlers"):
        connector.register_signal_handlers = _do_nothing


def silence_broadcast(trainer: "L.Trainer") -> None:
    """Disable Lightning's blocking broadcast of a SIGTERM of rank 0 before every batch.

    Otherwise each step has one collective more than that of the stop callback, which does not
    block.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    if hasattr(loop, "_broadcast_sigterm_tensor"):
        loop._broadcast_sigterm_tensor = _do_nothing


def _do_nothing() -> None:
    return None


def set_global_step(trainer: "L.Trainer", step: int) -> None:
    """Set the step count of a trainer that has trained nothing, for the curves.

    Otherwise its points are at step 0.
    """
    loop = getattr(trainer.fit_loop.epoch_loop, "manual_optimization", None)
    progress: Any = getattr(loop, "optim_step_progress", None)
    if hasattr(progress, "total"):
        progress.total.completed = step


def one_stream(
    on_wrapped: "Callable[[DistributedDataParallel], Callable[[], None]] | None", **settings: Any
) -> "DDPStrategy":
    """Return a strategy that wraps the model on the CUDA stream of the training.

    Without `on_wrapped`, it does not wrap the model. `on_wrapped` is called with the wrapped model.
    The function that it returns is called after every backward pass that averages gradients.

    Lightning 2.6 wraps the model on a separate stream, for CUDA graphs. Then every gradient waits
    for an event of that stream in each backward pass, and torch warns about it.
    """
    from lightning.pytorch.strategies import DDPStrategy
    from torch.nn.parallel import DistributedDataParallel

    class OneStream(DDPStrategy):
        complete = staticmethod(_do_nothing)

        @override
        def _setup_model(self, model: "nn.Module") -> "DistributedDataParallel":
            ddp_arguments = getattr(self, "_ddp_kwargs", None)
            if ddp_arguments is None:
                return super()._setup_model(model)
            return DistributedDataParallel(
                module=model, device_ids=self.determine_ddp_device_ids(), **ddp_arguments
            )

        @override
        def configure_ddp(self) -> None:
            if on_wrapped is not None:
                super().configure_ddp()

        @override
        def setup(self, trainer: "L.Trainer") -> None:
            super().setup(trainer)
            if on_wrapped is not None and isinstance(self.model, DistributedDataParallel):
                self.complete = on_wrapped(self.model)

        @override
        def post_backward(self, closure_loss: "Tensor") -> None:
            super().post_backward(closure_loss)
            self.complete()

    return OneStream(**settings)


def average_of(callback: "WeightAveraging") -> "AveragedModel | None":
    """Return the averaged model, which exists after the set-up of a training."""
    return callback._average_model


# -- torch -----------------------------------------------------------------------------------------


def shared_count(name: str) -> Iterator[int]:
    """Count from 0, each number on one rank, which is the first to request it.

    A process group uses a name once. Without the store of the process group, the ranks take turns.
    """
    from torch import distributed as dist

    if not dist.is_initialized():
        return itertools.count()
    if (group_store := store()) is None:
        return itertools.count(dist.get_rank(), dist.get_world_size())
    return (group_store.add(f"lockstep count {name}", 1) - 1 for _ in itertools.count())


def store() -> Any:
    """Return the store of the process group, or None if torch has moved it.

    The store has no public name.
    """
    from torch import distributed as dist

    find = getattr(dist.distributed_c10d, "_get_default_store", None)
    return find and find()


def unreached_parameters(model: "DistributedDataParallel") -> list[int]:
    """Return the parameters for whose gradients `model` still waits after a backward pass.

    A parameter is its position among the trained parameters. torch names them only in an error. Any
    other error is raised, as it would be before the next pass.
    """
    check = getattr(model.reducer, "_check_reducer_finalized", _do_nothing)
    try:
        check()
    except RuntimeError as error:
        match = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
        if match is None:
            raise
        return [int(position) for position in match[1].split()]
    return []


def has_hooks(layers: "Iterable[nn.Module]") -> bool:
    """Return True if a layer has hooks, which the replay of a CUDA graph does not call.

    torch has no public way to find them. Otherwise they are called only in the capture.
    """
    attributes = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(layer, attribute, None) for layer in layers for attribute in attributes)


def is_in_backward() -> bool:
    """Return True inside a backward pass, in which activation checkpointing calls layers again."""
    import torch

    return torch._C._current_graph_task_id() != -1


def end_allocations(pool: Any) -> None:
    """End a capture for the allocator, which torch 2.11 to 2.14 omit if the capture fails.

    Otherwise an allocation that fails later does not free the memory that the allocator keeps, and
    does not try again.
    """
    import torch

    end = getattr(torch._C, "_cuda_endAllocateToPool", None)
    # The capture has already ended.
    with contextlib.suppress(RuntimeError):
        if end is not None:
            end(torch.cuda.current_device(), pool)


def can_skip_update(optimizer: "Optimizer") -> bool:
    """Return True if the fused update skips the step where `found_inf` is set.

    torch's GradScaler uses the same mechanism. Otherwise the loss guard reads every loss before the
    backward pass, which waits for the GPU.
    """
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def step_in_memory_order(optimizer: "Optimizer") -> None:
    """Step an optimizer whose fused update reads channels_last tensors in their memory order.

    The bits of the result are the same. Otherwise torch 2.15 on a CPU copies every such gradient
    into another layout, and does not use the copy. Below 0.5 MiB, a copy costs less than its
    avoidance.
    """
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    is_copied = any(
        parameter.numel() >= 1 << 17 and parameter.is_cpu and parameter.dim() == 4
        for parameter in parameters
    )
    with _memory_order()() if is_copied else contextlib.nullcontext():
        optimizer.step()


@functools.cache
def _memory_order() -> Callable[[], contextlib.AbstractContextManager[Any]]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    def flat(x: Any) -> Any:
        is_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
        return x.permute(0, 2, 3, 1) if is_last else x

    class MemoryOrder(TorchDispatchMode):
        @override
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func.name().startswith("aten::_fused_"):
                args = [
                    [*map(flat, values)] if isinstance(values, list) else values for values in args
                ]
            return func(*args, **(kwargs or {}))

    return MemoryOrder


# -- torchmetrics ----------------------------------------------------------------------------------


def reductions(metric: "Metric") -> Mapping[str, tuple[Any, Any]]:
    """Return how each state of a metric is reduced over ranks, and its default."""
    return {state: (how, metric._defaults[state]) for state, how in metric._reductions.items()}


def replace_sync(metric: "Metric", sync: Callable[..., None]) -> None:
    """Replace the function that merges the states of all ranks.

    torchmetrics hangs if one rank has another number of states.
    """
    metric._sync_dist = sync


# -- submitit and Optuna ---------------------------------------------------------------------------


def sbatch_script(executor: "submitit.SlurmExecutor") -> str:
    """Return the script that sbatch would receive."""
    return executor._make_submission_file_text(executor._submitit_command_str, uuid.uuid4().hex)


def resumed_trial(
    study: "optuna.Study", frozen_trial: "optuna.trial.FrozenTrial"
) -> "optuna.Trial":
    """Return a trial that another process began, to continue it."""
    import optuna

    return optuna.Trial(study, frozen_trial._trial_id)


# -- Python ----------------------------------------------------------------------------------------


def run_exit_functions() -> None:
    """Run the registered exit functions, and forget them."""
    atexit._run_exitfuncs()


def fork_server_pid() -> int | None:
    """Return the process ID of multiprocessing's fork server.

    Returns None if this process has not started the server.
    """
    return _FORK_SERVER._forkserver_pid


def keep_fork_server() -> None:
    """Let this fork of the server use the server.

    Contrary to its documentation, multiprocessing would start a second one.
    """
    _FORK_SERVER.ensure_running = _do_nothing
