"""What pretended CUDA graphs do and refuse; tests/integration/test_pretended_graphs.py runs these tests on a GPU."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

Graph: Any = torch.cuda.CUDAGraph


@pytest.fixture
def x() -> Tensor:
    return torch.arange(6.0, device="cuda").view(2, 3)


@contextmanager
def capturing(pool: Any = None, *generators: torch.Generator) -> Iterator[Any]:
    """Capture the block on a stream of its own."""
    graph = Graph()
    for generator in generators:
        graph.register_generator_state(generator)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        assert torch.cuda.is_current_stream_capturing()
        try:
            yield graph
        finally:
            graph.capture_end()
    assert not torch.cuda.is_current_stream_capturing()
    torch.cuda.current_stream().wait_stream(stream)


def test_a_capture_computes_nothing_and_a_replay_everything(x: Tensor) -> None:
    total = torch.zeros(3, device="cuda")
    with capturing() as graph:
        total += x.sum(0)
        product = total * 2
    assert total.tolist() == [0, 0, 0]
    assert product.isnan().all()
    graph.replay()
    assert total.tolist() == [3, 5, 7]
    assert product.tolist() == [6, 10, 14]
    x.fill_(1)
    graph.replay()
    assert product.tolist() == [10, 14, 18]


def test_forward_and_backward_graphs_have_the_bits_of_eager_ones_also_in_bfloat16(x: Tensor) -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).cuda()

    def outputs(net: nn.Module, inputs: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return net(inputs)

    net, eager = network(), network()
    pool = torch.cuda.graph_pool_handle()
    with capturing(pool) as forward:
        y = outputs(net, x)
    dy = torch.empty_like(y)
    with capturing(pool) as backward:  # autograd computes it in another thread
        gradients = torch.autograd.grad(y, list(net.parameters()), dy)
    assert all(gradient.isnan().all() for gradient in gradients)
    for step in range(3):
        x.copy_(torch.randn(2, 3))
        expected = outputs(eager, x)
        with torch.autocast("cuda", torch.float16):  # no matter: the graph has its casts
            forward.replay()
        assert torch.equal(y, expected), step
        dy.copy_(torch.randn(2, 2))
        backward.replay()
        for gradient, other in zip(gradients, torch.autograd.grad(expected, list(eager.parameters()), dy), strict=True):
            assert torch.equal(gradient, other)
        with torch.no_grad():
            for parameter in (*net.parameters(), *eager.parameters()):
                parameter += 0.1
    assert all(torch.equal(value, eager.state_dict()[name]) for name, value in net.state_dict().items())
    backward.replay()
    assert gradients[0].isnan().all(), "the memory of what the forward pass saved is used again"


def test_values_of_python_and_of_the_host_are_those_of_the_capture(x: Tensor) -> None:
    factor, number = 2.0, torch.tensor(3.0)
    with capturing() as graph:
        y = x * factor + number
    number.fill_(100)
    graph.replay()
    assert torch.equal(y, x * 2 + 3)


def test_an_address_is_that_of_the_capture(x: Tensor) -> None:
    old, buffer = x, nn.Parameter(x, requires_grad=False)
    with capturing() as graph:
        y = buffer + 1
    buffer.data = torch.zeros_like(x)
    graph.replay()
    assert torch.equal(y, old + 1), "not the new tensor"
    del old, x
    with capturing() as graph:
        y = buffer + 1
    buffer.data = torch.ones_like(buffer)
    with pytest.raises(RuntimeError, match="memory that was freed after its capture"):
        graph.replay()


def test_what_python_frees_lives_as_long_as_it_is_needed(x: Tensor) -> None:
    pool = torch.cuda.graph_pool_handle()
    with capturing(pool) as first:
        y = (x + 1) * 2  # x + 1 is freed
    freed = y * 1
    with capturing(pool) as second:
        z = y + 1
    del freed
    for graph in (first, second):
        graph.replay()
    assert torch.equal(z, (x + 1) * 2 + 1)
    del y
    with capturing(pool) as third:  # may take the memory of y
        torch.add(x, 1)
    first.replay()
    third.replay()
    second.replay()
    assert z.isnan().all()


def test_copies_from_and_to_page_locked_memory_are_made_in_a_replay(x: Tensor) -> None:
    source, target = torch.ones(2, 3).pin_memory(), torch.zeros(2, 3).pin_memory()
    with capturing() as graph:
        x.copy_(source, non_blocking=True)
        target.copy_(x * 2, non_blocking=True)
    torch.cuda.synchronize()
    assert target.tolist() == [[0] * 3] * 2
    source.fill_(4)
    graph.replay()
    assert target.max() > 1e38, "read too early"
    torch.cuda.synchronize()
    assert target.tolist() == [[8] * 3] * 2


def test_draws_are_those_of_the_generator_when_a_graph_is_replayed(x: Tensor) -> None:
    source = torch.Generator("cuda").manual_seed(1)
    with capturing(None, source) as graph:
        drawn = [torch.rand(3, generator=source, device="cuda") for _ in range(2)]
        usual = torch.rand(3, device="cuda")
        dropped = nn.functional.dropout(x)
    usual_state = torch.get_rng_state()
    for seed in (1, 2, 2):
        source.manual_seed(seed)
        torch.set_rng_state(usual_state)
        graph.replay()
        again = torch.Generator("cuda").manual_seed(seed)
        assert all(torch.equal(draw, torch.rand(3, generator=again, device="cuda")) for draw in drawn)
        torch.set_rng_state(usual_state)
        assert torch.equal(usual, torch.rand(3, device="cuda"))
        assert torch.equal(dropped, nn.functional.dropout(x))
    first = drawn[0].clone()
    graph.replay()
    assert not torch.equal(drawn[0], first)
    assert torch.equal(drawn[0], torch.rand(3, generator=again, device="cuda")), "it continues"


def test_a_capture_draws_nothing(x: Tensor) -> None:
    source = torch.Generator("cuda").manual_seed(1)
    states = source.get_state(), torch.get_rng_state()
    with capturing(None, source):
        torch.rand(3, generator=source, device="cuda")
        nn.functional.dropout(x)
    assert torch.equal(source.get_state(), states[0])
    assert torch.equal(torch.get_rng_state(), states[1])


REFUSED_BY_CUDA: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "if": lambda x: bool(x[0, 0]),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 1],
    "assignment to a mask": lambda x: x.index_put_((x > 1,), x[0, 0]),
    "indices on the host": lambda x: x[torch.tensor([0, 1])],
    "to the host": lambda x: x.cpu(),
    "to pageable memory": lambda x: torch.zeros(2, 3).copy_(x, non_blocking=True),
    "from the host": lambda x: x + torch.ones(3).cuda(),
    "from pageable memory": lambda x: x.copy_(torch.ones(3), non_blocking=True),
    "a number from the host": lambda x: torch.tensor(1.0, device="cuda"),
    "page-locked memory": lambda x: torch.ones(3).pin_memory(),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "synchronize a stream": lambda x: torch.cuda.current_stream().synchronize(),
    "query an event": lambda x: torch.cuda.current_stream().record_event().query(),
    "wait for an event": lambda x: torch.cuda.current_stream().record_event().synchronize(),
    "empty the cache": lambda x: torch.cuda.empty_cache(),
    "begin again": lambda x: Graph().capture_begin(),
}


@pytest.mark.parametrize("name", REFUSED_BY_CUDA)
def test_cuda_refuses(x: Tensor, name: str) -> None:
    before = x.clone()
    graph = Graph()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin(capture_error_mode="thread_local")
        x.mul_(2)
        with pytest.raises(torch.AcceleratorError, match="operation not permitted when stream is capturing"):
            REFUSED_BY_CUDA[name](x)
        with pytest.raises(torch.AcceleratorError, match="failed due to a previous error during capture"):
            graph.capture_end()
    assert torch.equal(x, before)
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    REFUSED_BY_CUDA[name](x) if name != "begin again" else None  # is fine now


REFUSED_BY_TORCH: dict[str, tuple[str, Callable[[torch.Generator], Any]]] = {
    "unregistered": ("not in capture mode", lambda source: torch.rand(3, generator=source, device="cuda")),
    "another seed": ("only if new seed is the same", lambda source: source.manual_seed(6)),
    "a new generator": ("only if new seed is the same", lambda source: torch.Generator("cuda").manual_seed(6)),
    "any seed": ("Cannot call", lambda source: source.seed()),
    "a state": ("Cannot call", lambda source: source.set_state(source.get_state())),
    "registration": ("during capturing", lambda source: Graph().register_generator_state(source)),
}


@pytest.mark.parametrize("name", REFUSED_BY_TORCH)
def test_torch_refuses(x: Tensor, name: str) -> None:
    text, refused = REFUSED_BY_TORCH[name]
    source = torch.Generator("cuda").manual_seed(5)
    with capturing() as graph:
        source.manual_seed(5)
        y = x + 1
        with pytest.raises(RuntimeError, match=text):
            refused(source)
    graph.replay()
    assert torch.equal(y, x + 1)


def test_streams_that_are_not_captured_are_refused(x: Tensor) -> None:
    with pytest.raises(RuntimeError, match="non-default stream"):
        Graph().capture_begin()
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    for waits, error in (
        (lambda: side.wait_stream(other), "dependency created on uncaptured work in another stream"),
        (lambda: torch.cuda.default_stream().wait_stream(side), "would make the legacy stream depend on"),
    ):
        graph = Graph()
        with torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="thread_local")
            with pytest.raises(torch.AcceleratorError, match=error):
                waits()
            with pytest.raises(torch.AcceleratorError, match="previous error"):
                graph.capture_end()
    with capturing() as graph:  # a fork and a join
        y = x + 1
        fork = torch.cuda.current_stream().record_event()
        with torch.cuda.stream(other):
            other.wait_event(fork)
            z = y * 2
        torch.cuda.current_stream().wait_stream(other)
        z += 1
    graph.replay()
    assert torch.equal(z, (x + 1) * 2 + 1)


def test_gradients_that_eager_passes_have_accumulated_on_the_default_stream_are_refused(x: Tensor) -> None:
    """DistributedDataParallel keeps the nodes that accumulate gradients, and they keep the stream they were made on."""
    net = nn.Linear(3, 2).cuda()
    kept: Any = [parameter.view_as(parameter).grad_fn for parameter in net.parameters()]
    with capturing():
        y = net(x)
        with pytest.raises(RuntimeError, match="stale reference to the default stream"):
            torch.autograd.grad(y, list(net.parameters()), y)
    del kept, y
    with capturing() as graph:
        gradients = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    graph.replay()
    assert gradients[1].tolist() == [2, 2]


def test_launches_are_counted_and_a_graph_is_one(x: Tensor) -> None:
    launches = torch.ops.pretended_gpu.num_launches
    before = launches()
    (x.view(3, 2).t() + 1).add_(torch.empty(2, 3, device="cuda")).zero_()
    assert launches() - before == 3
    with capturing() as graph:
        _ = (x.view(6) + 1).relu()
    before = launches()
    graph.replay()
    assert launches() - before == 1
    assert graph.num_calls() == 2


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")  # it keeps its nodes
def test_torchs_own_graphed_callables_train_like_eager_ones(x: Tensor) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).cuda()
    eager = copy.deepcopy(net)
    graphed: Any = torch.cuda.make_graphed_callables(net, (torch.zeros_like(x),))
    for step in range(3):
        for network, called in ((net, graphed), (eager, eager)):
            called(x + step).square().sum().backward()
            with torch.no_grad():
                for parameter in network.parameters():
                    assert parameter.grad is not None
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
        for one, other in zip(net.parameters(), eager.parameters(), strict=True):
            assert torch.equal(one, other)


def test_memory_that_runs_out_in_a_capture_is_given_back(x: Tensor) -> None:
    before = torch.cuda.memory_allocated()
    with capturing() as graph, pytest.raises(torch.cuda.OutOfMemoryError):
        torch.zeros(torch.cuda.mem_get_info()[1], device="cuda")
    del graph
    assert torch.cuda.memory_allocated() == before
