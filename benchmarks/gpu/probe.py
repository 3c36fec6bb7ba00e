"""What a step of ResNet-18 costs the GPU without Lockstep, and what its analysis predicted (an H100, 2026-11-25)."""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.peer import resnet18
from benchmarks.gpu.profiled import costs_of
from benchmarks.gpu.stage import Bench
from lockstep.config import build
from lockstep.config.checks import validation
from lockstep.config.composing import compose

NUM_STEPS, NUM_PROFILED = 30, 5


class Variant(NamedTuple):
    """Kind of a step, and the prediction for its graph."""

    predicted: str
    image_shape: tuple[int, int, int] = (1, 28, 28)
    is_compiled: bool = False
    is_ours: bool = False  # the network of Lockstep, with its batch norm


VARIANTS = {
    "raw": Variant("7.7 to 8.1 ms"),
    "Lockstep's network": Variant("5.5 to 5.8 ms", is_ours=True),
    "Lockstep's network, 3x32x32": Variant("6.9 to 7.1 ms", (3, 32, 32), is_ours=True),
    "torch.compile": Variant("6.2 to 8.2 ms", is_compiled=True),
}


def probe(bench: Bench) -> None:
    """Measure the GPU, then each variant: the most important first."""
    bench.attempt("copy and product", _device)
    for name, variant in VARIANTS.items():
        bench.attempt(name, partial(_variant, name=name, variant=variant))
        torch.cuda.empty_cache()


def _device(bench: Bench) -> None:
    source = torch.empty(1 << (10 if bench.is_rehearsal else 30), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    speed = 2 * len(source) / seconds(lambda: target.copy_(source), 20)
    bench.figure("copy, read and written", [speed / 1e12], "{:.2f} TB/s", predicted="3.0 TB/s")
    bench.figure("large product", [peak_flops_per_s(bench) / 1e12], "{:.0f} TFLOP/s", predicted="780 to 798 TFLOP/s")


def _variant(bench: Bench, name: str, variant: Variant) -> None:
    step = _step(variant, bench.is_rehearsal)
    for _ in range(3):
        step()
    count = 2 if bench.is_rehearsal else NUM_STEPS
    bench.figure(f"{name}: eager step", [1e3 * seconds(step, count) for _ in range(3)], "{:.2f} ms")
    graph = _graph(step)
    times = [1e3 * seconds(graph.replay, count) for _ in range(3)]
    bench.figure(f"{name}: its graph", times, "{:.2f} ms", predicted=variant.predicted)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(NUM_PROFILED):
            graph.replay()
        torch.cuda.synchronize()
    costs = costs_of(profiler, NUM_PROFILED)
    kinds = "; ".join(f"{cost['kind']} {1e3 * cost['seconds']:.2f} ms" for cost in costs["kinds"][:6])
    bench.tell(f"{name}: {costs['calls']:.0f} kernels", kinds)
    print(costs["table"], flush=True)


def _step(variant: Variant, is_rehearsal: bool) -> Callable[[], None]:
    """Return forward, backward and update of one batch, as a person would write them."""
    (channels, height, width), layout = variant.image_shape, torch.channels_last
    size, num_channels = (16, 4) if is_rehearsal else (512, 64)
    net = _ours(channels, num_channels) if variant.is_ours else resnet18(channels, num_channels)
    net = net.cuda().to(memory_format=layout)  # pyright: ignore[reportCallIssue]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True, fused=True)
    images = torch.randn(size, channels, height, width, device="cuda").contiguous(memory_format=layout)
    targets = torch.randint(0, 10, (size,), device="cuda")
    called = torch.compile(net, dynamic=False) if variant.is_compiled else net

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            outputs = called(images)
        F.cross_entropy(outputs.float(), targets, label_smoothing=0.1).backward()
        optimizer.step()

    return step


def _ours(in_channels: int, width: int) -> nn.Module:
    model = validation.check_config(compose.compose_config([f"model.width={width}"])).model
    return build.build(model, in_channels=in_channels, num_classes=10)


def _graph(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def seconds(work: Callable[[], object], count: int = 1) -> float:
    """Seconds of `work`, on average of `count`, with an idle GPU before and after."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(count):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / count


def flops_per_image(width: int = 64) -> int:
    """Floating-point operations of ResNet-18 for a 28x28 image, forward and backward; an addition counts too.

    In evaluation mode, because our dropout needs the shard of a batch; convolutions and products are the same.
    """
    images = torch.zeros(2, 1, 28, 28)
    with FlopCounterMode(display=False) as counter:
        _ours(1, width).eval()(images).sum().backward()
    return counter.get_total_flops() // len(images)


def peak_flops_per_s(bench: Bench) -> float:
    """FLOP/s of a product of large bfloat16 matrices, the best of 20."""
    size = 512 if bench.is_rehearsal else 8192
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    return 2 * size**3 / min(seconds(lambda: torch.mm(a, a)) for _ in range(20))
