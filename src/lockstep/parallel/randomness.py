"""Random numbers that do not depend on the number of workers: drawn for the whole batch, then cut to the share."""

import hashlib

import torch
from torch import Tensor, nn

from lockstep.parallel.partition import Share


def seed_of(*keys: int | str) -> int:
    """32-bit seed of a tuple of keys. Hashed, because torch's CPU generator uses only the low 32 bits of a seed."""
    digest = hashlib.blake2b(repr(keys).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def generator(*keys: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator for `keys`, e.g. (seed, epoch, micro_step, purpose): the same draws on every rank."""
    return torch.Generator(device=device).manual_seed(seed_of(*keys))


class ExactDropout(nn.Module):
    """Dropout (Srivastava et al. 2014) whose mask is drawn for the whole micro-batch and cut to the rank's share.

    `per_channel` drops whole channels, as nn.Dropout2d does. `share` must be set before each training forward pass.
    """

    share: Share | None

    def __init__(self, *, p: float, per_channel: bool, keys: tuple[int | str, ...]) -> None:
        super().__init__()
        self.p = p
        self.per_channel = per_channel
        self.keys = keys
        self.share = None

    def forward(self, x: Tensor) -> Tensor:
        """`x` (B, ...) with B the size of the share."""
        if not self.training or self.p == 0:
            return x
        if self.share is None:
            raise ValueError("ExactDropout has no share: set it before a forward pass in training mode.")
        share = self.share
        # drawn where x lives: a mask can be as large as the activations
        source = generator(*self.keys, share.epoch, share.micro_step, device=x.device)
        shape = (share.size, x.shape[1], *[1] * (x.dim() - 2)) if self.per_channel else (share.size, *x.shape[1:])
        keep = torch.rand(shape, generator=source, device=x.device)[share.lo : share.hi] >= self.p
        return x * keep.to(x.dtype) / (1 - self.p)


def replace_dropout(net: nn.Module, seed: int) -> list[ExactDropout]:
    """Swap every dropout of `net` for an exact one, in place, and return them.

    Raises ValueError for layers that draw random numbers in another way: with them the result would depend on the rank.
    """
    found: list[ExactDropout] = []
    for path, module in list(net.named_modules()):
        if isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout | nn.RReLU | nn.FractionalMaxPool2d):
            raise ValueError(
                f"The layer {path!r} ({type(module).__name__}) draws random numbers that depend on the rank: "
                "use nn.Dropout or nn.Dropout2d."
            )
        if isinstance(module, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
            exact = ExactDropout(
                p=module.p, per_channel=not isinstance(module, nn.Dropout), keys=(seed, "dropout", path)
            )
            exact.train(module.training)
            net.set_submodule(path, exact)
            found.append(exact)
    return found
