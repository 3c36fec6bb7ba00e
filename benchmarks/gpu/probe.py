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
from lockstep.config import build, compose, validation

NUM_FIRST, NUM_STEPS, NUM_PROFILED = 3, 30, 5


class Variant(NamedTuple):
    """Kind of a step, and predictions for its first 3 steps, an eager step and its graph."""

    predicted: tuple[str, str, str]
    image_shape: tuple[int, int, int] = (1, 28, 28)
    batch_size: int = 512
    dtype: torch.dtype = torch.bfloat16
    search: int = 0  # most plans that cuDNN tries
    is_compiled: bool = False
    is_ours: bool = False  # the network of Lockstep, with its batch norm


VARIANTS = {
    "bfloat16": Variant(("1 to 2 s", "8 to 12 ms", "7.7 to 8.1 ms")),
    "cuDNN tries 4 plans": Variant(("2 to 4 s", "8 to 12 ms", "at most 5 % less"), search=4),
    "float16, cuDNN's batch norm": Variant(("", "", "7.0 ms"), dtype=torch.float16),
    "stem of 8 channels": Variant(("", "", "0 to 0.3 ms less"), image_shape=(8, 28, 28)),
    "1,024 images": Variant(("", "", "0.6 ms less than twice"), batch_size=1024),
    "Lockstep's network": Variant(("", "", "5.5 to 5.8 ms"), is_ours=True),
    "Lockstep's network, 3x32x32": Variant(("", "", "6.9 to 7.1 ms"), image_shape=(3, 32, 32), is_ours=True),
    "torch.compile": Variant(("", "", "6.2 to 8.2 ms"), is_compiled=True),
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
    x, ones = torch.randn(4, 64, 8, 8, device="cuda"), torch.ones(64, device="cuda")
    x = x.contiguous(memory_format=torch.channels_last)
    for dtype, predicted in ((torch.bfloat16, "Native"), (torch.float16, "Cudnn")):
        chosen = torch._C._select_batch_norm_backend(x.to(dtype), ones, ones, ones, ones, True, 1e-5)  # pyright: ignore
        bench.tell(f"batch norm of torch, {dtype}", str(chosen).rpartition(".")[2], predicted=predicted)


def _variant(bench: Bench, name: str, variant: Variant) -> None:
    first, eager, graphed = (f"{name}: {what}" for what in (f"first {NUM_FIRST} steps", "eager step", "its graph"))
    cudnn = torch.backends.cudnn
    cudnn.benchmark, cudnn.benchmark_limit = variant.search > 0, variant.search
    step = _step(variant, bench.is_rehearsal)
    bench.figure(first, [NUM_FIRST * seconds(step, NUM_FIRST)], "{:.2f} s", predicted=variant.predicted[0])
    count = 2 if bench.is_rehearsal else NUM_STEPS
    times = [1e3 * seconds(step, count) for _ in range(3)]
    bench.figure(eager, times, "{:.2f} ms", predicted=variant.predicted[1])
    graph = _graph(step)
    times = [1e3 * seconds(graph.replay, count) for _ in range(3)]
    bench.figure(graphed, times, "{:.2f} ms", predicted=variant.predicted[2])
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
    size, num_channels = (16, 4) if is_rehearsal else (variant.batch_size, 64)
    net = _ours(channels, num_channels) if variant.is_ours else resnet18(channels, num_channels)
    net = net.cuda().to(memory_format=layout)  # pyright: ignore[reportCallIssue]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True, fused=True)
    images = torch.randn(size, channels, height, width, device="cuda").contiguous(memory_format=layout)
    targets = torch.randint(0, 10, (size,), device="cuda")
    called = torch.compile(net, dynamic=False) if variant.is_compiled else net

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", variant.dtype):
            outputs = called(images)
        F.cross_entropy(outputs.float(), targets, label_smoothing=0.1).backward()
        optimizer.step()

    return step


def _ours(in_channels: int, width: int) -> nn.Module:
    model = validation.checked(compose.composed([f"model.width={width}"])).model
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
