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
def capturing(pool: Any = None) -> Iterator[Any]:
    """Capture the block on a stream of its own."""
    graph = Graph()
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
