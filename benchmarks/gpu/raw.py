"""A step of the same network without Lockstep: `python -m benchmarks.gpu.raw on|off BATCH WIDTH FILE`.

It separates the host time of a step from the GPU time, and measures cuDNN's search for algorithms, on and off.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from lockstep.config import build, compose, validation

NUM_FIRST, NUM_STEPS = 3, 40


def seconds(work: Callable[[], None], count: int = 1) -> float:
    """Seconds of `work`, on average of `count`, with an idle GPU before and after."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(count):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / count


class Loop:
    """Forward, backward and update for one batch, as a person would write it."""

    def __init__(self, batch_size: int, width: int) -> None:
        layout = torch.channels_last
        model = validation.checked(compose.composed([f"model.width={width}"])).model
        net: nn.Module = build.build(model, in_channels=1, num_classes=10)
        self._net = net.cuda().to(memory_format=layout)  # pyright: ignore[reportCallIssue]
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=0.1, momentum=0.9, nesterov=True, fused=True)
        self._images = torch.randn(batch_size, 1, 28, 28, device="cuda").contiguous(memory_format=layout)
        self._targets = torch.randint(0, 10, (batch_size,), device="cuda")

    def step(self) -> None:
        """One step."""
        with torch.autocast("cuda", torch.bfloat16):
            outputs = self._net(self._images)
        nn.functional.cross_entropy(outputs.float(), self._targets).backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)

    def graph(self) -> torch.cuda.CUDAGraph:
        """Capture the same step as a CUDA graph."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph


def main() -> None:
    """Write the seconds of the first steps, of a later one, and of one without its host."""
    search, batch_size, width, path = sys.argv[1:]
    torch.backends.cudnn.benchmark = search == "on"
    loop = Loop(int(batch_size), int(width))
    found = {"first_s": NUM_FIRST * seconds(loop.step, NUM_FIRST), "step_s": seconds(loop.step, NUM_STEPS)}
    Path(path).write_text(json.dumps(found))  # a graph can fail
    Path(path).write_text(json.dumps(found | {"graph_s": seconds(loop.graph().replay, NUM_STEPS)}))


if __name__ == "__main__":
    main()
