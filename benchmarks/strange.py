"""Compare scores that tell images of classes without training images from test images of the trained classes.

`python -m benchmarks.strange cifar fashion` takes 40 minutes on one core, and prints a table. The first folder has
train/ and test/ with a folder of image files for each class, the second the raw files of Fashion-MNIST. A folder
`strange` in the first keeps images and runs: the same command continues.
"""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.covariance import LedoitWolf
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

import lockstep
from benchmarks.parts import ENVIRON
from benchmarks.processes import TRAIN
from benchmarks.table import Row, conditions, markdown

SEEDS, NUM_KEPT = {"digits": 9, "CIFAR-10": 6}, 2000  # training images that new ones are compared with
ENDS = "max probability", "Mahalanobis, unit length"  # their sum, standardized by the validation, is a score, too
QUIET = "trainer.devices=1 hydra.run.dir=run callbacks.curves=null callbacks.pictures=null"
COMMON = [*TRAIN, *QUIET.split(), "data=image_folder", "data.root=known", "data.cache=cache"]
AUGMENT = "model.width=16 augment.crop_padding=4 augment.flip=true"
RECIPES = {
    "digits": "data.channels=1 data.image_size=8 data.test_fraction=0.3",
    "CIFAR-10": f"{AUGMENT} global_batch_size=128 optimizer.lr=0.1 trainer.max_epochs=20",
}
Array = NDArray[np.float64]


def trained(folder: Path, name: str, seed: int, cifar: Path) -> Path:
    """Return the folder with the images and the run of a seed, which leaves three classes out. Trains it once."""
    left_out = np.random.default_rng(seed // 3).permutation(10)[3 * (seed % 3) :][:3]
    if not folder.exists() and name == "digits":
        for index, (values, label) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
            to = folder / ("unknown" if label in left_out else "known") / str(label)
            to.mkdir(parents=True, exist_ok=True)
            Image.fromarray((values * (255 / 16)).round().astype(np.uint8).reshape(8, 8)).save(to / f"{index:04}.png")
    elif not folder.exists():
        for split, count in (("train", 1000), ("test", 300)):
            for label, source in enumerate(sorted((cifar / split).iterdir())):
                to = folder / ("unknown" if label in left_out else f"known/{split}") / source.name
                to.mkdir(parents=True, exist_ok=True)
                for file in [] if split == "train" and label in left_out else sorted(source.iterdir())[:count]:
                    (to / file.name).symlink_to(file)
    if not (folder / "run" / "summary.json").exists():
        words = [*COMMON, *RECIPES[name].split(), f"seed={seed}", f"data.split_seed={seed}"]
        subprocess.run(words, cwd=folder, env=ENVIRON, stdout=sys.stderr, check=True)
    return folder


def unit(x: Array) -> Array:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def mahalanobis(x: Array, y: NDArray[np.int64]) -> Callable[[Array], Array]:
    """Return the squared distance to the nearest mean of a class, by a shrunk covariance within the classes."""
    means = np.stack([x[y == label].mean(0) for label in range(y.max() + 1)])
    precision = LedoitWolf(assume_centered=True).fit(x - means[y]).precision_
    return lambda z: np.min([((z - mean) @ precision * (z - mean)).sum(1) for mean in means], axis=0)


def areas(folder: Path, far: list[Image.Image]) -> dict[tuple[str, str], float]:
    """Return the AUROC of each score, for left-out classes and for Fashion-MNIST."""
    network = lockstep.load(folder / "run")
    splits = json.loads(gzip.decompress((folder / "run" / "images.json.gz").read_bytes()))
    files = {part: [folder / "known" / name for name in splits[part]["names"]] for part in ("train", "val", "test")}
    order = np.random.default_rng(0).permutation(len(files["train"]))[:NUM_KEPT]
    kept = [files["train"][index] for index in sorted(order)]
    x, y = network.features(kept).double().numpy(), np.array([network.class_names.index(k.parent.name) for k in kept])
    near = NearestNeighbors(n_neighbors=10).fit(unit(x))
    of_classes, of_all, of_unit = mahalanobis(x, y), mahalanobis(x, 0 * y), mahalanobis(unit(x), y)

    def scores(images: list[Path] | list[Image.Image]) -> dict[str, Array]:
        z = network.features(images).double().numpy()
        return {
            ENDS[0]: -network(images).values.double().numpy().max(1),
            "1st neighbour": near.kneighbors(unit(z))[0][:, 0],
            "10th neighbour": near.kneighbors(unit(z))[0][:, 9],
            "Mahalanobis": of_classes(z),
            "relative Mahalanobis": of_classes(z) - of_all(z),
            ENDS[1]: of_unit(unit(z)),
        }

    val, test = scores(files["val"]), scores(files["test"])
    left_out, found = scores(sorted((folder / "unknown").rglob("*.??g"))), dict[tuple[str, str], float]()
    for what, high in {"left-out classes": left_out, "Fashion-MNIST": scores(far)}.items():
        for some in (test, high):
            ends = [(some[name] - val[name].mean()) / val[name].std() for name in ENDS]
            some["sum of the last and max probability"] = ends[0] + ends[1]
        for name, low in test.items():
            found[what, name] = float(roc_auc_score([0] * len(low) + [1] * len(high[name]), [*low, *high[name]]))
    return found


def rows(cifar: Path, fashion: Path) -> list[Row]:
    pixels, table = np.frombuffer((fashion / "t10k-images-idx3-ubyte").read_bytes(), np.uint8, offset=16), list[Row]()
    far = [Image.fromarray(image) for image in pixels.reshape(-1, 28, 28)[:900]]
    for data, count in SEEDS.items():
        every = [areas(trained(cifar / "strange" / f"{data}-{seed}", data, seed, cifar), far) for seed in range(count)]
        for what, name in every[0]:
            values = [found[what, name] for found in every]
            wins = sum(found[what, name] > found[what, ENDS[0]] for found in every)
            above = "" if name == ENDS[0] else f", above {ENDS[0]} in {wins}"
            mean, spread = f"{np.mean(values):.4f}", f"{min(values):.4f} to {max(values):.4f}"
            table.append(Row(f"{data}, {what}, AUROC of {name}{above} (mean)", mean, spread, count))
    return table


if __name__ == "__main__":
    print(markdown("Images of other classes", rows(*map(Path.resolve, map(Path, sys.argv[1:])))) + conditions())
