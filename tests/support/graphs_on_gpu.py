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


def test_capture_and_replay(x: Tensor) -> None:
    total = torch.zeros(3, device="cuda")
    with capturing() as graph:
        total += x.sum(0)
        product = total * 2
    assert total.tolist() == [0, 0, 0]
    assert product.isnan().all()
    graph.replay()
    assert product.tolist() == [6, 10, 14]
    x.fill_(1)
    graph.replay()
    assert product.tolist() == [10, 14, 18]


def test_address_of_capture() -> None:
    x = torch.arange(6.0, device="cuda").view(2, 3)  # pytest would keep a fixture
    buffer = nn.Parameter(x, requires_grad=False)
    with capturing() as graph:
        y = buffer + 1
    kept = buffer.data
    buffer.data = torch.zeros_like(x)
    graph.replay()
    assert torch.equal(y, x + 1), "not the new tensor"
    del kept, x
    with pytest.raises(RuntimeError, match="memory that was freed after its capture"):
        graph.replay()


def test_memory_of_pool(x: Tensor) -> None:
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


def test_page_locked_copies(x: Tensor) -> None:
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


def test_draws(x: Tensor) -> None:
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


REFUSED_BY_TORCH: dict[str, tuple[str, Callable[[torch.Generator], Any]]] = {
    "unregistered": ("not in capture mode", lambda source: torch.rand(3, generator=source, device="cuda")),
    "another seed": ("only if new seed is the same", lambda source: source.manual_seed(6)),
    "a new generator": ("only if new seed is the same", lambda source: torch.Generator("cuda").manual_seed(6)),
    "any seed": ("Cannot call", lambda source: source.seed()),
    "a state": ("Cannot call", lambda source: source.set_state(source.get_state())),
    "registration": ("during capturing", lambda source: Graph().register_generator_state(source)),
}


@pytest.mark.parametrize("name", REFUSED_BY_TORCH)
def test_torch_refuses(name: str) -> None:
    text, refused = REFUSED_BY_TORCH[name]
    source = torch.Generator("cuda").manual_seed(5)
    with capturing():
        source.manual_seed(5)
        with pytest.raises(RuntimeError, match=text):
            refused(source)


def test_other_streams(x: Tensor) -> None:
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


def test_gradients_of_default_stream_refused(x: Tensor) -> None:
    """DistributedDataParallel keeps the nodes that accumulate gradients, and they keep the stream they were made on."""
    net = nn.Linear(3, 2).cuda()
    kept: Any = [parameter.view_as(parameter).grad_fn for parameter in net.parameters()]
    with capturing():
        y = net(x)
        with pytest.raises(RuntimeError, match="stale reference to the default stream"):
            torch.autograd.grad(y, list(net.parameters()), y)
    del kept, y


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")  # it keeps its nodes
def test_graphed_callables_of_torch(x: Tensor) -> None:
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
