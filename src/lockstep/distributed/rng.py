"""Random numbers that do not depend on the number of workers.

They are drawn by position in the batch, or by sample.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lockstep.distributed.partition import Shard
from lockstep.system import internals

# One generator draws this many numbers, but at least one sample, so that seeding takes less time
# than drawing.
CPU_BLOCK, GPU_BLOCK = 2**15, 2**22


def seed_of(*keys: int | str) -> int:
    """Return the 32-bit seed of a tuple of keys.

    The keys are hashed, because torch's CPU generator uses only the low 32 bits of a seed.
    """
    digest = hashlib.blake2b(repr(keys).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def generator(*keys: int | str) -> torch.Generator:
    """Make a generator for `keys`, such as (seed, epoch, step, purpose).

    It draws the same numbers on every rank.
    """
    return torch.Generator().manual_seed(seed_of(*keys))


def hash_indices(indices: Tensor, *keys: int | str) -> Tensor:
    """Hash indices of a data set, below 2**32, to 32 bits with `keys`.

    The result is int64 (B,) and the same on any device. The hash uses xor-shifts and products,
    whose factors below 2**31 keep int64 from overflowing.
    """
    hashes = indices ^ seed_of(*keys)
    for factor in (0x21F0AAAD, 0x735A2D97):
        hashes = (hashes ^ (hashes >> 16)) * factor & 0xFFFFFFFF
    return hashes ^ (hashes >> 15)


def uniform(count: int, indices: Tensor, *keys: int | str) -> Tensor:
    """Draw `count` numbers in [0, 1) for every index, float64 (count, B).

    The keys are for example (seed, epoch, purpose). A sample has the same draws with any number of
    workers, in any batch and on any device.
    """
    draws = [hash_indices(indices, *keys, number) for number in range(count)]
    return torch.stack(draws).double() / 2**32


class ExactDropout(nn.Module):
    """Dropout (Srivastava et al. 2014) whose mask is drawn in blocks of the global batch.

    A rank draws the blocks that its shard touches, on the device of the input. The mask is the same
    for any number of workers and micro-batches, but differs between CUDA (Philox) and CPU
    (mt19937). `per_channel` drops whole channels, as nn.Dropout2d does. `shard` must be set before
    each training forward pass. A layer that is used twice in a pass draws twice. Activation
    checkpointing draws the same numbers again, for layers that are used once.

    `draws` holds the draws of this pass, by use and block. While a CUDA graph is captured, no
    generator can be made or seeded: `sources` then provides one for each draw.
    """

    sources: Iterator[torch.Generator] = iter(())

    def __init__(self, *, p: float, per_channel: bool, keys: tuple[int | str, ...]) -> None:
        super().__init__()
        self.p = p
        self.per_channel = per_channel
        self.keys = keys
        self.max_draws = 0  # This is the maximum over all passes.
        self.shard = None

    @property
    def shard(self) -> Shard | None:
        return self._shard

    @shard.setter
    def shard(self, shard: Shard | None) -> None:
        self._shard = shard
        self.draws: list[tuple[int, int]] = []

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Drop values of `x` (B, ...), where B is the size of the shard."""
        if not self.training or self.p == 0:
            return x
        shape = (x.shape[1], *[1] * (x.dim() - 2)) if self.per_channel else x.shape[1:]
        keep = self._keep(x, shape)
        # With p = 1 nothing is kept, and the result is zeros, as in nn.Dropout.
        return (x * keep).mul_(1 / (1 - self.p or 1))

    def seed(self, shard: Shard, use: int, block: int) -> int:
        return seed_of(*self.keys, shard.epoch, shard.step, use, block)

    def _keep(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Draw the mask (B, *shape) of the shard, in the dtype of `x`.

        Raises ValueError if the rows of `x` are not the samples of the shard. It also raises
        ValueError if it cannot know which use of the layer is computed again in a backward pass.
        """
        if self.shard is None:
            raise ValueError(
                "ExactDropout has no shard: set it before a forward pass in training mode."
            )
        shard = self.shard
        if len(x) != shard.hi - shard.lo:
            raise ValueError(
                f"A dropout ({self.keys[-1]}) gets {len(x)} rows for {shard.hi - shard.lo} "
                "samples: an exact dropout "
                "needs one row per sample; disable it (p=0)."
            )
        use = self.draws[-1][0] + 1 if self.draws else 0
        if internals.is_in_backward():
            if use > 1:  # Any of the uses may be computed again.
                raise ValueError(
                    f"A dropout ({self.keys[-1]}) used {use} times cannot be checkpointed: "
                    f"make {use} layers."
                )
            use = 0
        lo, hi, total = shard.lo, shard.hi, shard.group_size
        block_size = GPU_BLOCK if x.is_cuda else CPU_BLOCK
        size = max(1, block_size // math.prod(shape))
        keep = x.new_empty(hi - lo, *shape)
        for block in range(lo // size, -(-hi // size)):
            self.draws.append((use, block))
            # The mask is drawn on the device of x, because it is as large as the activations.
            # bernoulli_ is not used, because it differs between CPUs of Intel and AMD.
            source = next(self.sources, None)
            if source is None:
                seed = self.seed(shard, use, block)
                source = torch.Generator(x.device).manual_seed(seed)
            start = block * size
            num_rows = min(size, total - start)
            draws = torch.rand((num_rows, *shape), generator=source, device=x.device)
            mask = draws[max(lo - start, 0) : hi - start] >= self.p
            keep[max(start - lo, 0) :][: len(mask)] = mask
        self.max_draws = max(self.max_draws, len(self.draws))
        return keep


class ExactDropPath(ExactDropout):
    """Stochastic depth (Huang et al. 2016): an ExactDropout of whole samples.

    If `is_scaled`, the samples that are kept are scaled up.
    """

    def __init__(self, *, p: float, is_scaled: bool, keys: tuple[int | str, ...]) -> None:
        super().__init__(p=p, per_channel=False, keys=keys)
        self.is_scaled = is_scaled

    @override
    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        keep = self._keep(x, [1] * (x.dim() - 1))
        return x * keep / ((1 - self.p or 1) if self.is_scaled else 1)


def replace_dropout(net: nn.Module, seed: int) -> list[ExactDropout]:
    """Replace every dropout and stochastic depth of `net` by an exact one, in place.

    Returns the new layers. Set their `shard`, from one of `GlobalBatches`, before each forward pass
    in training mode.

    Raises ValueError for other layers that draw random numbers, because their result would depend
    on the rank.
    """
    exact_layers: dict[nn.Module, ExactDropout] = {}
    # Duplicates are included, so that a layer with two names is replaced under both.
    for path, module in list(net.named_modules(remove_duplicate=False)):
        if module not in exact_layers:
            exact_layer = _exact(module, (seed, "dropout", path))
            if exact_layer is None:
                if _depends_on_the_rank(module):
                    raise ValueError(
                        f"The layer {path!r} ({type(module).__name__}) draws random numbers that "
                        "depend on the rank: disable that, or use nn.Dropout or nn.Dropout2d."
                    )
                continue
            exact_layers[module] = exact_layer
            exact_layer.train(module.training)
        net.set_submodule(path, exact_layers[module])
    return list(exact_layers.values())


def _exact(module: nn.Module, keys: tuple[int | str, ...]) -> ExactDropout | None:
    if isinstance(module, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
        return ExactDropout(p=module.p, per_channel=not isinstance(module, nn.Dropout), keys=keys)
    layer: Any = module
    # The package and the name of the class are compared, because torchvision and timm are not
    # imported for this.
    match type(module).__module__.partition(".")[0], type(module).__name__:
        case "torchvision", "StochasticDepth" if layer.mode == "row":
            return ExactDropPath(p=layer.p, is_scaled=True, keys=keys)
        case "timm", "DropPath":
            return ExactDropPath(p=layer.drop_prob, is_scaled=layer.scale_by_keep, keys=keys)
    return None


def drawing_layer(net: nn.Module, images: Tensor) -> str | None:
    """Return the innermost layer that draws from torch's CPU generator in a forward pass.

    The result is its name and class, or None. Functions such as F.dropout count too. The state of
    the generator is restored.
    """
    layer_names = {module: name for name, module in net.named_modules()}
    before: dict[nn.Module, Tensor] = {}
    descriptions: list[str] = []

    def enter(layer: nn.Module, inputs: Any) -> None:
        before[layer] = torch.get_rng_state()

    def leave(layer: nn.Module, inputs: Any, outputs: Any) -> None:
        if not torch.equal(before[layer], torch.get_rng_state()):
            descriptions.append(f"{layer_names[layer]!r} ({type(layer).__name__})")

    hooks = [layer.register_forward_pre_hook(enter) for layer in layer_names]
    hooks += [layer.register_forward_hook(leave) for layer in layer_names]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            net(images)
    finally:
        for hook in hooks:
            hook.remove()
    return descriptions[0] if descriptions else None


def _depends_on_the_rank(module: nn.Module) -> bool:
    """Return True if a layer draws from the generator of the process in training.

    `module` is not a plain dropout.
    """
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return module.dropout > 0
    # The details of custom classes are unknown.
    if type(module).__name__ in ("StochasticDepth", "DropPath"):
        return getattr(module, "p", getattr(module, "drop_prob", 1)) > 0
    layers = (
        nn.AlphaDropout
        | nn.FeatureAlphaDropout
        | nn.RReLU
        | nn.FractionalMaxPool2d
        | nn.FractionalMaxPool3d
    )
    return isinstance(module, layers)
