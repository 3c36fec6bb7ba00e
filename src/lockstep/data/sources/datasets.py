"""Provide custom torch Datasets with any transforms."""

import contextlib
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from typing_extensions import Doc

from lockstep.data.images.dataset_samples import (
    Sample,
    Samples,
    pair,
    refuse_unpicklable,
    shape_text,
)
from lockstep.data.images.image_files import NUM_PER_RUN, sampled_positions
from lockstep.data.sources.builtin import split_at_random
from lockstep.data.splits import (
    Fold,
    Images,
    Kept,
    Splits,
    Statistics,
    channel_statistics,
    identity_statistics,
    value_counts,
)
from lockstep.data.splitting import Unsplit, split_images
from lockstep.data.transfer.file_lock import Progress
from lockstep.system.text import plural
from lockstep.system.types import PositiveFloat, PositiveFraction, Seed

ROLES = ("inputs", "targets")


def dataset(
    *,
    train: Annotated[
        Dataset[Any], Doc("training samples, pairs of an input (C, H, W) and a target")
    ],
    val: Annotated[
        Dataset[Any] | None, Doc("validation samples; null = split from train, with its transforms")
    ],
    test: Annotated[
        Dataset[Any] | None, Doc("test samples; null = split from train, with its transforms")
    ],
    class_names: Annotated[
        Sequence[str] | None,
        Doc("names of the classes, or of the numbers to predict; null = `train.classes`"),
    ],
    mean: Annotated[
        Sequence[float] | None,
        Doc(
            "mean of each channel of uint8 inputs, in [0, 1]; "
            "null = measured on up to 4,096 training samples"
        ),
    ],
    std: Annotated[
        Sequence[PositiveFloat] | None,
        Doc("standard deviation of each channel; given together with mean"),
    ],
    val_fraction: Annotated[
        PositiveFraction, Doc("fraction of the training samples to use for validation")
    ],
    test_fraction: Annotated[
        PositiveFraction, Doc("fraction of the training samples to use for the test")
    ],
    split_seed: Annotated[Seed, Doc("seed of the random split")],
    fold: Fold | None = None,
    kept: Kept = None,
) -> Splits:
    """Provide map-style torch Datasets, whose samples are pairs of an input and a target.

    Inputs are images (C, H, W) of one shape. They are uint8 of 0 to 255, or floats, which the
    network gets unchanged. Targets are numbers or tensors of one shape. Both are batched as by
    torch's default_collate. Worker processes make the samples. Random transforms draw from the
    global random states of torch, NumPy and Python. These states are set for each sample, so that
    it is the same for any number of workers.

    A `fold` of train takes the place of the test. For this, train must list its class numbers as
    `targets`. Samples with the same value in `groups` of a Dataset stay in one split. `kept` maps
    names of samples to their earlier splits, in which they stay. Raises ValueError for Datasets and
    ImageError for samples that cannot be used.
    """
    datasets: dict[str, Any] = {"train": train, "val": val, "test": None if fold else test}
    fractions = {"val": val_fraction, "test": test_fraction}
    rows: dict[str, Tensor] = {}
    groups: dict[str, list[str] | None] = {}
    first_samples: dict[str, Sample] = {}
    for split, dataset in datasets.items():
        if dataset is not None:
            fractions.pop(split, None)
            first_samples[split] = _first_sample(dataset, f"data.{split}")
            groups[split] = _groups(dataset, f"data.{split}")
            rows[split] = torch.arange(len(dataset))
    for split, samples in first_samples.items():
        for role, value, train_value in zip(ROLES, samples, first_samples["train"], strict=True):
            shape, train_shape = shape_text(value, 1), shape_text(train_value, 1)
            if shape != train_shape:
                raise ValueError(
                    f"data.{split} has {role} of {shape}, data.train of {train_shape}: "
                    "give both the same."
                )
    labels = _labels(train)
    if fold is not None and labels is None:
        raise ValueError(
            f"data.folds={fold.num_folds} needs the class of each sample, which data.train "
            f"({type(train).__name__}) does not list: give it `targets`, no target_transform."
        )
    classes = torch.zeros_like(rows["train"]) if labels is None else labels
    if groups["train"] is None and kept is None:
        rows |= split_at_random(classes, split_seed, fractions, fold)
    else:
        names = [f"train/{row}" for row in range(len(classes))]
        samples = Unsplit(names, classes.numpy(), split_seed, groups["train"], kept)
        parts = split_images(samples, fractions, fold)
        rows |= {split: torch.from_numpy(positions) for split, positions in parts.items()}

    images: dict[str, Images] = {}
    for split, positions in rows.items():
        source = split if split in groups else "train"
        dataset, (empty_inputs, empty_targets) = datasets[source], first_samples[source]
        samples = Samples(
            dataset,
            torch.arange(len(dataset)),
            f"data.{source}",
            split != "train",
            empty_inputs,
            empty_targets,
            labels if source == "train" else None,
        )
        names = tuple(f"{source}/{row}" for row in range(len(dataset)))
        images[split] = Images(samples, empty_targets, names, groups[source]).take(positions)
    statistics = _statistics(images["train"].pixels, mean, std)
    return Splits(
        images["train"],
        images["val"],
        images["test"],
        _class_names(train, class_names),
        statistics,
    )


