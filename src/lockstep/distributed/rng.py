"""Random numbers that do not depend on the number of workers: drawn for the whole batch, then cut to the shard."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lockstep.distributed.partition import Shard


def seed_of(*keys: int | str) -> int:
    """32-bit seed of a tuple of keys. Hashed, because torch's CPU generator uses only the low 32 bits of a seed."""
    digest = hashlib.blake2b(repr(keys).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def generator(*keys: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator for `keys`, e.g. (seed, epoch, step, purpose): the same draws on every rank."""
    return torch.Generator(device=device).manual_seed(seed_of(*keys))


class ExactDropout(nn.Module):
    """Dropout (Srivastava et al. 2014) whose mask is drawn for the whole global batch and cut to the rank's shard.

    `per_channel` drops whole channels, as nn.Dropout2d does. `shard` must be set before each training forward pass. A
    layer that is used twice in one pass draws the same numbers twice. The mask is drawn where the activations are: it
    is the same for any number of workers and micro-batches, and another one on another kind of device (Philox on CUDA,
    mt19937 on a CPU).
    """

    shard: Shard | None
    is_joint = False  # whether one draw is for all samples

    def __init__(self, *, p: float, per_channel: bool, keys: tuple[int | str, ...]) -> None:
        super().__init__()
        self.p = p
        self.per_channel = per_channel
        self.keys = keys
        self.shard = None

    @override
    def forward(self, x: Tensor) -> Tensor:
        """`x` (B, ...) with B the size of the shard."""
        if not self.training or self.p == 0:
            return x
        keep = self._keep(x, (x.shape[1], *[1] * (x.dim() - 2)) if self.per_channel else x.shape[1:])
        return x * keep.to(x.dtype) / (1 - self.p or 1)  # p = 1 keeps nothing: zeros, as nn.Dropout has it

    def _keep(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """What is kept of each sample of the shard, drawn in this shape for every sample of the global batch.

        Raises ValueError where the rows of `x` are not the samples.
        """
        if self.shard is None:
            raise ValueError("ExactDropout has no shard: set it before a forward pass in training mode.")
        shard = self.shard
        if len(x) != shard.hi - shard.lo:
            raise ValueError(
                f"A dropout ({self.keys[-1]}) gets {len(x)} rows for {shard.hi - shard.lo} samples: it can be drawn "
                "for the global batch only where its input has a row for each sample; leave it out (p=0)."
            )
        # drawn where x lives: a mask can be as large as the activations
        source = generator(*self.keys, shard.epoch, shard.step, device=x.device)
        if self.is_joint:
            return torch.rand((1, *shape), generator=source, device=x.device) >= self.p
        return torch.rand((shard.group_size, *shape), generator=source, device=x.device)[shard.lo : shard.hi] >= self.p


class ExactDropPath(ExactDropout):
    """Stochastic depth (Huang et al. 2016), drawn as ExactDropout is: it drops whole samples.

    What is kept is scaled up where `is_scaled`. With `is_joint` one draw is for all samples of the global batch.
    """

    def __init__(self, *, p: float, is_scaled: bool, is_joint: bool, keys: tuple[int | str, ...]) -> None:
        super().__init__(p=p, per_channel=False, keys=keys)
        self.is_scaled = is_scaled
        self.is_joint = is_joint

    @override
    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        keep = self._keep(x, [1] * (x.dim() - 1))
        return x * keep.to(x.dtype) / ((1 - self.p or 1) if self.is_scaled else 1)


def replace_dropout(net: nn.Module, seed: int) -> list[ExactDropout]:
    """Swap every dropout of `net` for an exact one, in place, and return them; stochastic depth is one, too.

    Raises ValueError for layers that draw random numbers in another way: with them the result would depend on the rank.
    """
    swapped: dict[nn.Module, ExactDropout] = {}
    # duplicates too: a layer that has two names is swapped under both
    for path, module in list(net.named_modules(remove_duplicate=False)):
        if module not in swapped:
            exact = _exact(module, (seed, "dropout", path))
            if exact is None:
                _refuse_draws(path, module)
                continue
            swapped[module] = exact
            exact.train(module.training)
        net.set_submodule(path, swapped[module])
    return list(swapped.values())


def _exact(module: nn.Module, keys: tuple[int | str, ...]) -> ExactDropout | None:
    """The exact layer that takes the place of a dropout; None of every other layer."""
    if isinstance(module, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
        return ExactDropout(p=module.p, per_channel=not isinstance(module, nn.Dropout), keys=keys)
    layer: Any = module
    match _of_a_library(module):
        case "torchvision", "StochasticDepth":
            return ExactDropPath(p=layer.p, is_scaled=True, is_joint=layer.mode == "batch", keys=keys)
        case "timm", "DropPath":
            return ExactDropPath(p=layer.drop_prob, is_scaled=layer.scale_by_keep, is_joint=False, keys=keys)
    return None


def _of_a_library(module: nn.Module) -> tuple[str, str]:
    """Package and name of a layer's class: those of torchvision and timm are known without an import."""
    return type(module).__module__.partition(".")[0], type(module).__name__


def _refuse_draws(path: str, module: nn.Module) -> None:
    if _depends_on_the_rank(module):
        raise ValueError(
            f"The layer {path!r} ({type(module).__name__}) draws random numbers that depend on the rank: "
            "switch that off in the layer, or use nn.Dropout or nn.Dropout2d."
        )


def drawing_layer(net: nn.Module, images: Tensor) -> str | None:
    """The name and class of the innermost layer that draws from torch's own generator of the CPU in a forward pass.

    None where none does. The draws of functions, such as F.dropout, are found too. What the generator gives afterwards
    is what it would have given.
    """
    names = {module: name for name, module in net.named_modules()}
    before: dict[nn.Module, Tensor] = {}
    found: list[str] = []

    def enter(layer: nn.Module, inputs: Any) -> None:
        before[layer] = torch.get_rng_state()

    def leave(layer: nn.Module, inputs: Any, outputs: Any) -> None:
        if not torch.equal(before[layer], torch.get_rng_state()):
            found.append(f"{names[layer]!r} ({type(layer).__name__})")

    hooks = [layer.register_forward_pre_hook(enter) for layer in names]
    hooks += [layer.register_forward_hook(leave) for layer in names]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            net(images)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


def _depends_on_the_rank(module: nn.Module) -> bool:
    """Whether `module` draws from the process's own generator in training; a plain dropout is answered elsewhere."""
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return module.dropout > 0
    if type(module).__name__ in ("StochasticDepth", "DropPath"):  # the user's own, whose details are not known
        return getattr(module, "p", getattr(module, "drop_prob", 1)) > 0
    layers = nn.AlphaDropout | nn.FeatureAlphaDropout | nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d
    return isinstance(module, layers)
