"""Samples of a torch Dataset: made when they are needed, each from a random state of its own.

So random transforms give the same sample on any number of workers and processes, and after a resume.
"""

import contextlib
import random
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lockstep.data.images.decode import ImageError
from lockstep.distributed.rng import seed_of


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of a map-style `dataset` at `rows`, pairs of an input (C, H, W) and a target.

    Before each one is made, the global random states of torch (CPU), NumPy and `random` are set from (seed, epoch, row)
    for training, from (seed, row) for `is_evaluated` ones, which every evaluation therefore sees alike.
    `no_inputs` (0, C, H, W) and `no_targets` (0, ...) have the shapes and dtypes of all samples. `setting` names the
    dataset in messages.
    """

    dataset: Dataset[Any]
    rows: Tensor
    setting: str
    is_evaluated: bool
    no_inputs: Tensor
    no_targets: Tensor
    seed: int = 0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape (N, C, H, W) of all inputs."""
        channels, height, width = self.no_inputs.shape[1:]
        return len(self.rows), channels, height, width

    @property
    def dtype(self) -> torch.dtype:
        """Of the inputs: uint8, or floats that a network gets as they are."""
        return self.no_inputs.dtype

    @property
    def reason(self) -> str:
        """Why the samples are made when they are needed."""
        return f"samples of {type(self.dataset).__name__}"

    def __getitem__(self, positions: Tensor) -> Tensor:
        return self.made(positions, 0)[0]

    def head(self, count: int) -> "Samples":
        """The first `count` samples."""
        return replace(self, rows=self.rows[:count])

    def made(self, positions: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Inputs (n, C, H, W) and targets (n, ...) at `positions`, int64 (n,), as torch's default_collate has them.

        Raises ImageError with the setting, the row and the reason, where one cannot be made or differs from the others.
        """
        keys = () if self.is_evaluated else (epoch,)
        inputs, targets = [], []
        with _random_states_kept():
            for row in self.rows[positions].tolist():
                _set_random_states(seed_of(self.seed, "sample", self.setting, *keys, row))
                one_input, target = pair(self.dataset, row, self.setting)
                for what, value, like in (("input", one_input, self.no_inputs), ("target", target, self.no_targets)):
                    if (value.shape, value.dtype) != (like.shape[1:], like.dtype):
                        raise ImageError([self._difference(row, what, value, like)])
                inputs.append(one_input)
                targets.append(target)
        if not inputs:
            return self.no_inputs, self.no_targets
        return torch.stack(inputs), torch.stack(targets)

    def _difference(self, row: int, what: str, value: Tensor, like: Tensor) -> str:
        hint = "end the transforms with one that gives a size, such as torchvision.transforms.v2.CenterCrop"
        return (
            f"{self.setting}: the {what} of sample {row} is {told(value)}, that of the first one {told(like, 1)}: "
            f"give all one shape and dtype{', ' + hint if what == 'input' else ''}."
        )


def pair(dataset: Dataset[Any], row: int, setting: str) -> tuple[Tensor, Tensor]:
    """Input and target of a sample as tensors. Raises ImageError, which names it, where it cannot be made or used."""
    try:
        sample = dataset[row]
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # the border to somebody else's code
        raise ImageError(
            [f"{setting}: sample {row} cannot be made ({reason_of(error)}): fix or leave it out."]
        ) from error
    what = f"{setting}: sample {row} is"
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise ImageError([f"{what} a {type(sample).__name__}: give a pair (input, target)."])
    one_input, target = sample
    if not isinstance(one_input, Tensor):
        hint = "end the transforms of the Dataset with torchvision.transforms.v2.ToImage()"
        raise ImageError([f"{what} a {type(one_input).__name__} and not a tensor: {hint}."])
    if one_input.dim() != 3 or not (one_input.dtype == torch.uint8 or one_input.is_floating_point()):
        raise ImageError([f"{what} {told(one_input)}: give an image (C, H, W), uint8 of 0 to 255 or floats."])
    if isinstance(target, bool | int | np.generic | np.ndarray):
        target = torch.as_tensor(target)
    elif isinstance(target, float):
        target = torch.tensor(target, dtype=torch.float64)  # as default_collate has it
    if not isinstance(target, Tensor):
        raise ImageError([f"{what} given a {type(target).__name__} as its target: give a number or a tensor."])
    return one_input.as_subclass(Tensor), target.as_subclass(Tensor)


def told(value: Tensor, first: int = 0) -> str:
    """Dtype and shape of a tensor for people, its shape from dimension `first` on."""
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape[first:])}"


def reason_of(error: Exception) -> str:
    """What an exception says in one line, and where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{said.removesuffix(': ')}, in {place.filename}:{place.lineno}"


def _set_random_states(seed: int) -> None:
    torch.default_generator.manual_seed(seed)  # not those of GPUs, which torch.manual_seed sets too
    np.random.seed(seed)
    random.seed(seed)


@contextlib.contextmanager
def _random_states_kept() -> Iterator[None]:
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
