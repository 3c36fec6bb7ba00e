"""Everything that needs a GPU, in one command: `python -m benchmarks.gpu [--root data]`.

Writes docs/gpu.md: seconds an epoch of Fashion-MNIST eager and compiled, MFU, CIFAR-10 to 94 %, exactness in float64,
our synchronized batch norm beside torch's, and what the time goes to.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.profiler import ProfilerActivity, profile

from benchmarks.processes import ROOT, TRAIN
from benchmarks.table import Row, conditions, markdown, row
from lockstep import config as configuration
from lockstep.measurement import flops_per_image
from lockstep.parallel.batch_norm import SyncBatchNorm
from tests.harness import SMALL, difference, train_all, write_run

PAGE = ROOT / "docs" / "gpu.md"


def trained(folder: Path, *overrides: str) -> dict[str, Any]:
    """Train in a process of its own; its summary, with the seconds of every epoch."""
    done = subprocess.run([*TRAIN, *overrides, f"hydra.run.dir={folder}"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(overrides)} ended with code {done.returncode}:\n{done.stderr}")
    summary = json.loads((folder / "summary.json").read_text())
    with (folder / "metrics.csv").open() as file:
        summary["epochs_s"] = [float(each["seconds"]) for each in csv.DictReader(file)]
    return summary


def fashion_mnist(root: str) -> list[Row]:
    """Full width, 10 epochs: eager, compiled, and as CUDA graphs."""
    rows = []
    for mode in ("false", "true", "reduce-overhead"):
        with tempfile.TemporaryDirectory() as folder:
            found = trained(
                Path(folder) / "run",
                "experiment=fashion_mnist",
                "trainer.devices=1",
                f"data.root={root}",
                f"compile={mode}",
            )
        what = f"Fashion-MNIST, full width, compile={mode}"
        rows.append(row(f"{what}: epoch after the first", found["epochs_s"][1:], "{:.2f} s", aim="<= 0.6 s"))
        rows.append(row(f"{what}: test accuracy", [found["test_accuracy"]], "{:.4f}", aim=">= 0.935"))
        share = _flops("model=resnet18", channels=1, size=28) * found["images_per_s"] / _peak()
        rows.append(row(f"{what}: MFU", [100 * share], "{:.1f} %"))
    return rows


def cifar10(root: str) -> list[Row]:
    """The recipe, to its end."""
    with tempfile.TemporaryDirectory() as folder:
        found = trained(Path(folder) / "run", "experiment=cifar10", "trainer.devices=1", f"data.root={root}")
        with (Path(folder) / "run" / "metrics.csv").open() as file:
            reached = [float(each["val/accuracy"]) >= 0.94 for each in csv.DictReader(file)]
    rows = [row("CIFAR-10: test accuracy", [found["test_accuracy"]], "{:.4f}", aim=">= 0.94")]
    rows.append(row("CIFAR-10: training", [found["training_s"]], "{:.1f} s"))
    if any(reached):
        seconds = sum(found["epochs_s"][: reached.index(True) + 1])
        rows.append(row("CIFAR-10: until 94 % of the validation set", [seconds], "{:.1f} s"))
    return rows


def exactness() -> list[Row]:
    """Largest difference of any number of a float64 training: one GPU against the CPU, several against one."""
    gpu = [override for override in SMALL if override != "strategy=cpu"]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        cpu, one = write_run(root / "cpu", SMALL), write_run(root / "one", [*gpu, "trainer.devices=1"])
        train_all([cpu], 1)
        train_all([one], 1)
        rows = [row("float64, 1 GPU against the CPU", [difference(cpu, one)], "{:.1e}", aim="<= 1e-12")]
        for count in range(2, min(torch.cuda.device_count(), 4) + 1):
            several = write_run(root / str(count), [*gpu, f"trainer.devices={count}"])
            train_all([several], count)
            rows.append(row(f"float64, {count} GPUs against 1", [difference(one, several)], "{:.1e}", aim="<= 1e-12"))
    return rows


def batch_norm() -> list[Row]:
    """Forward and backward of 256x64x32x32 on two processes: on two GPUs by NCCL, else on one by gloo."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_time_batch_norms, (folder,), nprocs=2)
        found = json.loads((Path(folder) / "times.json").read_text())
    return [row(f"batch norm, {name}", values, "{:.2f} ms") for name, values in found.items()]


def _time_batch_norms(rank: int, folder: str) -> None:
    has_two = torch.cuda.device_count() >= 2
    device = torch.device("cuda", rank if has_two else 0)
    torch.cuda.set_device(device)
    store = f"file://{folder}/store"
    dist.init_process_group("nccl" if has_two else "gloo", init_method=store, rank=rank, world_size=2)
    images = torch.randn(256, 64, 32, 32, device=device, requires_grad=True)
    gradient = torch.randn_like(images)
    found: dict[str, list[float]] = {}
    for name, layer in (("local", nn.BatchNorm2d(64)), ("ours", SyncBatchNorm(64)), ("torch's", nn.SyncBatchNorm(64))):
        layer.to(device)
        times = []
        for number in range(25):
            torch.cuda.synchronize()
            dist.barrier()
            started = time.perf_counter()
            torch.autograd.grad(layer(images), images, gradient)
            torch.cuda.synchronize()
            if number >= 5:
                times.append(1e3 * (time.perf_counter() - started))
        found[name] = times
    if rank == 0:
        (Path(folder) / "times.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def where_the_time_goes(count: int = 15) -> str:
    """The kernels that take most of 20 eager steps of the full ResNet-18, batch 512."""
    net = _network("model=resnet18", channels=1).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, fused=True)
    images = torch.randn(512, 1, 28, 28, device="cuda").contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (512,), device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(20):
            with torch.autocast("cuda", torch.bfloat16):
                logits = net(images)
            nn.functional.cross_entropy(logits.float(), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    return profiler.key_averages().table(sort_by="cuda_time_total", row_limit=count)


def _network(choice: str, *, channels: int) -> nn.Module:
    config = configuration.checked(configuration.composed([choice]))
    return configuration.build(config.model, in_channels=channels, num_classes=10)


def _flops(choice: str, *, channels: int, size: int) -> int:
    return flops_per_image(_network(choice, channels=channels), (channels, size, size))


def _peak(size: int = 8192) -> float:
    """FLOP/s of a large product in bfloat16."""
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        started = time.perf_counter()
        torch.mm(a, a)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return 2 * size**3 / statistics.median(times[5:])


def main() -> int:
    """Measure, print, write the page."""
    parser = argparse.ArgumentParser(description="Measure Lockstep on a GPU and write docs/gpu.md.")
    parser.add_argument("--root", default="data", help="folder of Fashion-MNIST and CIFAR-10; fetched where missing")
    root = str(Path(parser.parse_args().root).resolve())
    if not torch.cuda.is_available():
        print("no GPU here: nothing to measure", file=sys.stderr)
        return 2
    parts = [f"# On a GPU\n\n`python -m benchmarks.gpu`: {conditions()}.\n"]
    for title, rows in (
        ("Exactness", exactness()),
        ("Synchronized batch norm", batch_norm()),
        ("Fashion-MNIST", fashion_mnist(root)),
        ("CIFAR-10", cifar10(root)),
    ):
        parts.append(markdown(title, rows))
        print(parts[-1], flush=True)
    parts.append(f"## Where the time goes\n\n```\n{where_the_time_goes()}\n```\n")
    PAGE.write_text("\n".join(parts))
    print(f"written to {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
