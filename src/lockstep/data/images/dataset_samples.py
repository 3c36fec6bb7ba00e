"""Make the samples of a torch Dataset, each from a random state of its own.

Random transforms therefore give the same sample for any number of workers and processes, and after
a resume.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lockstep.data.images.random_states import keep_random_states, set_random_states
from lockstep.data.splits import ImageError
from lockstep.distributed.rng import seed_of
from lockstep.system.tracebacks import located


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of a map-style `dataset` at `rows`, as pairs of an input (C, H, W) and a target.

    Before each sample, the global random states of torch (CPU), NumPy and `random` are set. For
    training they depend on (seed, epoch, row). If `is_evaluated`, they depend on (seed, row), so
    that all evaluations use the same samples. `empty_inputs` (0, C, H, W) and `empty_targets`
    (0, ...) have the shapes and dtypes of all samples. `setting` is the configuration key of the
    dataset, as used in messages. `labels` int64 has the class numbers of the complete dataset, or
    is None if they are unknown.
    """

    dataset: Dataset[Any]
    rows: Tensor
    setting: str
    is_evaluated: bool
    empty_inputs: Tensor
    empty_targets: Tensor
    labels: Tensor | None = None
    seed: int = 0
    is_streamed = True

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        channels, height, width = self.empty_inputs.shape[1:]
        return len(self), channels, height, width

    @property
    def dtype(self) -> torch.dtype:
        return self.empty_inputs.dtype

    @property
    def reason(self) -> str:
        return f"samples of {type(self.dataset).__name__}"

    def __getitem__(self, positions: Tensor) -> Tensor:
        return self.make(positions, 0)[0]

    def head(self, count: int) -> "Samples":
        return replace(self, rows=self.rows[:count])

    def make(
        self, positions: Tensor, epoch: int, drawn_by: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Make inputs (n, C, H, W) and targets (n, ...) at `positions`, int64 (n,).

        They are batched as by torch's default_collate. Random states depend on the rows of the
        dataset, or on `drawn_by` (n,) in an epoch that repeats samples. Raises ImageError with the
        setting and row of a sample that cannot be made, or that differs in shape or dtype.
        """
        keys = () if self.is_evaluated else (epoch,)
        inputs, targets = [], []
        with keep_random_states():
            rows = self.rows[positions]
            for row, key in zip(
                rows.tolist(), (rows if drawn_by is None else drawn_by).tolist(), strict=True
            ):
                seed = seed_of(self.seed, "sample", self.setting, *keys, key)
                set_random_states(seed)
                one_input, target = pair(self.dataset, row, self.setting)
                for role, value, reference in (
                    ("input", one_input, self.empty_inputs),
                    ("target", target, self.empty_targets),
                ):
                    if (value.shape, value.dtype) != (reference.shape[1:], reference.dtype):
                        problem = (
                            f"sample {row} is {shape_text(value)}, "
                            f"that of the first one {shape_text(reference, 1)}"
                        )
                        hint = (
                            "give all one shape and dtype, e.g. by a final transforms.v2.CenterCrop"
                        )
                        raise ImageError([f"{self.setting}: the {role} of {problem}: {hint}."])
                inputs.append(one_input)
                targets.append(target)
        if not inputs:
            return self.empty_inputs, self.empty_targets
        return torch.stack(inputs), torch.stack(targets)


def pair(dataset: Dataset[Any], row: int, setting: str) -> tuple[Tensor, Tensor]:
    """Return input and target of a sample as tensors.

    Raises ImageError if the sample cannot be made or used.
    """
    try:
        sample = dataset[row]
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # Custom code can raise any exception.
        raise ImageError(
            [f"{setting}: sample {row} cannot be made ({reason_of(error)}): fix or skip it."]
        ) from error
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise ImageError(
            [f"{setting}: sample {row} is a {type(sample).__name__}: give a pair (input, target)."]
        )
    one_input, target = sample
    if not isinstance(one_input, Tensor):
        problem = f"a {type(one_input).__name__} and not a tensor"
        hint = "end the transforms of the Dataset with transforms.v2.ToImage()"
        raise ImageError([f"{setting}: the input of sample {row} is {problem}: {hint}."])
    if one_input.dim() != 3 or not (
        one_input.dtype == torch.uint8 or one_input.is_floating_point()
    ):
        problem = shape_text(one_input)
        hint = "give an image (C, H, W), uint8 of 0 to 255 or floats"
        raise ImageError([f"{setting}: the input of sample {row} is {problem}: {hint}."])
    if isinstance(target, bool | int | np.generic | np.ndarray):
        target = torch.as_tensor(target)
    elif isinstance(target, float):
        target = torch.tensor(target, dtype=torch.float64)  # This is what default_collate does.
    if not isinstance(target, Tensor):
        problem = f"a {type(target).__name__}"
        raise ImageError(
            [f"{setting}: the target of sample {row} is {problem}: give a number or a tensor."]
        )
    return one_input.as_subclass(Tensor), target.as_subclass(Tensor)


def shape_text(value: Tensor, start_dim: int = 0) -> str:
    """Return dtype and shape of a tensor as text, the shape from dimension `start_dim` on."""
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape[start_dim:])}"


def reason_of(error: Exception) -> str:
    """Return an exception of custom code as one line, with its place."""
    message = " ".join(f"{type(error).__name__}: {error}".split())
    return located(message.removesuffix(": "), error)
