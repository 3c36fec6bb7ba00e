"""Provide custom torch Datasets with any transforms."""

import contextlib
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from typing_extensions import Doc

from lockstep.data.images.dataset_samples import Samples, pair, shape_text
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
    arguments = {"train": train, "val": val, "test": None if fold else test}
    datasets = {split: dataset for split, dataset in arguments.items() if dataset is not None}
    first_samples = {
        split: _first_sample(dataset, f"data.{split}") for split, dataset in datasets.items()
    }
    for split, sample in first_samples.items():
        _check_same(split, sample, first_samples["train"])
    fractions = {"val": val_fraction, "test": test_fraction}
    missing_fractions = {
        split: fraction for split, fraction in fractions.items() if split not in datasets
    }
    labels = _labels(train)
    groups = {split: _groups(dataset, f"data.{split}") for split, dataset in datasets.items()}
    if fold is not None and labels is None:
        problem = (
            "needs the class of each sample, "
            f"which data.train ({type(train).__name__}) does not list"
        )
        raise ValueError(
            f"data.folds={fold.num_folds} {problem}: give it `targets`, no target_transform."
        )
    rows = {split: torch.arange(len(dataset)) for split, dataset in datasets.items()}  # pyright: ignore[reportArgumentType]
    classes = torch.zeros_like(rows["train"]) if labels is None else labels
    if groups["train"] is None and kept is None:
        rows |= split_at_random(classes, split_seed, missing_fractions, fold)
    else:
        sample_names = [f"train/{row}" for row in rows["train"].tolist()]
        unsplit_samples = Unsplit(sample_names, classes.numpy(), split_seed, groups["train"], kept)
        rows |= {
            split: torch.from_numpy(positions)
            for split, positions in split_images(unsplit_samples, missing_fractions, fold).items()
        }

    def images(split: str) -> Images:
        source = split if split in datasets else "train"
        empty_inputs, empty_targets = first_samples[source]
        source_labels = labels if source == "train" else None
        samples = Samples(
            datasets[source],
            rows[split],
            f"data.{source}",
            split != "train",
            empty_inputs,
            empty_targets,
            source_labels,
        )
        source_rows, source_groups = rows[split].tolist(), groups[source]
        names = tuple(f"{source}/{row}" for row in source_rows)
        return Images(
            samples,
            empty_targets,
            names,
            None if source_groups is None else [source_groups[row] for row in source_rows],
        )

    samples = [images(split) for split in ("train", "val", "test")]
    names = _class_names(train, class_names)
    return Splits(*samples, class_names=names, statistics=_statistics(samples[0].pixels, mean, std))


def _first_sample(dataset: Any, setting: str) -> tuple[Tensor, Tensor]:
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
    try:
        ForkingPickler.dumps(dataset)
    except Exception as error:  # Custom classes can raise any exception.
        hint = "replace lambdas by functions of a module, and open files in __getitem__"
        raise ValueError(
            f"{setting} ({type_name}) cannot be pickled ({' '.join(str(error).split())}): {hint}."
        ) from error
    one_input, target = pair(dataset, 0, setting)
    return one_input.new_empty(0, *one_input.shape), target.new_empty(0, *target.shape)


def _labels(dataset: Any) -> Tensor | None:
    """Return the class numbers int64 (N,) that a Dataset lists as `targets`, or None if unknown.

    The Datasets of torchvision list them in this way.
    """
    targets = (
        None if getattr(dataset, "target_transform", None) else getattr(dataset, "targets", None)
    )
    # There may be no targets, texts, or lists of different lengths.
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        labels = torch.as_tensor(targets)
        return labels if labels.shape == (len(dataset),) and labels.dtype == torch.int64 else None
    return None


def _groups(dataset: Any, setting: str) -> list[str] | None:
    """Return the groups (N,) that a Dataset lists as `groups`, or None if it has none."""
    groups = getattr(dataset, "groups", None)
    if groups is None:
        return None
    if len(groups) != len(dataset):
        counts = f"{plural(len(groups), 'group')} for {plural(len(dataset), 'sample')}"
        raise ValueError(
            f"{setting}.groups ({type(dataset).__name__}) has {counts}: give one for each."
        )
    return list(map(str, np.asarray(groups).tolist()))


def _check_same(
    split: str, sample: tuple[Tensor, Tensor], train_sample: tuple[Tensor, Tensor]
) -> None:
    for role, value, train_value in zip(("inputs", "targets"), sample, train_sample, strict=True):
        if (value.shape, value.dtype) != (train_value.shape, train_value.dtype):
            problem = (
                f"data.{split} has {role} of {shape_text(value, 1)}, "
                f"data.train of {shape_text(train_value, 1)}"
            )
            raise ValueError(f"{problem}: give both the same.")


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
            problem = (
                f"normalizes uint8 images, and data.train has {shape_text(samples.empty_inputs, 1)}"
            )
            raise ValueError(
                f"data.mean={list(mean)} {problem}: "
                "remove it and data.std, normalize in the Dataset."
            )
        if len(mean) != num_channels or len(std) != num_channels:
            problem = f"are not for {plural(num_channels, 'channel')}: give one number per channel."
            raise ValueError(f"data.mean={list(mean)} and data.std={list(std)} {problem}")
        return Statistics(tuple(mean), tuple(std))
    if not is_bytes:
        return identity_statistics(num_channels)
    progress = Progress(
        "Measuring mean and std (set data.mean and data.std to skip this)", "samples"
    )
    counts = torch.zeros(num_channels, 256, dtype=torch.int64)
    positions = sampled_positions(samples.shape[0])
    for start in range(0, len(positions), NUM_PER_RUN):
        counts += value_counts(samples[positions[start : start + NUM_PER_RUN]])
        progress.show(start, len(positions))
    return channel_statistics(counts)
