"""Whole trainings: Fashion-MNIST in three modes next to a raw loop, and recipes with three seeds each."""

import json
import statistics
import tarfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.probe import flops_per_image, peak_flops_per_s
from benchmarks.gpu.stage import Aim, Bench, command

MFU = Aim(">=", 33.0)  # percent
TORCH_NORMS = "+callbacks.norms={_target_:benchmarks.gpu.profiled.TorchNorms}"
# overrides; prediction and aim for an epoch after the first
MODES = {
    "eager": (("trainer.max_epochs=3", "trainer.graph=false", TORCH_NORMS), "1.5 s", None),
    "graph": (("trainer.max_epochs=3", TORCH_NORMS), "0.87 s", None),
    "recipe": ((), "0.63 s", Aim("<=", 0.6)),
}
AT_ONCE = 4  # trainings that share the GPU, where their time does not matter
SEEDS = (0, 1, 2)
AUGMENTED = ("augment.flip=alternating", "augment.crop_padding=2")
HE, TORCH = "model.init=kaiming", "model.init=torch"
PLAIN = ("augment.flip=false", "augment.crop_padding=0", "callbacks=default", "data.val_fraction=0.1", HE)
# each in full, whatever conf/experiment has by now
FASHION_MNIST = {
    "plain": PLAIN,
    "flip, crop": (*PLAIN, *AUGMENTED),
    "flip, crop, averaged": (*PLAIN, *AUGMENTED, "callbacks=ema"),
    "flip, crop, averaged, lr 0.2": (*PLAIN, *AUGMENTED, "callbacks=ema", "optimizer.lr=0.2"),
    "torch's weights": (*PLAIN, TORCH),
    "flip, crop, averaged, torch's weights": (*PLAIN, *AUGMENTED, "callbacks=ema", TORCH),
}
CUTOUT_8 = (
    *("trainer.max_epochs=30", "optimizer.lr=0.4"),
    *("scheduler.warmup_fraction=0.23", "scheduler.initial_fraction=0"),
    *("augment.crop_border=zeros", "augment.cutout=8", "augment.cutout_inside=false"),
)
CIFAR10 = {
    "cutout 8": (*CUTOUT_8, HE),
    "cutout 8, torch's weights": (*CUTOUT_8, TORCH),
    "reflected, cutout 12 inside, torch's weights": (
        *("trainer.max_epochs=26", "optimizer.lr=0.2"),
        *("scheduler.warmup_fraction=0.2", "scheduler.initial_fraction=0.2"),
        *("augment.crop_border=reflect", "augment.cutout=12", "augment.cutout_inside=true"),
        TORCH,
    ),
}


def fashion_mnist(bench: Bench) -> None:
    """Eager, with graphs, the whole recipe with Lockstep's batch norm, a raw loop: alone, because they are timed."""
    found: dict[str, float] = {}
    for name in MODES:
        bench.attempt(name, partial(_timed, name=name, found=found))
    bench.attempt("raw loop", partial(_peer, found=found))


def _timed(bench: Bench, name: str, found: dict[str, float]) -> None:
    """Train in a mode; its epoch after the first goes to `found`."""
    settings, predicted, aim = MODES[name]
    data = (f"data.root={bench.data}", "data.download=false", "trainer.devices=1")
    folder, _ = bench.train(name, "experiment=fashion_mnist", *data, *settings, *bench.size)
    summary, rows = folder.read_summary(), folder.read_metrics()
    seconds, speed = ([float(row[key]) for row in rows] for key in ("seconds", "images_per_s"))
    found[name] = statistics.median(seconds[1:])
    bench.figure(f"{name}: first epoch", seconds[:1], "{:.2f} s", predicted="3 s")
    bench.figure(f"{name}: epoch after the first", seconds[1:], "{:.2f} s", aim, predicted=predicted)
    bench.figure(f"{name}: training of {len(rows)} epochs", [summary["training_s"]], "{:.1f} s")
    share = 100 * flops_per_image(bench.width) / peak_flops_per_s(bench)
    bench.figure(f"{name}: MFU", [share * images_per_s for images_per_s in speed[1:]], "{:.1f} %", aim and MFU)
    bench.tell(f"{name}: test accuracy", f"{summary['test_accuracy']:.4f}")


