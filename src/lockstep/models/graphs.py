"""Replay the forward and backward passes of a training step as two CUDA graphs.

If a GPU computes a step faster than the host launches its kernels, it waits for the host. A graph
replays the kernels of one pass with a single launch. It also repeats their addresses and sizes, and
the branches and numbers of the Python code that launched them. Everything that may differ between
two passes is therefore part of the key of a graph. Loss, loss guard, all-reduce of gradients,
clipping and update stay eager.
"""

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.func import functional_call
from typing_extensions import override

from lockstep.distributed.collectives import gather_objects, is_distributed
from lockstep.distributed.partition import Shard
from lockstep.distributed.rng import ExactDropout
from lockstep.system import internals

# Before its capture, a key has so many eager passes, in which libraries choose algorithms and
# allocate memory.
NUM_EAGER = 2
MAX_KEYS = 4
# Kernels that are not deterministic may differ by two roundings of bfloat16, relatively.
TOLERANCE = 2**-7


class Graphs(NamedTuple):
    """The graphs of one key, with the memory that they read and write.

    `sources` has the generators of all draws of their dropouts.
    """

    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    inputs: Tensor
    outputs: Tensor
    output_gradient: Tensor
    gradients: tuple[Tensor | None, ...]  # of the trained parameters; None if unused
    sources: list[tuple[ExactDropout, tuple[int, int], torch.Generator]]
    addresses: list[int]  # of all parameters


