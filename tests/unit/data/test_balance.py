"""Epochs with chosen class proportions: how often each image occurs, on any number of workers."""

from collections.abc import Callable
from functools import partial
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.assembly.run_parts import refuse_unfit_images
from lockstep.config.errors import ConfigError
from lockstep.config.overrides import plan
from lockstep.data.balance import order, sizes_of
from lockstep.data.sampler import repeats
from lockstep.data.sources.builtin import synthetic
from lockstep.data.splits import Splits
from lockstep.distributed.partition import Shard
from tests.support.plans import Plan
from tests.support.sources import labeled

repeatable = settings(max_examples=40, deadline=None, derandomize=True)
NINE_TO_ONE = partial(
    order, torch.tensor([0] * 45 + [1] * 5).repeat(2), torch.tensor(sizes_of([90, 10], 1))
)


@repeatable
@given(st.lists(st.integers(1, 30), min_size=2, max_size=6), st.floats(0.01, 1), st.integers(0, 3))
def test_epoch_balanced(counts: list[int], balance: float, epoch: int) -> None:
    classes = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    classes = classes[torch.randperm(len(classes), generator=torch.Generator().manual_seed(1))]
    sizes = sizes_of(counts, balance)
    exact = [
        count ** (1 - balance) * sum(counts) / sum(each ** (1 - balance) for each in counts)
        for count in counts
    ]
    assert max(abs(size - wanted) for size, wanted in zip(sizes, exact, strict=True)) < 1
    drawn = order(classes, torch.tensor(sizes), torch.Generator().manual_seed(epoch))
    assert len(drawn) == sum(counts)
    assert torch.bincount(classes[drawn], minlength=len(counts)).tolist() == sizes
    times = torch.bincount(drawn, minlength=len(classes))
    assert all(
        int(part.max() - part.min()) <= 1
        for part in (times[classes == k] for k in range(len(counts)))
    )


@repeatable
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any),
    st.booleans(),
    st.integers(0, 3),
)
def test_balanced_any_ranks(worker_weights: list[int], with_partner: bool, epoch: int) -> None:
    cut = Plan(
        micro_batch_size=6, accumulate_grad_batches=2, order=NINE_TO_ONE, with_partner=with_partner
    )
    alone = list(cut.of(epoch=epoch))
    parts = [cut.of(rank, worker_weights, epoch=epoch) for rank in range(len(worker_weights))]
    for part in parts:
        part.seek(epoch, 3)  # as a resume does
    drawn_alone = torch.cat([plan_draws(indices, shard) for indices, shard in alone])
    assert sorted(drawn_alone.tolist()) == list(range(100))  # a repeated image draws again
    for shards, (indices, whole) in zip(zip(*parts, strict=True), alone[3:], strict=True):
        kept = [shard.indices[: shard.shard.hi - shard.shard.lo].tolist() for shard in shards]
        assert list(chain(*kept)) == indices[: whole.hi - whole.lo].tolist()
        drawn = [plan_draws(*shard).tolist() for shard in shards]
        assert list(chain(*drawn)) == plan_draws(indices, whole).tolist()
    assert alone[0].indices.tolist() != next(iter(cut.of(epoch=epoch + 1))).indices.tolist()


def plan_draws(indices: torch.Tensor, shard: Shard) -> torch.Tensor:
    """What the draws of the own samples of a shard depend on."""
    drawn_by = repeats(shard, len(indices))
    assert drawn_by is not None
    return drawn_by[: shard.hi - shard.lo]


def without_class_3() -> Splits:
    return synthetic(
        num_classes=4, channels=1, image_size=8, train_size=3, val_size=4, test_size=2, seed=0
    )


@pytest.mark.parametrize(
    ("setting", "load", "message"),
    [
        ("data.balance=0.5", partial(labeled, "labels"), "data.balance=0.5 needs the class"),
        (
            "task.class_weights=balanced",
            partial(labeled, "labels"),
            "task.class_weights=balanced needs the class",
        ),
        ("data=synthetic", without_class_3, "no training image of class 3"),
        ("data.drop_last=true", without_class_3, "leaves no batch of 64 of 3 training images"),
    ],
)
def test_images_refused(setting: str, load: Callable[[], Splits], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        refuse_unfit_images(plan([setting]).configs[0], load())
