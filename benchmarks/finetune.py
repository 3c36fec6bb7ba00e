"""Compare fine-tuning with training from random weights.

The data is eight classes of CIFAR-10, then few images of cats and dogs.

`python -m benchmarks.finetune cifar` takes 20 minutes on two cores. A round is a seed, and has four
trainings after the pretraining. The folder has train/ and test/ with a folder of image files for
each class. A folder `finetune` in it keeps the runs: the same command continues.
"""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import ENVIRON, TRAIN
from benchmarks.table import Row, mean_row, parser, progress, publish

FEW, NUM_IMAGES = ("cat", "dog"), 100  # of each to train with
RECIPE = (
    *(
        "data=image_folder",
        "data.cache=cache",
        "model.width=16",
        "augment.crop_padding=4",
        "augment.flip=true",
    ),
    *("trainer.devices=1", "callbacks.pictures=null"),
)
MANY = (
    "data.root=many",
    "data.val_fraction=0.05",
    "global_batch_size=256",
    "optimizer.lr=0.2",
    "trainer.max_epochs=8",
)
# the last weights are tested: so few images for validation would choose others by chance
TUNED = (
    "data.root=few",
    "global_batch_size=32",
    "trainer.max_epochs=40",
    "callbacks.checkpoint=null",
)
STARTS = {"training from nothing": (), "fine-tuning": ("init_from=pretrained",)}
RATES = (0.1, 0.02)


def link_images(cifar: Path, to: Path) -> None:
    """Link the folders of eight classes, and some images of the other two.

    Of the latter, it links the first images, and as many for validation.
    """
    for folder in sorted(path for split in ("train", "test") for path in (cifar / split).iterdir()):
        split, name = folder.parent.name, folder.name
        if name not in FEW or split == "test":
            _link(folder, to / ("few" if name in FEW else "many") / split / name)
            continue
        for index, file in enumerate(sorted(folder.iterdir())[: 2 * NUM_IMAGES]):
            _link(file, to / "few" / ("train" if index < NUM_IMAGES else "val") / name / file.name)


def _link(there: Path, here: Path) -> None:
    here.parent.mkdir(parents=True, exist_ok=True)
    if not here.exists():
        here.symlink_to(there)


def rows(folder: Path, num_seeds: int) -> list[Row]:
    found = [
        mean_row(
            "eight classes of CIFAR-10 as JPEGs, ResNet-18 of width 16, 8 epochs: test accuracy",
            [_accuracy(folder, "pretrained", *MANY)],
        )
    ]
    for rate in RATES:
        for start, more in STARTS.items():
            names = [f"{start.replace(' ', '-')}-{rate}-{seed}" for seed in range(num_seeds)]
            settings = [*TUNED, *more, f"optimizer.lr={rate}"]
            values = [
                _accuracy(folder, name, *settings, f"seed={seed}")
                for seed, name in enumerate(names)
            ]
            found.append(
                mean_row(
                    f"{NUM_IMAGES} cats and {NUM_IMAGES} dogs, 40 epochs, {start}, lr={rate}: "
                    "test accuracy",
                    values,
                )
            )
    return found


def _accuracy(folder: Path, name: str, *overrides: str) -> float:
    """Train a run, unless it has finished. Returns its test accuracy."""
    summary = folder / name / "summary.json"
    if not summary.exists():
        progress(f"training {name}, in {summary.parent}")
        command = [*TRAIN, *RECIPE, *overrides, f"hydra.run.dir={name}"]
        subprocess.run(command, cwd=folder, env=ENVIRON, stdout=sys.stderr, check=True)
    return json.loads(summary.read_text())["test_accuracy"]


if __name__ == "__main__":
    command_line = parser(3)
    command_line.add_argument("folder", type=Path, help="CIFAR-10 as image files")
    arguments = command_line.parse_args()
    cifar: Path = arguments.folder.resolve()
    link_images(cifar, cifar / "finetune")
    publish(
        "fine-tuning",
        rows(cifar / "finetune", arguments.rounds),
        "cifar, a folder of CIFAR-10 as JPEGs",
    )
