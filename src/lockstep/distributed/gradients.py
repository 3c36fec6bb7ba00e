"""Gradient averaging for DDP, through shared memory or with parameters that some ranks skip."""

import json
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lockstep.distributed import collectives
from lockstep.system import internals


def choose(model: DistributedDataParallel) -> Callable[[], None]:
    """Average the gradients of `model` through shared memory if its ranks share it.

    Returns a function that every rank must call after each backward pass that averages gradients.
    """
    if next(model.parameters()).device.type == "cpu" and collectives.shares_memory():
        model.register_comm_hook(_Buckets(), _Buckets.average)
    return _Unused(model).complete


class _Unused:
    """Completes the average on a rank whose backward pass has not reached all parameters.

    DDP would wait for these parameters. DDP's search for them, `find_unused_parameters`, costs
    every network a traversal and a collective in each step. Here a rank first publishes which
    parameters have no gradient, in the store of the process group. Then it adds zeros to the
    average. When the average is complete, all ranks have published. A parameter without a gradient
    on every rank stays without one, so that momentum and weight decay do not change it, as with one
    worker.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = model
        self._parameters = [
            parameter for parameter in model.parameters() if parameter.requires_grad
        ]
        # The time makes the key unique to this training.
        self._key = f"lockstep unused {collectives.gather_objects(time.time_ns())[0]}"
        self._num_passes = 0

    def complete(self) -> None:
        if not self._model.require_backward_grad_sync:
            return
        self._num_passes += 1
        missing = {at: self._parameters[at] for at in internals.unreached_parameters(self._model)}
        store = internals.store()
        if not missing or store is None:
            return
        # These parameters have no gradient from any micro-batch.
        unused = {at for at, parameter in missing.items() if parameter.grad is None}
        # Two keys suffice: when a rank publishes in a pass, all ranks have read the keys of the
        # pass before the last one.
        keys = [
            f"{self._key} {rank} {self._num_passes % 2}" for rank in range(dist.get_world_size())
        ]
        rank_key = keys[dist.get_rank()]
        store.set(rank_key, json.dumps([self._num_passes, sorted(unused)]))
        store.get(rank_key)  # Only a reply shows that the store has the value.
        parameters = list(missing.values())
        # Training may have frozen parameters since.
        frozen_parameters = [parameter for parameter in parameters if not parameter.requires_grad]
        for parameter in frozen_parameters:
            parameter.requires_grad_()
        zeros = [torch.zeros_like(parameter) for parameter in parameters]
        torch.autograd.backward(parameters, zeros)
        for parameter in frozen_parameters:
            parameter.requires_grad_(False)
        if parameters[0].device.type == "cuda":
            # Before that, other ranks may not have published.
            torch.cuda.synchronize(parameters[0].device)
        for key in keys:
            num_passes, published = json.loads(store.get(key)) if store.check([key]) else (0, [])
            unused &= {*published} if num_passes == self._num_passes else set()
        for at in unused:
            self._parameters[at].grad = None


class _Buckets:
    """Averages the buckets of a backward pass over the ranks.

    It blocks instead of overlapping with the backward pass. The processes share the cores, so none
    is idle. All buckets wait for the last one, because batch norms all-reduce their sums before it.
    A rank that has not reached a parameter arrives at its bucket later than others, and collectives
    must have the same order on all ranks.
    """

    def __init__(self) -> None:
        self._ready: list[tuple[Tensor, torch.futures.Future[Tensor]]] = []

    def average(
        self,
        bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
    ) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        self._ready.append((bucket.buffer(), future))
        if bucket.is_last():
            for gradients, bucket_future in self._ready:
                collectives.add_up(gradients.div_(dist.get_world_size()))
                bucket_future.set_result(gradients)
            self._ready.clear()
        return future
