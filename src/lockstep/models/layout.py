"""How images and weights lie in memory: channels_last (NHWC), or contiguous (NCHW) where oneDNN fails in the former.

oneDNN writes past a buffer when it computes the weight gradient of a strided 1x1 convolution in channels_last that has
fewer input channels than a vector register has float32 numbers: the process dies, or with several threads the gradient
is wrong without a word. docs/hardware.md has the reproduction and what was tried.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

# float32 numbers in a vector register: so many channels the faulty kernel writes, whatever there are
AVX2_NUMBERS, AVX512_NUMBERS = 8, 16


class Layout(NamedTuple):
    """The memory format of a network and its images, and why."""

    memory_format: torch.memory_format
    reason: str

    @property
    def name(self) -> str:
        """The name of the layout, as the configuration has it."""
        return "channels_last" if self.memory_format == torch.channels_last else "contiguous"


def chosen(memory_format: str, faulty: str | None) -> Layout:
    """The layout for `trainer.memory_format`; `faulty` names a convolution for which channels_last is not safe."""
    if memory_format != "auto":
        return Layout(torch.channels_last if memory_format == "channels_last" else torch.contiguous_format, "as asked")
    if faulty is not None:
        return Layout(torch.contiguous_format, f"this CPU cannot train {faulty} in channels_last")
    return Layout(torch.channels_last, "faster convolutions")


def faulty_convolution(net: nn.Module, precision: str, num_written: int) -> str | None:
    """The name of the first convolution whose gradient oneDNN gets wrong in channels_last, None without one.

    `num_written` are the channels that the kernel of this CPU writes. Only modules are seen, not calls of functions,
    and only the `precision` of the training, not parts of a bfloat16 network that switch autocast off.
    """
    concerned = ("float32", "bfloat16") if num_written == AVX512_NUMBERS else ("float32",)
    layers = net.named_modules() if precision in concerned else ()
    return next((name for name, layer in layers if _is_faulty(layer, num_written)), None)


def _is_faulty(layer: nn.Module, num_written: int) -> bool:
    if not isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
        return False
    # the gradient of a transposed convolution is computed as that of the convolution from its output to its input
    num_channels = layer.in_channels if isinstance(layer, nn.Conv2d) else layer.out_channels
    # one channel is safe in most networks, but not where a view gives it the strides of channels_last
    is_narrow_projection = layer.kernel_size == (1, 1) and max(layer.stride) > 1 and num_channels < num_written
    return is_narrow_projection and layer.groups == 1  # with groups oneDNN chooses another kernel


def compile_network(net: nn.Module, dropouts: Sequence[nn.Module], layout: Layout, mode: str) -> None:
    """Have torch compile a network, whose `dropouts` are left out of it, so that its layout stays."""
    for dropout in dropouts:  # its shard is another one in every step, and would be compiled in
        dropout.forward = torch.compiler.disable(dropout.forward)  # pyright: ignore[reportAttributeAccessIssue]
    if layout.memory_format == torch.channels_last:
        net.compile(dynamic=False, mode=mode)
    else:  # left to itself the compiler computes every convolution of a CPU in channels_last
        graphs = {"triton.cudagraphs": True} if mode == "reduce-overhead" else {}
        net.compile(dynamic=False, options={"layout_optimization": False, **graphs})
