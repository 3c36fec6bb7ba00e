"""What it costs to write a checkpoint of the full ResNet-18 with momentum."""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.step import RESNET18
from benchmarks.table import Row, alternate, row
from lockstep.assembly.checkpoint_io import AtomicCheckpointIO
from lockstep.config import build
from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.config.saved import config_file


def checkpoint(num_rounds: int = 7) -> list[Row]:
    """Milliseconds: torch.save alone; the whole, synced to the disk and renamed."""
    tree = config_file.to_tree(validation.check_config(compose.compose_config([])))
    net: Any = build.build(validation.check_tree({**tree, "model": RESNET18}).model, in_channels=1, num_classes=10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state: dict[str, Any] = {"state_dict": net.state_dict(), "optimizer_states": [optimizer.state_dict()], "loops": {}}
    size_mib = sum(p.numel() * 8 for p in net.parameters()) / 2**20
    with tempfile.TemporaryDirectory() as folder:
        path, io = Path(folder), AtomicCheckpointIO(ThreadPoolExecutor(1), ())
        steps = iter(range(10**6))

        def plain() -> float:
            started = time.perf_counter()
            torch.save(state, path / "plain.ckpt")
            return time.perf_counter() - started

        def atomic() -> float:
            saved = {**state, "global_step": next(steps)}
            started = time.perf_counter()
            io.save_checkpoint(saved, path / "last.ckpt")
            return time.perf_counter() - started

        seconds = alternate(num_rounds, plain=plain, atomic=atomic)
    return [
        row(f"torch.save of {size_mib:.0f} MiB", [1e3 * v for v in seconds["plain"]], "{:.0f} ms"),
        row("last.ckpt, synced to the disk and renamed", [1e3 * v for v in seconds["atomic"]], "{:.0f} ms"),
    ]
