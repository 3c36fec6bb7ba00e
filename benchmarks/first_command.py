"""Compare the first command of Lockstep, a plain Lightning script, and lightly-train.

    python -m benchmarks.first_command PYTHON CIFAR digits
    python -m benchmarks.first_command PYTHON CIFAR photographs

`PYTHON` is that of an environment with lightly-train. `CIFAR` is the folder of
`python -m benchmarks.animals`, whose package of weights must be installed. Each way is timed from
start to exit, with a seed for each round.

By an author of Lockstep, so mind what differs. All train in float32, validate after each epoch, and
keep the best one. On the digits they train a ResNet-18 for 10 epochs: Lockstep and the script have
the same network, lightly-train has torchvision's, for images of 32x32, and augments them. On the
photographs Lockstep and the script fine-tune an EfficientNet-Lite0 with ImageNet's weights for 5
epochs, with the same rates, frozen batch norms and a last layer of zeros, but the schedule of the
script is OneCycleLR's default. lightly-train 0.18 fails with this network of timm: its last layer
has other inputs. Lockstep and the script test, lightly-train is tested after the clock. Lockstep
also draws curves and pictures, and calibrates.
"""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from PIL import Image

from benchmarks import ENVIRON, ROOT, TRAIN, animals
from benchmarks.plain import digits_splits
from benchmarks.table import Row, alternate, mean_row, parser, publish, ratio_row

NUM_EPOCHS = {"digits": 10, "photographs": 5}
LIGHTLY = """
import sys
from pathlib import Path

import lightly_train

seed, num_epochs, verb = sys.argv[1:]
names = sorted(path.name for path in Path("digits/train").iterdir())

if __name__ == "__main__" and verb == "train":
    steps = 20
    data = {"train": "digits/train", "val": "digits/val", "classes": dict(enumerate(names))}
    lightly_train.train_image_classification(
        out="run", data=data, model="torchvision/resnet18", steps=steps * int(num_epochs),
        batch_size=64, seed=int(seed), transform_args={"image_size": (32, 32)}, num_workers=0,
        accelerator="cpu", devices=1, precision="32-true", overwrite=True,
        save_checkpoint_args={"save_every_num_steps": steps},
        logger_args={"val_every_num_steps": steps},
    )
elif __name__ == "__main__":
    network = lightly_train.load_model("run/exported_models/exported_best.pt")
    paths = list(Path("digits/test").glob("*/*"))
    hits = [names[int(network.predict(path)["labels"][0])] == path.parent.name for path in paths]
    Path("accuracy.txt").write_text(str(sum(hits) / len(hits)))
"""
LOCKSTEP = {
    "digits": (),
    "photographs": (
        "experiment=finetune",
        "data.root=photographs",
        "data.cache=cache",
        "data.image_size=128",
        "model=timm",
        "model.name=tf_efficientnet_lite0",
        "model.pretrained=weights.pth",
    ),
}


def write_digits(to: Path) -> None:
    """Write the images of all splits as PNGs, which lightly-train needs."""
    for split, part in digits_splits().items():
        for number, (pixels, label) in enumerate(zip(*part.tensors, strict=True)):
            path = to / split / str(int(label)) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((pixels[0] * 255).byte().numpy()).convert("RGB").save(path)


def write_photographs(cifar: Path, to: Path) -> None:
    """Write those of `benchmarks.animals`, of whose training images every tenth validates."""
    animals.photographs(cifar, to)
    for path in sorted(to.glob("train/*/*"))[::10]:
        target = to / "val" / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)


def _run(folder: Path, *command: str) -> float:
    """Return the seconds of a command."""
    started = time.perf_counter()
    environ = {**ENVIRON, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return time.perf_counter() - started


Result = tuple[float, float]  # seconds, and the accuracy of the test


def _lockstep(folder: Path, task: str, seeds: Iterator[int]) -> Result:
    seed = next(seeds)
    run = folder / "runs" / f"{task}-{seed}"
    words = [*LOCKSTEP[task], f"trainer.max_epochs={NUM_EPOCHS[task]}", "trainer.precision=float32"]
    seconds = _run(folder, *TRAIN, *words, f"seed={seed}", f"hydra.run.dir={run}")
    return seconds, json.loads((run / "summary.json").read_text())["test_accuracy"]


def _plain(folder: Path, task: str, seeds: Iterator[int]) -> Result:
    words = task, str(next(seeds)), str(NUM_EPOCHS[task])
    seconds = _run(folder, sys.executable, "-m", "benchmarks.plain", *words)
    return seconds, float((folder / "accuracy.txt").read_text())


def _lightly(python: str, folder: Path, task: str, seeds: Iterator[int]) -> Result:
    command = python, "classify.py", str(next(seeds)), str(NUM_EPOCHS[task])
    seconds = _run(folder, *command, "train")
    _run(folder, *command, "test")
    return seconds, float((folder / "accuracy.txt").read_text())


def first_command(python: str, cifar: Path, task: str, num_rounds: int) -> list[Row]:
    """Return seconds, accuracies, and the seconds of Lockstep as a multiple of the others."""
    ways: dict[str, Callable[[Path, str, Iterator[int]], Result]] = {
        "Lockstep": _lockstep,
        "a plain Lightning script": _plain,
    }
    if task == "digits":
        ways["lightly-train 0.18"] = partial(_lightly, python)
    with tempfile.TemporaryDirectory(prefix="lockstep-") as name:
        folder = Path(name)
        (folder / "classify.py").write_text(LIGHTLY)
        if task == "digits":
            write_digits(folder / "digits")
        else:
            write_photographs(cifar, folder / "photographs")
            animals.weights(folder / "weights.pth")
        results = alternate(
            num_rounds,
            **{way: partial(run, folder, task, itertools.count()) for way, run in ways.items()},
        )
    seconds = {way: [result[0] for result in results[way]] for way in ways}
    accuracies = {way: [result[1] for result in results[way]] for way in ways}
    ours, *others = ways
    return [
        *(
            ratio_row(f"{task}, {ours} : {way}", seconds[ours], seconds[way], "{:.1f} s")
            for way in others
        ),
        *(mean_row(f"{task}, {way}: test accuracy", accuracies[way]) for way in ways),
    ]


if __name__ == "__main__":
    command_line = parser(5)
    command_line.add_argument("python", help="of an environment with lightly-train")
    command_line.add_argument("cifar", type=Path, help="a folder of CIFAR-10 as image files")
    command_line.add_argument("task", choices=NUM_EPOCHS)
    arguments = command_line.parse_args()
    rows = first_command(
        arguments.python, arguments.cifar.resolve(), arguments.task, arguments.rounds
    )
    publish("first-command", rows, f"PYTHON CIFAR {arguments.task}")
