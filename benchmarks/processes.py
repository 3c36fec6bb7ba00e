"""Images per second of several processes on the cores of one, and of virtual shards.

`python -m benchmarks.processes`, or one of `virtual_shards`, `workers` and `small_workers`. A round
takes at most two minutes on two cores.
"""

import csv
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import ENVIRON, ROOT, TRAIN
from benchmarks.table import Row, alternate, measure, progress, ratio_row

RESNET = (
    *(
        "data=synthetic",
        "data.image_size=28",
        "data.train_size=1024",
        "data.val_size=10",
        "data.test_size=10",
    ),
    *("global_batch_size=256", "eval_batch_size=10", "trainer.max_epochs=4"),
)
FORM = "{:,.0f} images/s"
SMALL = ("data=digits", "model.width=16", "global_batch_size=64", "trainer.max_epochs=6")


def _images_per_s(num_workers: int, overrides: Sequence[str]) -> float:
    """Images per second of the last epoch of a training on all cores of the machine."""
    environ = {name: value for name, value in ENVIRON.items() if name != "OMP_NUM_THREADS"}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "run")
        words = [
            *TRAIN,
            *overrides,
            "strategy=cpu",
            f"trainer.devices={num_workers}",
            f"hydra.run.dir={folder}",
        ]
        subprocess.run(words, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, check=True)
        rows = list(csv.DictReader((folder / "metrics.csv").open()))
    return float(rows[-1]["images_per_s"])


def _side_by_side(
    num_rounds: int, network: str, overrides: Sequence[str], counts: Sequence[int]
) -> list[Row]:
    """Compare one process with several, by their number.

    The launcher gives each its part of the cores as threads.
    """
    one = {"1": lambda: _images_per_s(1, overrides)}
    several = {str(count): lambda count=count: _images_per_s(count, overrides) for count in counts}
    rates = alternate(num_rounds, **one, **several)
    return [
        ratio_row(f"{network}: {count} processes : 1 process", rates[str(count)], rates["1"], FORM)
        for count in counts
    ]


def workers(num_rounds: int = 7) -> list[Row]:
    """One process on all cores against two, the full ResNet-18 on 28x28 images, batch 256."""
    return _side_by_side(num_rounds, "ResNet-18 at 28x28", RESNET, [2])


def small_workers(num_rounds: int = 7) -> list[Row]:
    """Compare one process on all cores with two and four.

    They train a ResNet-18 of width 16 on digits, batch 64.
    """
    return _side_by_side(num_rounds, "width 16 at 8x8", SMALL, [2, 4])


def virtual_shards(num_rounds: int = 3) -> list[Row]:
    """Time virtual shards in one process on all cores, and in two: the full ResNet-18, batch 64."""
    aims = {
        "2 virtual shards": ">= 0.92",
        "4 virtual shards": ">= 0.85",
        "8 virtual shards": ">= 0.70",
    }
    of_two, rows = "2 processes, 2 virtual shards", []
    for size, num_images in ((28, 512), (64, 256)):
        recipe = [
            *RESNET,
            f"data.image_size={size}",
            f"data.train_size={num_images}",
            "global_batch_size=64",
        ]
        recipe.append("trainer.max_epochs=2")
        ways = {"no virtual shards": (1, "null"), **{name: (1, name[0]) for name in aims}}
        ways |= {"2 processes": (2, "null"), of_two: (2, "2")} if size == 28 else {}

        def speed(num_workers: int, count: str, recipe: Sequence[str] = recipe) -> float:
            return _images_per_s(num_workers, [*recipe, f"trainer.virtual_shards={count}"])

        progress(f"images of {size}x{size}")
        rates = alternate(
            num_rounds, **{name: lambda way=way: speed(*way) for name, way in ways.items()}
        )
        for name, aim in {**aims, of_two: ">= 0.95"}.items():
            if name in rates:
                below = rates["2 processes" if name == of_two else "no virtual shards"]
                what = f"{size}x{size}, {name} : none"
                rows.append(ratio_row(what, rates[name], below, FORM, aim=aim))
    return rows


if __name__ == "__main__":
    measure(
        virtual_shards=("virtual-shards", virtual_shards),
        workers=("processes", workers),
        small_workers=("processes", small_workers),
    )
