from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import DropPath  # pyright: ignore[reportPrivateImportUsage]
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision.ops import StochasticDepth

from lockstep.distributed import rng
from lockstep.distributed.partition import Shard, interval
from lockstep.distributed.rng import (
    ExactDropout,
    drawing_layer,
    generator,
    replace_dropout,
    seed_of,
    uniform,
)

repeatable = settings(max_examples=40, deadline=None, derandomize=True)


def whole(size: int, *, epoch: int = 0, step: int = 0) -> Shard:
    return Shard(epoch, step, step, size, 0, size, size)


def layer_of(
    p: float = 0.5, *, per_channel: bool = False, keys: tuple[int | str, ...] = (1,)
) -> ExactDropout:
    return ExactDropout(p=p, per_channel=per_channel, keys=keys)


def dropped(layer: ExactDropout, x: Tensor, shard: Shard) -> Tensor:
    layer.shard = shard
    return layer(x)


# -- seeds -----------------------------------------------------------------------------------------


@repeatable
@given(st.integers(0, 2**32 - 1), st.integers(1, 2**31))
def test_seed_high_bits(low: int, high: int) -> None:
    """Hashed keys: torch's CPU generator takes only the low 32 bits of a seed."""
    one, other = generator(low), generator(low + (high << 32))
    assert not torch.equal(torch.rand(8, generator=one), torch.rand(8, generator=other))


def test_seed_key_order() -> None:
    keys = [
        (0,),
        (1,),
        (0, 0),
        (0, 1),
        (1, 0),
        (12, 3),
        (1, 23),
        ("1",),
        ("a", "b"),
        ("ab",),
        (1, "order"),
        (-1,),
    ]
    assert len({seed_of(*key) for key in keys}) == len(keys)


def test_uniform_by_index() -> None:
    """20 bins of 10,000 draws: chi squared of 19 degrees is above 52 once in 15,000 times."""
    indices = torch.arange(1_000_000, 1_010_000)
    draws = torch.cat(
        [
            uniform(3, indices, 7, epoch, purpose)
            for epoch in (0, 1)
            for purpose in ("crop", "rotate")
        ]
    )
    counts = torch.stack([row.histc(20, 0, 1) for row in draws])
    assert ((counts - 500) ** 2 / 500).sum(1).max() < 52
    shifted = torch.cat([draws, draws.roll(1, 1), draws.roll(7, 1)])
    correlations = torch.corrcoef(shifted) - torch.eye(len(shifted))
    assert correlations.abs().max() < 0.05
    assert torch.equal(uniform(3, indices[5:9], 7, 0, "crop"), draws[:3, 5:9])


# -- dropout ---------------------------------------------------------------------------------------


@repeatable
@given(
    size=st.integers(1, 40),
    worker_weights=st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any),
    p=st.floats(0, 1),
    shape=st.sampled_from([(6,), (3, 4), (3, 2, 2)]),
    per_channel=st.booleans(),
    step=st.integers(0, 9),
    block=st.integers(1, 200),
)
def test_dropout_any_shards(
    size: int,
    worker_weights: list[int],
    p: float,
    shape: tuple[int, ...],
    per_channel: bool,
    step: int,
    block: int,
) -> None:
    layer = ExactDropout(p=p, per_channel=per_channel, keys=(1, "dropout", "path"))
    x = torch.randn(size, *shape, generator=generator("x"))
    with mock.patch.object(rng, "CPU_BLOCK", block):
        parts = []
        for rank in range(len(worker_weights)):
            lo, hi = interval(size, worker_weights, rank)
            parts.append(dropped(layer, x[lo:hi], Shard(2, step, step, size, lo, hi, size)))
        assert torch.equal(torch.cat(parts), dropped(layer, x, whole(size, epoch=2, step=step)))


def test_dropout_used_twice() -> None:
    layer, x, part = layer_of(), torch.ones(20, 20), Shard(0, 0, 0, 20, 5, 15, 20)
    first, second = dropped(layer, x, whole(20)), layer(x)
    assert not torch.equal(first, second)
    assert torch.equal(first[5:15], dropped(layer, x[5:15], part))
    assert torch.equal(second[5:15], layer(x[5:15]))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing(use_reentrant: bool) -> None:
    net = nn.Sequential(
        nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 2)
    )
    layers, gradients = replace_dropout(net, seed=7), []
    for is_kept in (True, False):
        x = torch.ones(4, 6, requires_grad=True)
        for layer in layers:
            layer.shard = whole(4)
        for part in (net[:2], net[2:]):
            x = part(x) if is_kept else checkpoint(part, x, use_reentrant=use_reentrant)
        net.zero_grad()
        x.square().sum().backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    assert all(map(torch.equal, *gradients))


def test_activation_checkpointing_used_twice_refused() -> None:
    """Which of its uses is computed again is not known."""
    net = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
    (layer,) = replace_dropout(net, seed=7)
    layer.shard = whole(4)
    x = checkpoint(net, checkpoint(net, torch.ones(4, 6), use_reentrant=False), use_reentrant=False)
    with pytest.raises(ValueError, match=r"\(1\) used 2 times cannot be checkpointed"):
        x.sum().backward()