def _peer(bench: Bench, found: dict[str, float]) -> None:
    """Train three epochs by the raw loop, and compare the recipe with it."""
    seconds = _by_peer(bench, "fashion_mnist", bench.data, 2 if bench.is_rehearsal else 3)["seconds"]
    bench.figure("raw loop: first epoch", seconds[:1], "{:.2f} s")
    bench.figure("raw loop: epoch after the first", seconds[1:], "{:.2f} s", predicted="1.1 to 1.3 s")
    ratio = statistics.median(seconds[1:]) / found["recipe"]
    bench.figure("raw loop : recipe", [ratio], "{:.2f}", Aim(">=", 2.0), predicted="1.8 to 2")


def _by_peer(bench: Bench, name: str, data: Path, epochs: int) -> dict[str, Any]:
    path, count = bench.scratch / f"raw-{name}.json", 1200 if bench.is_rehearsal else 60000
    numbers = map(str, (epochs, bench.width, count))
    command(f"raw {name}", "-m", "benchmarks.gpu.peer", name, str(data), *numbers, str(path)).expect(0)
    return json.loads(path.read_text())


def recipes(bench: Bench) -> None:
    """Train each recipe of Fashion-MNIST, then the one of the best validation with more images: 2 % validate it."""
    compare = partial(_compare, bench, "experiment=fashion_mnist", f"data.root={bench.data}", "data.download=false")
    best = compare(recipes=FASHION_MNIST, at_once=AT_ONCE)
    bench.tell("best validation", best)
    more = {f"{best}, 2 % validation": (*FASHION_MNIST[best], "data.val_fraction=0.02")}
    compare(recipes=more, at_once=AT_ONCE, aim=Aim(">=", 0.945), predicted="0.945")


def cifar10(bench: Bench) -> None:
    """Train both recipes from the JPEGs, next to the public recipe in raw PyTorch on the same files."""
    images = bench.scratch / "images"
    archive = bench.data / "cifar10-images.tar"  # or .tar.xz
    with tarfile.open(next(bench.data.glob(f"{archive.name}*"), archive)) as tar:
        tar.extractall(images, filter="data")
    data = ("data=image_folder", f"data.root={images}", f"data.cache={bench.scratch / 'cache'}")

    def control(bench: Bench) -> None:
        found = _by_peer(bench, "cifar10", images, 1 if bench.is_rehearsal else 26)
        accuracies = f"test {found['test']:.4f}, flip test {found['flip']:.4f}"
        bench.tell("raw loop, public recipe, all 50,000 images", accuracies)

    bench.attempt("raw loop", control)
    best = _compare(
        bench, "experiment=cifar10", *data, recipes=CIFAR10, at_once=1, aim=Aim(">=", 0.94), predicted="0.905 to 0.92"
    )
    bench.tell("best validation", best)


def _compare(
    bench: Bench,
    *settings: str,
    recipes: Mapping[str, Sequence[str]],
    at_once: int,
    aim: Aim | None = None,
    predicted: str = "",
) -> str:
    """Train all recipes with all seeds, a seed of all recipes before the next. Returns that of the best validation."""
    settings = (*settings, "trainer.devices=1", "flip_test=true", "callbacks.pictures=null")
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in recipes}

    def train(bench: Bench, name: str, seed: int) -> None:
        folder, _ = bench.train(f"{name} {seed}", *settings, *recipes[name], f"seed={seed}", *bench.size)
        summary, last = folder.read_summary(), folder.read_metrics()[-1]
        values = float(last["val/accuracy"]), summary["test_accuracy"], summary["test_flip_accuracy"]
        found[name].append((*values, summary["training_s"]))
        bench.tell(f"{name}, seed {seed}", "val {:.4f}, test {:.4f}, flip test {:.4f}".format(*values))

    seeds = SEEDS[:1] if bench.is_rehearsal else SEEDS
    parts = [(f"{name}, seed {seed}", partial(train, name=name, seed=seed)) for seed in seeds for name in recipes]
    bench.together(*parts, at_once=at_once)
    for name in filter(found.__getitem__, recipes):
        validation, test, flip_test, training_s = zip(*found[name], strict=True)
        bench.figure(f"{name}: validation", validation, "{:.4f}")
        bench.figure(f"{name}: test", test, "{:.4f}")
        bench.figure(f"{name}: flip test", flip_test, "{:.4f}", aim, predicted=predicted)
        if at_once == 1:  # else they slow each other
            bench.figure(f"{name}: training", training_s, "{:.1f} s")
    return max(recipes, key=lambda name: statistics.mean([values[0] for values in found[name]] or [0.0]))
