"""Where the first epoch of the default training goes on a CPU: time inside operators, by torch's profiler.

One thread and shares of one run: figures of several threads are those of the other work on the machine.
"""

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import lightning as L
from torch.profiler import ProfilerActivity, profile

from benchmarks import ROOT
from benchmarks.parts import ENVIRON
from benchmarks.processes import TRAIN
from benchmarks.table import Row, alternate, row

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
PARTS = {
    "convolutions, forward": ("aten::mkldnn_convolution",),
    "convolutions, backward": ("aten::convolution_backward",),
    "copies, nearly all of weight gradients of convolutions to channels_last": ("aten::copy_",),
    "batch norm": ("aten::native_batch_norm", "aten::native_batch_norm_backward"),
    "ReLU, additions": ("aten::clamp_min", "aten::threshold_backward", "aten::add", "aten::add_"),
    "update": ("aten::_fused_sgd_", "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"),
}
OTHERS, OUTSIDE = "other operators", "outside operators, the profiler's own time included"


class Profile(L.Callback):
    """Writes seconds of the parts of the first epoch, and of the kernel in the second, which is not profiled."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._profile = profile(activities=[ProfilerActivity.CPU])
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._begin = self._begin_kernel = 0.0

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the profiler in the first epoch."""
        if not trainer.current_epoch:
            self._profile.start()
        self._begin, self._begin_kernel = time.perf_counter(), os.times().system

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Add up the operators of the first epoch; write all after the second."""
        if trainer.current_epoch:
            seconds = time.perf_counter() - self._begin
            self._seconds["kernel share"] = (os.times().system - self._begin_kernel) / seconds
            self._path.write_text(json.dumps(self._seconds))
            return
        self._seconds["epoch"] = self._seconds[OUTSIDE] = time.perf_counter() - self._begin
        self._profile.stop()
        part_of = {name: part for part, names in PARTS.items() for name in names}
        for event in self._profile.key_averages():
            seconds = event.self_cpu_time_total / 1e6
            self._seconds[part_of.get(event.key, OTHERS)] += seconds
            self._seconds[OUTSIDE] -= seconds


def _training(**variables: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seconds.json"
        callback = f"+callbacks.profile={{_target_: benchmarks.epoch.Profile, path: {path}}}"
        words = ["trainer.max_epochs=2", "trainer.precision=float32", "logger=none", f"hydra.run.dir={folder}/run"]
        environ = {**ENVIRON, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
        subprocess.run([*TRAIN, *words, callback], cwd=ROOT, env=environ, capture_output=True, check=True)
        return json.loads(path.read_text())


def first_epoch(num_rounds: int = 5) -> list[Row]:
    """Milliseconds and shares of the parts, with the instructions of this CPU and with those of AVX2."""
    notes = {"AVX2": f", emulated by {', '.join(f'{key}={value}' for key, value in AVX2.items())}"}
    kinds: dict[str, Any] = {"this CPU": _training, "AVX2": lambda: _training(**AVX2)}
    measured: dict[str, Any] = alternate(num_rounds, **kinds)
    rows = []
    for kind, runs in measured.items():
        seconds = [one["epoch"] for one in runs]
        rows.append(row(f"{kind}{notes.get(kind, '')}: first epoch, profiled", seconds, "{:.2f} s"))
        for part in (*PARTS, OTHERS, OUTSIDE):
            share = row(f"{kind}: {part}", [100 * one[part] / one["epoch"] for one in runs], "{:.1f} %")
            median = statistics.median(1e3 * one[part] for one in runs)
            rows.append(share._replace(median=f"{median:.0f} ms, {share.median}"))
        kernel = [100 * one["kernel share"] for one in runs]
        rows.append(row(f"{kind}: the kernel (page faults) in the second epoch, not profiled", kernel, "{:.1f} %"))
    return rows
