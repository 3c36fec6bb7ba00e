"""Choose the memory layout of images and weights.

The layout is channels_last (NHWC), or contiguous (NCHW) if oneDNN fails in channels_last. In this
layout, oneDNN can write past a buffer when it computes the weight gradient of a strided 1x1
convolution. It does if there are fewer input channels than float32 numbers in a vector register.
The process dies, or with several threads the gradient is silently wrong (docs/install.md).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lockstep.distributed import collectives
from lockstep.distributed.rng import ExactDropout

# The kernel writes as many channels as a vector register has float32 numbers.
AVX2_NUMBERS, AVX512_NUMBERS = 8, 16


class Layout(NamedTuple):
    """The memory format of a network and its images, and the reason for it."""

    memory_format: torch.memory_format
    reason: str

    @property
    def name(self) -> str:
        return "channels_last" if self.memory_format == torch.channels_last else "contiguous"


def choose_layout(memory_format: str, faulty_layer: str | None) -> Layout:
    """Return the layout for `trainer.memory_format`.

    `faulty_layer` names a convolution that rules out channels_last, if there is one.
    """
    if memory_format != "auto":
        return Layout(
            torch.channels_last if memory_format == "channels_last" else torch.contiguous_format,
            "as configured",
        )
    if faulty_layer is not None:
        return Layout(
            torch.contiguous_format,
            "memory order; channels_last is often faster, "
            f"but wrong on this CPU for {faulty_layer}",
        )
    return Layout(torch.channels_last, "faster convolutions")


def faulty_convolution(net: nn.Module, precision: str, num_written: int) -> str | None:
    """Return the first convolution whose gradient oneDNN gets wrong in channels_last, or None.

    `num_written` is AVX2_NUMBERS or AVX512_NUMBERS. Only modules are checked, and not calls of
    functions.
    """
    precisions = ("float32", "bfloat16") if num_written == AVX512_NUMBERS else ("float32",)
    layers = net.named_modules() if precision in precisions else ()
    return next((name for name, layer in layers if _is_faulty(layer, num_written)), None)


def _is_faulty(layer: nn.Module, num_written: int) -> bool:
    if not isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
        return False
    # The gradient of a transposed convolution is that of the convolution from its output to its
    # input.
    num_channels = layer.in_channels if isinstance(layer, nn.Conv2d) else layer.out_channels
    is_strided_projection = layer.kernel_size == (1, 1) and max(layer.stride) > 1
    # With groups, oneDNN chooses another kernel.
    return is_strided_projection and num_channels < num_written and layer.groups == 1


class CompiledNetwork:
    """Calls a network that is compiled in its layout.

    Dropouts that draw and collectives are not compiled. Empty and ragged batches run eagerly,
    because each size would be compiled.
    """

    def __init__(self, net: nn.Module, dropouts: Sequence[ExactDropout], layout: Layout) -> None:
        self._net = net
        self._sizes: dict[bool, int] = {}
        collectives.keep_out_of_graphs()
        for dropout in dropouts:
            if dropout.p:  # Its shard changes in every step, and each would be compiled.
                dropout.forward = torch.compiler.disable(dropout.forward)  # pyright: ignore[reportAttributeAccessIssue]
        # By default, the compiler computes every convolution of a CPU in channels_last.
        is_kept = layout.memory_format == torch.channels_last
        net.compile(dynamic=False, options=None if is_kept else {"layout_optimization": False})

    def __call__(self, images: Tensor) -> Tensor:
        size = len(images)
        if size and size == self._sizes.setdefault(self._net.training, size):
            return self._net(images)
        with torch.compiler.set_stance("force_eager"):
            return self._net(images)

    @contextmanager
    def eager_mode(self) -> Iterator[None]:
        """Disable compilation inside the block, and forget the batch sizes used in it."""
        with torch.compiler.set_stance("force_eager"):
            yield
        self._sizes.clear()
