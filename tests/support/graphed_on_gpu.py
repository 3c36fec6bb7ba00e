"""What a module replayed as CUDA graphs computes and refuses; tests/unit/models/test_graphs.py runs these on a GPU."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep.distributed import rng
from lockstep.distributed.partition import Shard
from lockstep.models import graphs
from lockstep.models.graphs import MOST_KEYS, NUM_EAGER, GraphedModule
from tests.support.modules import classifier
from tests.support.networks import Plain

GIB = 2**30


def of_step(step: int, size: int = 4) -> tuple[Tensor, Shard]:
    torch.manual_seed(step)
    pixels = torch.randint(256, (size, 1, 3, 3), dtype=torch.uint8).cuda()
    return pixels, Shard(epoch=0, step=step, micro_step=step, size=size, lo=0, hi=size, group_size=size)


def small() -> Plain:
    torch.manual_seed(0)
    return Plain(in_channels=1, num_classes=4, hidden=4)


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in module.parameters()]


class Pair:
    """The same module graphed and eager."""

    def __init__(self, net: nn.Module) -> None:
        self.module, self.eager = (classifier(own).cuda() for own in (copy.deepcopy(net), net))
        self.graphed = GraphedModule(self.module, self.module.dropouts, accumulates=False)
        self.kept: list[tuple[Tensor, Tensor]] = []  # outputs, as a task may keep them

    @property
    def num_keys(self) -> int:
        return sum(graphs is not None for graphs in self.graphed._graphs.values())

    def assert_equal(self, step: int, size: int = 4) -> None:
        inputs, shard = of_step(step, size)
        for dropout in (*self.module.dropouts, *self.eager.dropouts):
            dropout.shard = shard
        found: list[Tensor] = []
        for module, outputs_of in ((self.module, partial(self.graphed, shard=shard)), (self.eager, self.eager)):
            outputs = outputs_of(inputs)
            module.zero_grad()
            outputs.square().sum().backward()
            found.append(outputs.detach())
        self.kept.append((found[0], found[1]))
        assert all(torch.equal(*values) for values in self.kept), step
        for one, other in zip(gradients(self.module), gradients(self.eager), strict=True):
            assert one is other is None or (one is not None and other is not None and torch.equal(one, other)), step
        state = self.eager.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in self.module.state_dict().items()), step
        with torch.no_grad():
            for parameter in (*self.module.parameters(), *self.eager.parameters()):
                parameter += 0.01


def test_the_third_pass_of_a_key_has_graphs_and_all_passes_the_bits_of_eager_ones() -> None:
    pair = Pair(small())
    for step, size in enumerate((4, 4, 2, 4, 4, 2, 2, 4, 2)):
        pair.assert_equal(step, size)
    assert pair.num_keys == 2


class DropsTwice(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.dropout(x))


def test_a_dropout_draws_by_blocks_and_in_each_use_as_in_an_eager_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rng, "GPU_BLOCK", 8)  # samples: eight in the first use, two in the second
    pair = Pair(DropsTwice(in_channels=1, num_classes=4, hidden=4))
    for step, size in enumerate((4, 4, 3, 3, 4, 4, 3, 3)):
        pair.assert_equal(step, size)
    assert pair.num_keys == 2


def test_no_more_than_a_few_keys_have_graphs() -> None:
    pair = Pair(small())
    for size in range(2, 4 + MOST_KEYS):
        for step in range(NUM_EAGER + 2):
            pair.assert_equal(step, size)
    assert pair.num_keys == MOST_KEYS


def test_a_shard_of_one_sample_is_eager_and_the_others_keep_their_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    pair = Pair(nn.Sequential(nn.Flatten(), nn.Linear(9, 4)))
    for step in range(4):
        pair.assert_equal(step)
        pair.assert_equal(step, 1)
    assert pair.num_keys == 1
    assert capsys.readouterr().err == ""


def test_gradients_of_several_shards_of_a_batch_add_up() -> None:
    module = classifier(small()).cuda()
    graphed = GraphedModule(module, module.dropouts, accumulates=True)
    sums: list[list[Tensor | None]] = []
    for _ in range(NUM_EAGER + 2):
        module.zero_grad()
        for number, lo in enumerate((0, 0, 4)):
            inputs, shard = of_step(number)
            shard = shard._replace(step=0, lo=lo, hi=lo + 4, group_size=8)
            module.dropouts[0].shard = shard
            graphed(inputs, shard).square().sum().backward()
        sums.append(gradients(module))
    assert len(graphed._graphs) == 2
    for found in sums[1:]:
        assert all(
            one is not None and one.equal(other) for one, other in zip(sums[0], found, strict=True) if other is not None
        )


def test_another_mode_rate_choice_or_memory_of_parameters_has_other_graphs() -> None:
    pair = Pair(small())
    nets: Any = (pair.module.net, pair.eager.net)

    def freeze() -> None:
        for net in nets:
            net.norm.eval()

    def drop_more() -> None:
        for net in nets:
            net.dropout.p = 0.6

    def train_less() -> None:
        for net in nets:
            net.conv.weight.requires_grad_(False)

    def move() -> None:
        for net in nets:
            net.conv.bias.data = 2 * net.conv.bias.data

    for step, change in enumerate((lambda: None, freeze, drop_more, train_less, move)):
        change()
        for number in range(4):
            pair.assert_equal(4 * step + number)
            assert pair.num_keys == (number >= NUM_EAGER)


def test_a_parameter_that_is_not_used_has_no_gradient() -> None:
    net = small()
    net.unused = nn.Parameter(torch.ones(3))
    pair = Pair(net)
    for step in range(4):
        pair.assert_equal(step)
    assert pair.num_keys == 1


class Counts(nn.Module):
    """Computes something else in every pass."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(9, 4)
        self.number = 0

    def forward(self, x: Tensor) -> Tensor:
        self.number += 1
        return self.fc(x.flatten(1)) * self.number


