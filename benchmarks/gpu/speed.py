"""A step of Lockstep: by the clock and by the profiler, eager, replayed and compiled."""

import json
from functools import partial

from benchmarks.gpu.probe import flops_per_image, peak_flops_per_s
from benchmarks.gpu.profiled import NUM_STEPS
from benchmarks.gpu.stage import Bench

NUM_COSTS = 5
NOTES = {"graph breaks": "Graph break in", "recompilations": "Recompiling function", "waits": "called a synchronizing"}
MODES = {
    "eager": (("trainer.graph=false",), "10.5 to 12 ms"),
    "graph": (("trainer.graph=true",), "5.5 to 5.8 ms"),
    "compile": (("compile=true",), "22 ms, of which the GPU at most 8.4"),
}


def speed(bench: Bench) -> None:
    """One after the other: side by side they would slow each other."""
    for name, (settings, predicted) in MODES.items():
        bench.attempt(name, partial(_step, name=name, settings=settings, predicted=predicted))


def _step(bench: Bench, name: str, settings: tuple[str, ...], predicted: str) -> None:
    """Train with a callback that records times and kernels."""
    path, batch = bench.scratch / f"{name}.json", 16 if bench.is_rehearsal else 512
    common = [*bench.size, "data=synthetic", "data.image_size=28", f"data.train_size={NUM_STEPS * batch}"]
    common += [f"global_batch_size={batch}", "trainer.max_epochs=1", "trainer.limit_train_batches=null"]
    common += ["trainer.devices=1", "logger=none", "callbacks.pictures=null"]
    callback = f"+callbacks.profiled={{_target_:benchmarks.gpu.profiled.Profiled,path:{path}}}"
    _, done = bench.train(name, *common, *settings, callback)
    found = json.loads(path.read_text())
    print(found["table"], flush=True)
    step_s, total_s = found["step_s"], found["total_s"]
    bench.figure(f"{name}: step of {batch} images", [1e3 * step_s], "{:.2f} ms", predicted=predicted)
    mfu = 100 * flops_per_image(bench.width) * batch / step_s / peak_flops_per_s(bench)
    bench.figure(f"{name}: MFU of a step", [mfu], "{:.1f} %")
    what = f"{1e3 * total_s:.2f} ms of a step, {found['calls']:.0f} kernels"
    bench.check(f"{name}: the GPU computes", total_s > 0, what)
    for cost in found["kinds"][:NUM_COSTS]:
        numbers = f"{1e3 * cost['seconds']:.2f} ms, {cost['calls']:.0f} calls a step, most: {cost['name']}"
        bench.tell(f"{name}: {cost['kind']}", numbers)
    bench.tell(f"{name}: costs of the host", "; ".join(found["host"]))
    counts = (f"{what} {done.output.count(text)}" for what, text in NOTES.items())
    bench.tell(f"{name}: lines in logs.txt", ", ".join(counts))
