"""How much of the GPU a step uses, what the time goes to, and what batch norms cost."""

import json
from functools import partial

import torch

from benchmarks.gpu.exactness import two_processes
from benchmarks.gpu.profiled import NUM_STEPS
from benchmarks.gpu.raw import NUM_FIRST
from benchmarks.gpu.recipes import MFU, flops, peak_flops_per_s
from benchmarks.gpu.stage import Bench, command

NUM_COSTS = 5
DEVICE_BOUND = 0.9  # of the time of a step in which the GPU computes


def speed(bench: Bench) -> None:
    """One after the other: side by side they would slow each other."""
    bench.attempt("step", _step)
    for search in ("on", "off"):
        bench.attempt(f"raw loop, cuDNN's search {search}", partial(_raw, search=search))
    bench.attempt("batch norms", _norms)


def _step(bench: Bench) -> None:
    """Train with a callback that records times and kernels."""
    path, batch = bench.scratch / "profile.json", 16 if bench.is_rehearsal else 512
    settings = ["data=synthetic", "data.image_size=28", f"data.train_size={NUM_STEPS * batch}"]
    settings += [f"global_batch_size={batch}", "trainer.max_epochs=1", "trainer.devices=1", "logger=none"]
    settings += ["callbacks.pictures=null", *(word for word in bench.size if "limit_train" not in word)]
    callback = f"+callbacks.profiled={{_target_:benchmarks.gpu.profiled.Profiled,path:{path}}}"
    bench.train("profiled", *settings, callback)
    profile = json.loads(path.read_text())
    print(profile["table"], flush=True)
    step_s, total_s, peak = profile["step_s"], profile["total_s"], peak_flops_per_s(bench)
    bench.figure("large bfloat16 product", [peak / 1e12], "{:.1f} TFLOP/s")
    bench.figure(f"step of {batch} images", [1e3 * step_s], "{:.2f} ms")
    bench.figure("MFU of a step", [100 * flops(*bench.size) * batch / step_s / peak], "{:.1f} %", MFU)
    device = "GPU" if profile["has_kernels"] else "host"
    if profile["has_kernels"]:
        who = "the host waits for it" if total_s >= DEVICE_BOUND * step_s else "it waits for the host"
        bench.tell("the GPU computes", f"{100 * total_s / step_s:.0f} % of a step: {who}")
    else:
        bench.check("the profiler sees kernels", False, "none: the costs below are those of the host")
    for number, cost in enumerate(profile["costs"][:NUM_COSTS], 1):
        share = f"{100 * cost['seconds'] / total_s:.1f} % of the {device}'s time"
        bench.tell(f"cost {number}: {cost['kind']}", f"{share}, {cost['calls']:.0f} calls a step, most: {cost['name']}")


def _raw(bench: Bench, search: str) -> None:
    """Time the step of torch alone."""
    path, (batch, width) = bench.scratch / f"raw-{search}.json", (16, 4) if bench.is_rehearsal else (512, 64)
    words = ("-m", "benchmarks.gpu.raw", search, str(batch), str(width), str(path))
    done, name = command(f"raw {search}", *words), f"raw loop, cuDNN's search {search}"
    if path.exists():
        found = json.loads(path.read_text())
        bench.figure(f"{name}: first {NUM_FIRST} steps", [found["first_s"]], "{:.2f} s")
        bench.figure(f"{name}: step of {batch} images", [1e3 * found["step_s"]], "{:.2f} ms")
        if "graph_s" in found:
            bench.figure(f"{name}: the same by the GPU alone", [1e3 * found["graph_s"]], "{:.2f} ms")
    done.expect(0)


def _norms(bench: Bench) -> None:
    backend = "nccl" if torch.cuda.device_count() > 1 else "gloo"
    for name, times in two_processes(bench, "time", backend).items():
        what = f"batch norm, {name}, 2 processes by {backend}"
        if isinstance(times, str):
            bench.check(what, False, times[:200])
        else:
            bench.figure(what, times, "{:.2f} ms")