class Waits(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * float(x.detach().abs().max().item() > 0))


class Replaces(Plain):
    """Assigns another tensor to a buffer."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean()
        return super().forward(x - self.mean)


class DropsMore(Plain):
    """Uses its dropout once more than in the passes before the capture."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.dropout(x) if torch.cuda.is_current_stream_capturing() else x)


class Remembers(Plain):
    """Uses a weight that it keeps outside of its parameters."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.kept = [self.fc.weight]

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(torch.relu(self.norm(self.conv(x)))).mean((2, 3)) @ self.kept[0].t() + self.fc.bias


class RunsOutOfMemory(Plain):
    def forward(self, x: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines.")
        return super().forward(x)


REFUSED: dict[Callable[..., nn.Module], str] = {
    Counts: "the network does not compute the same in every pass",
    Remembers: "the network does not compute the same in every pass",
    Waits: "CUDA error: operation not permitted when stream is capturing",
    Replaces: "the network replaces its buffer net.mean: let it change the buffer in place",
    DropsMore: "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed",
    RunsOutOfMemory: "CUDA out of memory. Tried to allocate 2.00 GiB.",
}


@pytest.mark.parametrize("network", REFUSED)
def test_what_no_graph_can_repeat_is_eager_with_one_line(
    network: Callable[..., nn.Module], capsys: pytest.CaptureFixture[str]
) -> None:
    pair = Pair(network(in_channels=1, num_classes=4, hidden=4))
    for step in range(2 * NUM_EAGER):
        if network is Counts:
            pair.graphed(*of_step(step))
        else:
            pair.assert_equal(step)
        assert pair.num_keys == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lockstep: no CUDA graphs, steps are eager: {REFUSED[network]}")


def test_a_rank_of_several_that_finds_a_change_after_its_capture_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(small())
    for step in range(NUM_EAGER + 1):
        pair.assert_equal(step)
    monkeypatch.setattr(graphs, "is_distributed", lambda: True)
    pair.module.net.register_forward_hook(doubled)
    with pytest.raises(RuntimeError, match=r"use trainer\.graph=false"):
        pair.graphed(*of_step(3))


def doubled(layer: nn.Module, inputs: Any, outputs: Any) -> Tensor:
    return 2 * outputs


def test_hooks_end_graphs_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    pair = Pair(small())
    for step in range(3 * NUM_EAGER):
        assert pair.num_keys == (NUM_EAGER < step <= NUM_EAGER + 1)
        if step == NUM_EAGER + 1:
            for module in (pair.module, pair.eager):
                module.get_submodule("net.conv").register_forward_hook(doubled)
        pair.assert_equal(step)
    reason = "a layer has hooks, which a replay does not call"
    assert capsys.readouterr().err == f"lockstep: no CUDA graphs, steps are eager: {reason}\n"


def test_graphs_that_leave_less_memory_than_they_take_are_not_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free = iter([4 * GIB, GIB])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (next(free), 4 * GIB))
    pair = Pair(small())
    for step in range(4):
        pair.assert_equal(step)
    assert pair.num_keys == 0
    reason = "they take 3.0 GiB of GPU memory, 1.0 are left"
    assert capsys.readouterr().err == f"lockstep: no CUDA graphs, steps are eager: {reason}\n"