def _first_sample(dataset: Any, setting: str) -> Sample:
    """Return an empty input (0, C, H, W) and target (0, ...) like those of the first sample.

    They have its shape and dtype. Raises ValueError for a Dataset that is not map-style, is empty,
    or cannot be sent to worker processes.
    """
    type_name = type(dataset).__name__
    if isinstance(dataset, IterableDataset) or not (
        hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    ):
        raise ValueError(
            f"{setting} ({type_name}) is not a map-style Dataset: give it __len__ and __getitem__."
        )
    if len(dataset) == 0:  # pyright: ignore[reportArgumentType]
        raise ValueError(
            f"{setting} ({type_name}) has no samples: correct its paths or its selection."
        )
    refuse_unpicklable(dataset, setting)
    one_input, target = pair(dataset, 0, setting)
    return one_input.new_empty(0, *one_input.shape), target.new_empty(0, *target.shape)


def _labels(dataset: Any) -> Tensor | None:
    """Return the class numbers int64 (N,) that a Dataset lists as `targets`, or None if unknown.

    The Datasets of torchvision list them in this way.
    """
    # There may be no targets, texts, or lists of different lengths.
    with contextlib.suppress(AttributeError, TypeError, ValueError, RuntimeError):
        labels = torch.as_tensor(dataset.targets)
        is_one_number = labels.shape == (len(dataset),) and labels.dtype == torch.int64
        if is_one_number and not getattr(dataset, "target_transform", None):
            return labels
    return None


def _groups(dataset: Any, setting: str) -> list[str] | None:
    """Return the groups (N,) that a Dataset lists as `groups`, or None if it has none."""
    groups = getattr(dataset, "groups", None)
    if groups is None:
        return None
    if len(groups) != len(dataset):
        raise ValueError(
            f"{setting}.groups ({type(dataset).__name__}) has {plural(len(groups), 'group')} "
            f"for {plural(len(dataset), 'sample')}: give one for each."
        )
    return list(map(str, np.asarray(groups).tolist()))


def _class_names(train: Any, class_names: Sequence[str] | None) -> tuple[str, ...]:
    names = class_names if class_names is not None else getattr(train, "classes", None)
    if not names:
        type_name, hint = type(train).__name__, "set it, e.g. data.class_names=[rose,tulip]"
        raise ValueError(
            f"data.class_names is not set, and data.train ({type_name}) has no `classes`: {hint}."
        )
    return tuple(map(str, names))


def _statistics(
    samples: Any, mean: Sequence[float] | None, std: Sequence[float] | None
) -> Statistics:
    num_channels, is_bytes = samples.shape[1], samples.dtype == torch.uint8
    if mean is not None and std is not None:
        if not is_bytes:
            raise ValueError(
                f"data.mean={list(mean)} normalizes uint8 images, "
                f"and data.train has {shape_text(samples.empty_inputs, 1)}: "
                "remove it and data.std, normalize in the Dataset."
            )
        if not len(mean) == len(std) == num_channels:
            raise ValueError(
                f"data.mean={list(mean)} and data.std={list(std)} are not for "
                f"{plural(num_channels, 'channel')}: give one number per channel."
            )
        return Statistics(tuple(mean), tuple(std))
    if not is_bytes:
        return identity_statistics(num_channels)
    progress = Progress(
        "Measuring mean and std (set data.mean and data.std to skip this)", "samples"
    )
    counts = torch.zeros(num_channels, 256, dtype=torch.int64)
    positions = sampled_positions(len(samples))
    for number, run in enumerate(positions.split(NUM_PER_RUN)):
        counts += value_counts(samples[run])
        progress.show(number * NUM_PER_RUN, len(positions))
    return channel_statistics(counts)
