"""Callbacks of measured trainings: steps by the clock and by torch's profiler, and torch's own batch norm."""

import json
import re
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]
from torch.profiler import ProfilerActivity, profile, schedule
from typing_extensions import override

from lockstep.distributed import batch_norm

WARM_UP, TIMED, PROFILER_WARM_UP, PROFILED = 20, 40, 5, 20  # steps
NUM_STEPS = WARM_UP + TIMED + PROFILER_WARM_UP + PROFILED + 5
# The first pattern in a kernel's name gives the description of the kernel.
KINDS = (
    ("wgrad", "convolutions, gradients of the weights"),
    ("dgrad", "convolutions, gradients of their inputs"),
    ("batch_?norm|bn_|^_(statistics|merge|normalize|gradient_sums|input_gradient)$", "batch norm"),
    ("nchwtonhwc|nhwctonchw|transpose|permute", "change of the memory layout"),
    ("conv|fprop|implicit|winograd", "convolutions, forward"),
    ("multi_tensor|fused_?sgd|fused_?adam", "update of the weights"),
    ("memcpy|copy", "copies"),
    ("memset|fill", "filling with zeros"),
    ("softmax|nll|cross_entropy", "loss"),
    ("gemm|xmma|cutlass|cublas|addmm|::mm", "matrix products"),
    ("reduce|sum", "sums"),
    ("index|gather|scatter", "gathering of images"),
    ("elementwise|add|mul|relu|threshold|div|sub", "arithmetic element by element"),
)


class Profiled(L.Callback):
    """Writes to `path`: seconds of a step by the clock, and its costs on the GPU and on the host.

    torch reports graph breaks, recompilations and each place where a step waits for the GPU.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._started = self._step_s = 0.0
        self._profiler = profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
            schedule=schedule(wait=0, warmup=PROFILER_WARM_UP, active=PROFILED, repeat=1),
        )
        torch._logging.set_logs(graph_breaks=True, recompiles=True)  # pyright: ignore[reportPrivateImportUsage]

    @override
    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx in (WARM_UP, WARM_UP + TIMED):
            torch.cuda.synchronize()
            used, self._started = time.perf_counter() - self._started, time.perf_counter()
            if batch_idx == WARM_UP + TIMED:
                self._step_s = used / TIMED
                torch.cuda.set_sync_debug_mode("warn")
                self._profiler.start()

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        last = WARM_UP + TIMED + PROFILER_WARM_UP + PROFILED - 1
        if batch_idx == last:
            torch.cuda.set_sync_debug_mode("default")
        if batch_idx in (last - PROFILED, last):  # the host is ahead: else kernels of other steps are counted
            torch.cuda.synchronize()
        if WARM_UP + TIMED <= batch_idx <= last:
            self._profiler.step()
        if batch_idx == last:
            self._profiler.stop()
            self._path.write_text(json.dumps({"step_s": self._step_s, **costs_of(self._profiler, PROFILED)}))


class TorchNorms(L.Callback):
    """Has torch's kernels compute the batch norms, in place of Triton's."""

    def __init__(self) -> None:
        assert "_kernels" in batch_norm.__dict__
        batch_norm.__dict__["_kernels"] = lambda x: None


def costs_of(profiler: profile, num_steps: int) -> dict[str, Any]:
    """Seconds and calls of a step: of each kind of kernel, and of the operators of the host that cost most."""
    averages = profiler.key_averages()
    events = [event for event in averages if not event.is_user_annotation]
    kernels = [event for event in events if event.device_type == DeviceType.CUDA]
    kinds: dict[str, dict[str, Any]] = {}
    for event in sorted(kernels, key=lambda event: -event.self_device_time_total):
        kind = in_words(event.key)
        cost = kinds.setdefault(kind, {"kind": kind, "seconds": 0.0, "calls": 0.0, "name": event.key[:60]})
        cost["seconds"] += 1e-6 * event.self_device_time_total / num_steps
        cost["calls"] += event.count / num_steps
    costliest = sorted(events, key=lambda event: -event.self_cpu_time_total)[:6]
    host = [f"{event.key[:50]} {1e-3 * event.self_cpu_time_total / num_steps:.2f} ms" for event in costliest]
    return {
        "total_s": sum(cost["seconds"] for cost in kinds.values()),
        "calls": sum(cost["calls"] for cost in kinds.values()),
        "kinds": sorted(kinds.values(), key=lambda cost: -cost["seconds"]),
        "host": host,
        "table": averages.table(sort_by="self_device_time_total", row_limit=25),
    }


def in_words(name: str) -> str:
    """Name the work of a kernel; the beginning of its name where it is unknown."""
    return next((words for pattern, words in KINDS if re.search(pattern, name, re.IGNORECASE)), name[:60])
