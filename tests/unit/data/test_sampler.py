"""Every sample once, in an order that no number of workers changes, also across a stop."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.data.loader import ShardLoader
from lockstep.data.sampler import GlobalBatches, ShardIndices
from lockstep.distributed.batch import Batch
from tests.support.plans import Plan

repeatable = settings(max_examples=40, deadline=None, derandomize=True)
LOADS = st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any)


def step_size(plan: Plan) -> int:
    return plan.micro_batch_size * plan.accumulate_grad_batches


PLANS = st.builds(
    Plan,
    num_samples=st.integers(1, 60),
    micro_batch_size=st.integers(1, 16),
    accumulate_grad_batches=st.integers(1, 4),
    shuffle_seed=st.none() | st.integers(0, 2**40),
    num_batches=st.none() | st.integers(1, 8),
    drop_last=st.booleans(),
).filter(lambda plan: not plan.drop_last or plan.num_samples >= step_size(plan))


COMPLETE_PLANS = PLANS.map(lambda plan: replace(plan, num_batches=None, drop_last=False))


def order_of(batches: GlobalBatches | ShardLoader) -> list[int]:
    return [index for batch in batches for index in batch.indices.tolist()]


def put_together(shards: list[list[ShardIndices]] | list[list[Batch]]) -> list[list[int]]:
    """The micro-batches that the ranks read together, in rank order."""
    return [
        [index for part in parts for index in part.indices.tolist()]
        for parts in zip(*shards, strict=True)
    ]  # strict: the same number of steps on every rank


@repeatable
@given(PLANS, LOADS, st.integers(0, 3))
def test_any_ranks(plan: Plan, worker_weights: list[int], epoch: int) -> None:
    alone = list(plan.of(epoch=epoch))
    shards = [
        list(plan.of(rank, worker_weights, epoch=epoch)) for rank in range(len(worker_weights))
    ]
    assert put_together(shards) == put_together([alone])
    for parts in shards:
        for (indices, shard), (_, whole) in zip(parts, alone, strict=True):
            assert shard._replace(lo=whole.lo, hi=whole.hi) == whole
            assert len(indices) == shard.hi - shard.lo


@repeatable
@given(COMPLETE_PLANS, st.integers(0, 3))
def test_samples_drawn_once(plan: Plan, epoch: int) -> None:
    batches = put_together([list(plan.of(epoch=epoch))])
    assert sorted(index for batch in batches for index in batch) == list(range(plan.num_samples))
    assert all(len(batch) == plan.micro_batch_size for batch in batches[:-1])
    assert 0 < len(batches[-1]) <= plan.micro_batch_size + 1


@repeatable
@given(COMPLETE_PLANS)
def test_single_last_sample_taken_in(plan: Plan) -> None:
    """Batch norm cannot normalize by a single value.

    Batches that are all of one sample stay as they are.
    """
    shards = [shard for _, shard in plan.of()]
    if plan.micro_batch_size > 1 and plan.num_samples > 1:
        assert min(shard.size for shard in shards) > 1
    if plan.micro_batch_size * plan.accumulate_grad_batches > 1 and plan.num_samples > 1:
        assert min(shard.group_size for shard in shards) > 1
    assert plan.of().has_single_samples == (min(shard.size for shard in shards) == 1)


@repeatable
@given(PLANS, LOADS)
def test_any_micro_batches(plan: Plan, worker_weights: list[int]) -> None:
    """The positions of a shard are those in the global batch; a partner is the next one there."""
    plan = replace(plan, num_batches=None)
    whole = replace(plan, micro_batch_size=step_size(plan), accumulate_grad_batches=1)
    steps = [indices.tolist() for indices, _ in whole.of()]
    read: list[list[int]] = [[] for _ in steps]
    for parts in zip(
        *(
            replace(plan, with_partner=True).of(r, worker_weights)
            for r in range(len(worker_weights))
        ),
        strict=True,
    ):
        for indices, shard in parts:
            step = steps[shard.step]
            assert shard.group_size == len(step)
            expected = [step[position % len(step)] for position in range(shard.lo, shard.hi + 1)]
            assert indices.tolist() == ([] if shard.is_empty else expected)
            read[shard.step] += expected[:-1]
    assert read == steps


@repeatable
@given(PLANS, st.integers(1, 8))
def test_limit(plan: Plan, limit: int) -> None:
    whole = put_together([list(replace(plan, num_batches=None).of())])
    limited = replace(plan, num_batches=limit).of()
    assert put_together([list(limited)]) == whole[:limit]
    assert len(limited) == len(whole[:limit])


@repeatable
@given(COMPLETE_PLANS)
def test_drop_last(plan: Plan) -> None:
    num_steps = plan.num_samples // step_size(plan)
    every = [index for batch in put_together([list(plan.of())]) for index in batch]
    dropped = put_together([list(replace(plan, drop_last=True).of())])
    assert len(dropped) == num_steps * plan.accumulate_grad_batches
    assert all(len(batch) == plan.micro_batch_size for batch in dropped)
    complete = [index for batch in dropped for index in batch]
    assert complete == every[: num_steps * step_size(plan)]


@repeatable
@given(PLANS, LOADS)
def test_lengths(plan: Plan, worker_weights: list[int]) -> None:
    shards = [list(plan.of(rank, worker_weights)) for rank in range(len(worker_weights))]
    for rank, read in enumerate(shards):
        assert (
            len(plan.of(rank, worker_weights))
            == len(plan.loader(rank, worker_weights))
            == len(read)
        )
    assert plan.of().num_epoch_samples == sum(len(batch) for batch in put_together(shards))


@repeatable
@given(PLANS, LOADS)
def test_group_size(plan: Plan, worker_weights: list[int]) -> None:
    shards = [shard for _, shard in plan.of(len(worker_weights) - 1, worker_weights)]
    for start in range(0, len(shards), plan.accumulate_grad_batches):
        group = shards[start : start + plan.accumulate_grad_batches]
        assert {shard.group_size for shard in group} == {sum(shard.size for shard in group)}


def test_order_per_seed_and_epoch() -> None:
    orders = [
        order_of(Plan(shuffle_seed=seed).of(epoch=epoch))
        for seed in (0, 1, 2**32)
        for epoch in (0, 1)
    ]
    assert all(one != other for i, one in enumerate(orders) for other in orders[:i])


@pytest.mark.parametrize("epoch", [0, 1])
def test_order_without_seed(epoch: int) -> None:
    assert order_of(Plan(shuffle_seed=None).of(epoch=epoch)) == list(range(100))


@repeatable
@given(PLANS, LOADS)
def test_loader_pixels_and_labels(plan: Plan, worker_weights: list[int]) -> None:
    for batch in plan.loader(len(worker_weights) - 1, worker_weights):
        assert torch.equal(batch.inputs[:, 0, 0, 0].long(), batch.indices)
        assert torch.equal(batch.targets, 2 * batch.indices)


@repeatable
@given(PLANS, LOADS, LOADS, st.integers(0, 3), st.booleans(), st.data())
def test_resume_other_ranks(
    plan: Plan,
    worker_weights: list[int],
    other_loads: list[int],
    epoch: int,
    is_told: bool,
    data: st.DataObject,
) -> None:
    batches = list(plan.of(epoch=epoch))
    position = data.draw(st.integers(1, len(batches)), label="batches before the stop")
    states = []
    for rank in range(len(worker_weights)):
        loader = plan.loader(rank, worker_weights, epoch=epoch)
        for _ in zip(range(position), loader, strict=False):
            pass
        states.append(loader.state_dict())
    assert all(state == states[0] for state in states)

    is_over = position == len(batches)
    expected = list(plan.of(epoch=epoch + 1)) if is_over else batches[position:]
    resumed = []
    for rank in range(len(other_loads)):
        loader = plan.loader(rank, other_loads)
        loader.load_state_dict(states[0])
        if is_told:  # as Lightning does, after loading the state
            assert isinstance(loader.batch_sampler.sampler, GlobalBatches)
            loader.batch_sampler.sampler.set_epoch(epoch + is_over)
        resumed.append(list(loader))
        assert len(list(loader)) == len(batches)  # only one pass starts inside the epoch
    assert put_together(resumed) == put_together([expected])
