"""The recipes at full width: Fashion-MNIST eager and compiled, and CIFAR-10; and what an MFU of 100 % would be."""

import gzip
import itertools
import shutil
import tarfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.stage import Aim, Bench
from lockstep.config import build, compose, validation

CIFAR10 = "cifar10-images.tar"  # or its parts, cifar10-images.tar.part-aa and so on
ACCURACY, SECONDS = Aim(">=", 0.94), Aim("<=", 15.0)  # of CIFAR-10
MFU = Aim(">=", 33.0)  # percent
EAGER = {"seconds": Aim("<=", 0.6), "accuracy": Aim(">=", 0.945), "MFU": MFU}


def fashion_mnist(bench: Bench) -> None:
    """Train ten epochs of Fashion-MNIST without torch.compile."""
    _fashion_mnist(bench, "eager", (), EAGER)


def compiled(bench: Bench) -> None:
    """Three epochs of each mode, one after the other: side by side they would slow each other."""
    for mode in ("true", "reduce-overhead"):
        name = f"compile={mode}"
        settings = (name, "trainer.max_epochs=3")
        bench.attempt(name, partial(_fashion_mnist, name=name, overrides=settings, aims={}))


def _fashion_mnist(bench: Bench, name: str, overrides: Sequence[str], aims: Mapping[str, Aim]) -> None:
    """Train by the recipe and `overrides`."""
    settings = (f"data.root={_unzipped(bench)}", "data.download=false", "trainer.devices=1", *bench.size, *overrides)
    folder, _ = bench.train(name, "experiment=fashion_mnist", *settings)
    summary, rows = folder.read_summary(), folder.read_metrics()
    seconds, speed = ([float(row[key]) for row in rows] for key in ("seconds", "images_per_s"))
    bench.figure(f"{name}: first epoch", seconds[:1], "{:.2f} s")
    bench.figure(f"{name}: epoch after the first", seconds[1:], "{:.2f} s", aims.get("seconds"))
    bench.figure(f"{name}: images/s", speed[1:], "{:,.0f}")
    bench.figure(f"{name}: training", [summary["training_s"]], "{:.1f} s")
    bench.figure(f"{name}: test accuracy", [summary["test_accuracy"]], "{:.4f}", aims.get("accuracy"))
    shard = 100 * flops(*bench.size) / peak_flops_per_s(bench)
    bench.figure(f"{name}: MFU", [shard * images_per_s for images_per_s in speed[1:]], "{:.1f} %", aims.get("MFU"))


def _unzipped(bench: Bench) -> Path:
    """Return the folder for data.root; where the idx files are zipped, one with copies that are not."""
    zipped = sorted((bench.data / "FashionMNIST" / "raw").glob("*-ubyte.gz"))
    if not zipped:
        return bench.data
    folder = bench.scratch / "data" / "FashionMNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    for path in zipped:
        with gzip.open(path) as source, open(folder / path.stem, "wb") as target:
            shutil.copyfileobj(source, target)
    return bench.scratch / "data"


def cifar10(bench: Bench) -> None:
    """Join the parts of the archive, unpack it, and train 30 epochs from the JPEGs."""
    archive, images = bench.scratch / CIFAR10, bench.scratch / "images"
    with open(archive, "wb") as target:
        for part in sorted(bench.data.glob(f"{CIFAR10}.part-*")) or [bench.data / CIFAR10]:
            target.write(part.read_bytes())
    with tarfile.open(archive) as tar:
        tar.extractall(images, filter="data")
    settings = ("data=image_folder", f"data.root={images}", f"data.cache={bench.scratch / 'cache'}")
    folder, _ = bench.train("cifar10", "experiment=cifar10", *settings, "trainer.devices=1", *bench.size)
    summary, rows = folder.read_summary(), folder.read_metrics()
    seconds = [float(row["seconds"]) for row in rows]
    bench.figure("test accuracy", [summary["test_accuracy"]], "{:.4f}", ACCURACY)
    bench.figure("training", [summary["training_s"]], "{:.1f} s")
    bench.figure("epoch after the first", seconds[1:], "{:.2f} s")
    reached = [float(row["val/accuracy"]) >= ACCURACY.bound for row in rows]
    if any(reached):
        until = list(itertools.accumulate(seconds))[reached.index(True)]
        bench.figure("until 94 % of the validation set", [until], "{:.1f} s", SECONDS)
    else:
        bench.check("94 % of the validation set", False, f"at most {summary['best']:.4f}")


def flops(*overrides: str) -> int:
    """Floating-point operations of the ResNet-18 for a 28x28 image, forward and backward."""
    model = validation.checked(compose.composed([o for o in overrides if o.startswith("model.")])).model
    return flops_per_image(build.build(model, in_channels=1, num_classes=10), (1, 28, 28))


def flops_per_image(net: nn.Module, image_shape: tuple[int, int, int]) -> int:
    """Floating-point operations of one forward and backward pass, counted on the CPU; an addition counts too.

    In evaluation mode, because our dropout needs the shard of a batch; convolutions and products are the same.
    """
    images = torch.zeros(2, *image_shape)
    with FlopCounterMode(display=False) as counter:
        net.eval()(images).sum().backward()
    return counter.get_total_flops() // len(images)


def peak_flops_per_s(bench: Bench) -> float:
    """FLOP/s of a product of large bfloat16 matrices, the best of 20."""
    size = 512 if bench.is_rehearsal else 8192
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        started = time.perf_counter()
        torch.mm(a, a)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return 2 * size**3 / min(times)