class GraphedModule:
    """Calls `module` on the inputs of training shards, by CUDA graphs from the third of a key on.

    Graphs are first compared with an eager pass of the same shard. If that fails on any rank, rank
    0 prints the reason, and all passes of all ranks are eager. With `accumulates`, the gradients of
    several shards are added up.
    """

    def __init__(
        self, module: nn.Module, dropouts: Sequence[ExactDropout], *, accumulates: bool
    ) -> None:
        self._module = module
        self._dropouts = dropouts
        self._accumulates = accumulates
        self._layers = list(module.modules())
        self._parameters = dict(module.named_parameters())
        self._is_on = True
        self._start(())

    def __call__(self, inputs: Tensor, shard: Shard) -> Tensor:
        graphs = self._graphs_of(inputs, shard) if self._is_on else None
        for dropout in self._dropouts:
            dropout.shard = shard  # A capture or comparison may have changed it.
        return self._module(inputs) if graphs is None else self._replay(graphs, inputs, shard)

    def _start(self, state: Any) -> None:
        """Forget all graphs, because they repeat another state of the module."""
        self._state = state
        self._trained = {
            name: value for name, value in self._parameters.items() if value.requires_grad
        }
        self._num_eager: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, Graphs | None] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def _graphs_of(self, inputs: Tensor, shard: Shard) -> Graphs | None:
        state = (
            [layer.training for layer in self._layers],
            [parameter.requires_grad for parameter in self._parameters.values()],
            [dropout.p for dropout in self._dropouts],
        )
        if state != self._state:
            self._start(state)
        has_masks = any(dropout.p for dropout in self._dropouts)
        mask_bounds = (shard.lo, shard.hi, shard.group_size) if has_masks else None
        # The key has the `size` of the shard, so that all ranks count the same keys.
        key = (inputs.shape, inputs.dtype, shard.size, mask_bounds)
        graphs = self._graphs.get(key)
        if graphs is not None and (
            graphs.addresses != self._addresses() or internals.has_hooks(self._layers)
        ):
            # This may concern this rank alone, and the others would not capture again with it.
            if is_distributed():
                raise RuntimeError(
                    "Hooks or parameters of the network were replaced: use trainer.graph=false."
                )
            self._start(state)
        if key not in self._graphs and len(self._graphs) < MAX_KEYS:
            self._num_eager[key] += 1
            if self._num_eager[key] > NUM_EAGER:
                self._graphs[key] = self._try_capture(inputs, shard)
        return self._graphs.get(key)

    def _addresses(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._parameters.values()]

    def _try_capture(self, inputs: Tensor, shard: Shard) -> Graphs | None:
        """Return graphs for shards like this one, or None if these stay eager.

        Every rank must call it in the same step.
        """
        # A batch norm waits for the device if a shard has one sample. An empty shard has nothing to
        # capture.
        if min(gather_objects(len(inputs))) < 2:
            return None
        captures: list[Graphs] = []
        if not self._all_agree(lambda: captures.append(self._capture_graphs(inputs))):
            return None
        is_equal = self._all_agree(
            lambda: self._difference(captures[0], inputs, shard), exchanges=is_distributed()
        )
        return captures[0] if is_equal else None

    def _all_agree(self, work: Callable[[], str | None], *, exchanges: bool = False) -> bool:
        """Return whether `work` returns no problem on any rank. If it does, stay eager.

        An exception is a problem, too. With `exchanges`, the batch norms in `work` run collectives,
        and an exception ends the run, because other ranks wait in them.
        """
        try:
            problem = work()
        except Exception as error:  # CUDA or a custom network can raise any exception.
            if exchanges:
                raise
            problem = str(error).partition("\n")[0] or type(error).__name__
        problems = list(filter(None, gather_objects(problem)))
        if problems:
            self._is_on = False
            self._start(())
            if not is_distributed() or dist.get_rank() == 0:
                print(
                    f"lockstep: no CUDA graphs, steps are eager: {problems[0]}",
                    file=sys.stderr,
                    flush=True,
                )
        return not problems

    def _capture_graphs(self, inputs: Tensor) -> Graphs:
        """Capture graphs. Raises RuntimeError with the reason if they cannot be used."""
        if internals.has_hooks(self._layers):
            raise RuntimeError("a layer has hooks, which a replay does not call")
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free_before, _ = torch.cuda.mem_get_info()
        forward = torch.cuda.CUDAGraph()
        backward = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        pools = [
            (layer, [torch.Generator(inputs.device) for _ in range(layer.max_draws)])
            for layer in self._dropouts
        ]
        static = inputs.clone()
        # The parameters themselves accumulate gradients on the stream of the training, which is not
        # captured.
        aliases = {name: value.detach().requires_grad_() for name, value in self._trained.items()}
        buffers = dict(self._module.named_buffers())
        tensors = {**aliases, **buffers}
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), ExitStack() as exit_stack:
            for dropout, pool in pools:
                for source in pool:
                    forward.register_generator_state(source)
                dropout.sources = iter(pool)
                exit_stack.callback(delattr, dropout, "sources")
            with _capture(forward, self._pool):
                outputs = functional_call(self._module, tensors, (static,))
            output_gradient = torch.empty_like(outputs)
            with _capture(backward, self._pool):
                gradients = _gradients(outputs, output_gradient, aliases.values())
        torch.cuda.current_stream().wait_stream(stream)
        replaced_buffers = [name for name, value in buffers.items() if tensors[name] is not value]
        if replaced_buffers:
            raise RuntimeError(
                f"the network replaces its buffer {replaced_buffers[0]}: "
                "let it change the buffer in place"
            )
        free_after, _ = torch.cuda.mem_get_info()
        # Eager passes of other shards need as much memory again.
        if free_after < free_before - free_after:
            raise RuntimeError(
                f"they take {(free_before - free_after) / 2**30:.1f} GiB of GPU memory, "
                f"{free_after / 2**30:.1f} are left"
            )
        sources = [
            (dropout, *pair)
            for dropout, pool in pools
            for pair in zip(dropout.draws, pool, strict=False)
        ]
        outputs = outputs.detach()
        return Graphs(
            forward,
            backward,
            static,
            outputs,
            output_gradient,
            gradients,
            sources,
            self._addresses(),
        )

    def _replay(self, graphs: Graphs, inputs: Tensor, shard: Shard) -> Tensor:
        for dropout, draw, source in graphs.sources:
            source.manual_seed(dropout.seed(shard, *draw))
        pairs = zip(self._trained.values(), graphs.gradients, strict=True)
        # DDP would replace None by zeros.
        parameters = (parameter for parameter, gradient in pairs if gradient is not None)
        outputs = _Replay.apply(graphs, self._accumulates, inputs, *parameters)
        assert isinstance(outputs, Tensor)
        return outputs

    def _difference(self, graphs: Graphs, inputs: Tensor, shard: Shard) -> str | None:
        """Return how an eager pass of a shard differs from what the graphs compute.

        The eager pass uses copies of the buffers.
        """
        buffers = dict(self._module.named_buffers())
        before, buffer_copies = (
            {name: value.clone() for name, value in buffers.items()} for _ in range(2)
        )

        def results(
            outputs: Tensor, buffer_values: Mapping[str, Tensor]
        ) -> tuple[Sequence[Tensor | None], ...]:
            down = torch.linspace(
                -1, 1, outputs.numel(), dtype=outputs.dtype, device=outputs.device
            ).view_as(outputs)
            gradients = _gradients(outputs, down, self._trained.values())
            return (
                [outputs.detach()],
                gradients,
                [value.clone() for value in buffer_values.values()],
            )

        for dropout in self._dropouts:
            dropout.shard = shard
        eager_results = results(
            functional_call(self._module, buffer_copies, (inputs,)), buffer_copies
        )
        graph_results = results(self._replay(graphs, inputs, shard), buffers)
        for name, value in buffers.items():
            value.copy_(before[name])
        is_equal = all(_is_close(*pair) for pair in zip(graph_results, eager_results, strict=True))
        return None if is_equal else "the network does not compute the same in every pass"


