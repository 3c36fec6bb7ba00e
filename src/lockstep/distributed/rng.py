"""Random numbers that do not depend on the number of workers: drawn for the whole batch, then cut to the share."""

import hashlib

import torch
from torch import Tensor, nn
from typing_extensions import override

from lockstep.distributed.partition import Share


def seed_of(*keys: int | str) -> int:
    """32-bit seed of a tuple of keys. Hashed, because torch's CPU generator uses only the low 32 bits of a seed."""
    digest = hashlib.blake2b(repr(keys).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def generator(*keys: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator for `keys`, e.g. (seed, epoch, step, purpose): the same draws on every rank."""
    return torch.Generator(device=device).manual_seed(seed_of(*keys))


class ExactDropout(nn.Module):
    """Dropout (Srivastava et al. 2014) whose mask is drawn for the whole global batch and cut to the rank's share.

    `per_channel` drops whole channels, as nn.Dropout2d does. `share` must be set before each training forward pass. A
    layer that is used twice in one pass draws the same numbers twice. The mask is drawn where the activations are: it
    is the same for any number of workers and micro-batches, and another one on another kind of device (Philox on CUDA,
    mt19937 on a CPU).
    """

    share: Share | None

    def __init__(self, *, p: float, per_channel: bool, keys: tuple[int | str, ...]) -> None:
        super().__init__()
        self.p = p
        self.per_channel = per_channel
        self.keys = keys
        self.share = None

    @override
    def forward(self, x: Tensor) -> Tensor:
        """`x` (B, ...) with B the size of the share."""
        if not self.training or self.p == 0:
            return x
        if self.share is None:
            raise ValueError("ExactDropout has no share: set it before a forward pass in training mode.")
        share = self.share
        # drawn where x lives: a mask can be as large as the activations
        source = generator(*self.keys, share.epoch, share.step, device=x.device)
        shape = (x.shape[1], *[1] * (x.dim() - 2)) if self.per_channel else x.shape[1:]
        keep = torch.rand((share.group_size, *shape), generator=source, device=x.device)[share.lo : share.hi] >= self.p
        return x * keep.to(x.dtype) / (1 - self.p or 1)  # p = 1 keeps nothing: zeros, as nn.Dropout has it


def replace_dropout(net: nn.Module, seed: int) -> list[ExactDropout]:
    """Swap every dropout of `net` for an exact one, in place, and return them.

    Raises ValueError for layers that draw random numbers in another way: with them the result would depend on the rank.
    """
    swapped: dict[nn.Module, ExactDropout] = {}
    # duplicates too: a layer that has two names is swapped under both
    for path, module in list(net.named_modules(remove_duplicate=False)):
        if _depends_on_the_rank(module):
            raise ValueError(
                f"The layer {path!r} ({type(module).__name__}) draws random numbers that depend on the rank: "
                "switch that off in the layer, or use nn.Dropout or nn.Dropout2d."
            )
        if isinstance(module, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
            if module not in swapped:
                swapped[module] = ExactDropout(
                    p=module.p, per_channel=not isinstance(module, nn.Dropout), keys=(seed, "dropout", path)
                )
                swapped[module].train(module.training)
            net.set_submodule(path, swapped[module])
    return list(swapped.values())


def _depends_on_the_rank(module: nn.Module) -> bool:
    """Whether `module` draws from the process's own generator in training; a plain dropout is answered elsewhere."""
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return module.dropout > 0
    if type(module).__name__ in ("StochasticDepth", "DropPath"):  # of torchvision and timm, which are not needed here
        return getattr(module, "p", getattr(module, "drop_prob", 1)) > 0
    layers = nn.AlphaDropout | nn.FeatureAlphaDropout | nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d
    return isinstance(module, layers)