@pytest.mark.parametrize("p", [0.25, 1.0])
def test_dropout_rate_and_scale(p: float) -> None:
    x = torch.ones(1000, 100, requires_grad=True)
    y = dropped(layer_of(p), x, whole(1000))
    y.sum().backward()
    kept = y != 0
    assert abs(kept.double().mean().item() - (1 - p)) <= 5 * (p * (1 - p) / x.numel()) ** 0.5
    torch.testing.assert_close(y[kept], x[kept] / max(1 - p, 1e-9))
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())


def test_dropout_per_channel() -> None:
    channels = dropped(layer_of(per_channel=True), torch.ones(60, 8, 3, 5), whole(60)).flatten(2)
    assert torch.equal(channels.amin(2), channels.amax(2))
    kept = channels[:, :, 0] != 0
    assert min(len(kept.unique(dim=0)), kept.unique(dim=1).shape[1]) > 1


def test_mask_per_layer_epoch_step() -> None:
    masks = [
        dropped(layer_of(keys=(seed, "dropout", path)), torch.ones(20, 20), shard)
        for seed, path, shard in (
            (1, "a", whole(20)),
            (2, "a", whole(20)),
            (1, "b", whole(20)),
            (1, "a", whole(20, epoch=1)),
            (1, "a", whole(20, step=1)),
        )
    ]
    assert len(torch.stack(masks).unique(dim=0)) == 5


# -- dropout of a whole network --------------------------------------------------------------------


def test_replace_dropout() -> None:
    deep = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"deep": nn.Dropout2d(0.2)}))
    shared = nn.Dropout(0.1)
    net = nn.Sequential(shared, deep, nn.Dropout1d(0.3), nn.Dropout3d(0.4), shared)
    found = replace_dropout(net, seed=7)
    assert [module for module in net.modules() if isinstance(module, ExactDropout)] == found
    assert [(layer.keys, layer.p, layer.per_channel) for layer in found] == [
        ((7, "dropout", "0"), 0.1, False),
        ((7, "dropout", "1.1.deep"), 0.2, True),
        ((7, "dropout", "2"), 0.3, True),
        ((7, "dropout", "3"), 0.4, True),
    ]


@pytest.mark.parametrize(
    ("layer", "scale"),
    [(StochasticDepth(0.3, "row"), 1 / 0.7), (DropPath(0.3), 1 / 0.7), (DropPath(0.3, False), 1.0)],
    ids=str,
)
@pytest.mark.parametrize("worker_weights", [[2, 0, 1]])
def test_stochastic_depth_any_shards(
    layer: nn.Module, scale: float, worker_weights: list[int]
) -> None:
    (exact,) = replace_dropout(nn.Sequential(layer), seed=7)
    x = 1 + torch.rand(30, 2, 3, generator=generator("x"))
    y = dropped(exact, x, whole(30))
    intervals = [interval(30, worker_weights, rank) for rank in range(len(worker_weights))]
    parts = [dropped(exact, x[lo:hi], Shard(0, 0, 0, 30, lo, hi, 30)) for lo, hi in intervals]
    assert torch.equal(torch.cat(parts), y)
    kept = y.flatten(1).any(1).view(-1, 1, 1)
    torch.testing.assert_close(y, x * scale * kept)
    steps = [dropped(exact, x, whole(30, step=step)).flatten(1).any(1) for step in range(40)]
    assert abs(torch.stack(steps).double().mean() - 0.7) < 0.07


@pytest.mark.parametrize(
    ("shard", "error"),
    [
        (None, "has no shard"),
        # windows of an image, say: which rows belong to which sample is not known
        (whole(3), r"blocks\.0\.drop.* gets 12 rows for 3 samples"),
    ],
    ids=["no shard", "wrong number of rows"],
)
def test_dropout_refused(shard: Shard | None, error: str) -> None:
    layer = layer_of(keys=(1, "dropout", "blocks.0.drop"))
    layer.shard = shard
    with pytest.raises(ValueError, match=error):
        layer(torch.ones(12, 4))


class Functional(nn.Module):
    """A layer that drops by a function."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, training=self.training)


def test_drawing_layer() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"f": Functional()})["f"], nn.ReLU())
    before = torch.get_rng_state()
    assert drawing_layer(net, torch.ones(2, 4)) == "'1' (Functional)"
    assert torch.equal(torch.get_rng_state(), before)
    assert drawing_layer(net.eval(), torch.ones(2, 4)) is None


class DropPathOfUser(nn.Module):
    """A custom stochastic depth, recognized by its name."""

    drop_prob = 0.1


DropPathOfUser.__name__ = "DropPath"


@pytest.mark.parametrize(
    "layer",
    [
        nn.AlphaDropout(),
        nn.FeatureAlphaDropout(),
        nn.RReLU(),
        nn.FractionalMaxPool2d(2, output_size=2),
        nn.FractionalMaxPool3d(2, output_size=2),
        nn.MultiheadAttention(4, 2, dropout=0.1),
        nn.LSTM(2, 2, num_layers=2, dropout=0.1),
        DropPathOfUser(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_rank_dependent_layer_refused(layer: nn.Module) -> None:
    with pytest.raises(
        ValueError, match=rf"'1\.inner' \({type(layer).__name__}\).*depend on the rank"
    ):
        replace_dropout(nn.Sequential(nn.ReLU(), nn.ModuleDict({"inner": layer})), seed=7)