class _Replay(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any, graphs: Graphs, accumulates: bool, inputs: Tensor, *parameters: Tensor
    ) -> Tensor:
        ctx.graphs, ctx.accumulates = graphs, accumulates
        graphs.inputs.copy_(inputs)
        graphs.forward.replay()
        return graphs.outputs.clone()  # A task may store it.

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradients.

        Parameters take over their memory, so that the gradients of several shards are copied.
        """
        graphs: Graphs = ctx.graphs
        graphs.output_gradient.copy_(grad_outputs[0])
        graphs.backward.replay()
        take_over = Tensor.clone if ctx.accumulates else Tensor.detach
        return (
            None,
            None,
            None,
            *(take_over(value) for value in graphs.gradients if value is not None),
        )


def _gradients(
    outputs: Tensor, down: Tensor, parameters: Iterable[Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the parameters for `down`, the gradient of the outputs.

    They are None for parameters that are not used. The gradient of a number is computed, because
    for a given gradient torch imports its compiler, which takes up to two seconds.
    """
    return torch.autograd.grad((outputs * down).sum(), [*parameters], allow_unused=True)


@contextmanager
def _capture(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Capture the block on the current stream, while other threads may use the device."""
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        yield
    except BaseException:
        with suppress(RuntimeError):  # It is raised for what the capture refused.
            graph.capture_end()
        internals.end_allocations(pool)
        raise
    graph.capture_end()


def _is_close(values: Iterable[Tensor | None], references: Iterable[Tensor | None]) -> bool:
    """Return whether tensors are equal, or close enough if they are floats.

    All floats together may differ as much as those of kernels that are not deterministic.
    """
    gap = size = 0.0
    for value, reference in zip(values, references, strict=True):
        if value is None or reference is None:
            if value is not reference:
                return False
        elif not value.is_floating_point():
            if not value.equal(reference):
                return False
        else:
            gap += (value.double() - reference.double()).square().sum().item()
            size += reference.double().square().sum().item()
    return gap <= (0.0 if torch.are_deterministic_algorithms_enabled() else TOLERANCE**2 * size)
