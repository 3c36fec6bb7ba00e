"""Torch Datasets of the user's own, with any transforms in them."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from typing_extensions import Doc

from lockstep.data.images.decode import NUM_PER_RUN
from lockstep.data.images.samples import Samples, pair, told
from lockstep.data.images.splits import Images, Splits, cut
from lockstep.data.images.statistics import (
    Statistics,
    channel_statistics,
    sampled_positions,
    unchanged,
    value_counts,
)
from lockstep.data.transfer.file_lock import Progress
from lockstep.system.kinds import PositiveFloat, PositiveFraction, Seed
from lockstep.system.wording import plural


def dataset(
    *,
    train: Annotated[Dataset[Any], Doc("training samples, pairs of an input (C, H, W) and a target")],
    val: Annotated[Dataset[Any] | None, Doc("validation samples; null = cut off train, with its transforms")],
    test: Annotated[Dataset[Any] | None, Doc("test samples; null = cut off train, with its transforms")],
    class_names: Annotated[
        Sequence[str] | None,
        Doc("names of the classes, or of the numbers that are predicted; null = `classes` of train"),
    ],
    mean: Annotated[
        Sequence[float] | None,
        Doc("of each channel of uint8 inputs, in [0, 1]; null = that of up to 4,096 training samples"),
    ],
    std: Annotated[Sequence[PositiveFloat] | None, Doc("standard deviation of each channel, as mean")],
    val_fraction: Annotated[PositiveFraction, Doc("part of the training samples kept for validation")],
    test_fraction: Annotated[PositiveFraction, Doc("part of the training samples kept for the test")],
    split_seed: Annotated[Seed, Doc("which samples these are")],
) -> Splits:
    """Torch Datasets of the map style, whose samples are pairs of an input and a target.

    Inputs are images (C, H, W) of one shape, uint8 of 0 to 255 or floats. Targets are numbers or tensors of one shape;
    batches of both are those of torch's default_collate. Worker processes make the samples, whose random transforms
    draw from torch's, NumPy's and Python's global random states: these are set for each sample, so that it is the same
    on any number of workers. `val` and `test` may be None, and are then cut off `train`, with its transforms, by their
    fraction and `split_seed`.

    `class_names` None takes the `classes` that `train` has. `mean` and `std` are those of each channel of uint8 images,
    in [0, 1]; None measures them on up to 4,096 training samples. Floats reach the network as they are.
    Raises ValueError for Datasets that cannot be used so, and ImageError for samples.
    """
    given = {name: part for name, part in {"train": train, "val": val, "test": test}.items() if part is not None}
    looks = {name: _looked_at(part, f"data.{name}") for name, part in given.items()}
    for name, look in looks.items():
        _check_same(name, look, looks["train"])
    fractions = {"val_fraction": val_fraction, "test_fraction": test_fraction}
    missing = {key: fraction for key, fraction in fractions.items() if key.removesuffix("_fraction") not in given}
    *cuts, rest = cut(len(train), split_seed, missing)  # pyright: ignore[reportArgumentType]
    rows = {name: torch.arange(len(part)) for name, part in given.items()}  # pyright: ignore[reportArgumentType]
    rows |= {key.removesuffix("_fraction"): part for key, part in zip(missing, cuts, strict=True)} | {"train": rest}

    def images(name: str) -> Images:
        source = name if name in given else "train"
        no_inputs, no_targets = looks[source]
        samples = Samples(given[source], rows[name], f"data.{source}", name != "train", no_inputs, no_targets)
        return Images(samples, no_targets, tuple(f"{source}/{row}" for row in rows[name].tolist()))

    parts = {name: images(name) for name in ("train", "val", "test")}
    names = _class_names(train, class_names)
    return Splits(**parts, class_names=names, statistics=_statistics(parts["train"].pixels, mean, std))


def seeded(splits: Splits, seed: int) -> Splits:
    """The splits of a run with this seed: samples of a Dataset draw from it, other images stay as they are."""

    def part(images: Images) -> Images:
        pixels = images.pixels
        return replace(images, pixels=replace(pixels, seed=seed)) if isinstance(pixels, Samples) else images

    return replace(splits, **{name: part(images) for name, images in splits.parts.items()})


class _Discard:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:  # bytes, or the buffer of a large array
        return memoryview(data).nbytes


def _looked_at(part: Any, setting: str) -> tuple[Tensor, Tensor]:
    """No input (0, C, H, W) and no target (0, ...), as the first sample of a Dataset has them.

    Raises ValueError where the Dataset is of another kind, empty, or cannot travel to worker processes.
    """
    name = type(part).__name__
    needed = f"{setting} ({name}) needs __len__ and __getitem__ (map style)"
    if isinstance(part, IterableDataset) or not hasattr(part, "__getitem__"):
        raise ValueError(f"{needed}, and is iterated over: workers ask for samples by their number.")
    try:
        count = len(part)
    except (TypeError, NotImplementedError) as error:
        raise ValueError(f"{needed}, and has no __len__: add one, the number of its samples.") from error
    if count == 0:
        raise ValueError(f"{setting} ({name}) has no samples: correct its paths or its selection.")
    try:
        ForkingPickler(_Discard(), pickle.HIGHEST_PROTOCOL).dump(part)
    except Exception as error:  # whatever the parts of somebody else's object raise
        raise ValueError(
            f"{setting} ({name}) cannot be sent to worker processes, for it cannot be pickled "
            f"({' '.join(str(error).split())}): use functions of a module for lambdas, and open files in __getitem__."
        ) from error
    one_input, target = pair(part, 0, setting)
    return one_input.new_empty(0, *one_input.shape), target.new_empty(0, *target.shape)


def _check_same(name: str, look: tuple[Tensor, Tensor], train: tuple[Tensor, Tensor]) -> None:
    for what, own, other in zip(("inputs", "targets"), look, train, strict=True):
        if (own.shape, own.dtype) != (other.shape, other.dtype):
            raise ValueError(
                f"data.{name} has {what} of {told(own, 1)}, data.train of {told(other, 1)}: give both the same."
            )


def _class_names(train: Any, class_names: Sequence[str] | None) -> tuple[str, ...]:
    names = class_names if class_names is not None else getattr(train, "classes", None)
    if not names:
        raise ValueError(
            f"data.class_names is not set, and data.train ({type(train).__name__}) has no `classes`: set "
            "data.class_names=[rose,tulip], or give one name for each number that is to be predicted."
        )
    return tuple(map(str, names))


def _statistics(samples: Any, mean: Sequence[float] | None, std: Sequence[float] | None) -> Statistics:
    num_channels, is_bytes = samples.shape[1], samples.dtype == torch.uint8
    if mean is not None and std is not None:
        if not is_bytes:
            raise ValueError(
                f"data.mean={list(mean)} normalizes uint8 images, and the inputs of data.train are "
                f"{told(samples.no_inputs, 1)}: leave it out, and normalize them there."
            )
        if len(mean) != num_channels or len(std) != num_channels:
            raise ValueError(
                f"data.mean={list(mean)} and data.std={list(std)} are not those of {plural(num_channels, 'channel')}: "
                "give one number for each."
            )
        return Statistics(tuple(mean), tuple(std))
    return _measured(samples) if is_bytes else unchanged(num_channels)


def _measured(samples: Samples) -> Statistics:
    progress = Progress("Measuring mean and deviation (data.mean and data.std spare it)", "samples")
    counts = torch.zeros(samples.shape[1], 256, dtype=torch.int64)
    positions = sampled_positions(samples.shape[0])
    for start in range(0, len(positions), NUM_PER_RUN):
        counts += value_counts(samples[positions[start : start + NUM_PER_RUN]])
        progress.show(start, len(positions))
    progress.end()
    return channel_statistics(counts)
