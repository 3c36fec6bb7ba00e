"""Make the samples of a torch Dataset, each from a random state of its own.

Random transforms therefore give the same sample for any number of workers and processes, and after
a resume.
"""

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lockstep.data.splits import ImageError, Shape, is_hwc
from lockstep.distributed.rng import seed_of
from lockstep.system.tracebacks import located

Sample = tuple[Tensor, Tensor]  # input and target


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of a map-style `dataset` at `rows`, as pairs of an input (C, H, W) and a target.

    Before each sample, the global random states of torch (CPU), NumPy and `random` are set. For
    training they depend on (seed, epoch, row). If `is_evaluated`, they depend on (seed, row), so
    that all evaluations use the same samples. `empty_inputs` (0, C, H, W) and `empty_targets`
    (0, ...) have the shapes and dtypes of all samples. `setting` is the configuration key of the
    dataset, as used in messages. `labels` int64 has the class numbers at `rows`, or is None if they
    are unknown.
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
    def shape(self) -> Shape:
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

    def take(self, positions: Tensor | slice) -> "Samples":
        labels = None if self.labels is None else self.labels[positions]
        return replace(self, rows=self.rows[positions], labels=labels)

    def make(self, positions: Tensor, epoch: int, drawn_by: Tensor | None = None) -> Sample:
        """Make inputs (n, C, H, W) and targets (n, ...) at `positions`, int64 (n,).

        They are batched as by torch's default_collate. Random states depend on the rows of the
        dataset, or on `drawn_by` (n,) in an epoch that repeats samples. Raises ImageError with the
        setting and row of a sample that cannot be made, or that differs in shape or dtype.
        """
        if not len(positions):
            return self.empty_inputs, self.empty_targets
        rows = self.rows[positions]
        drawn_by = rows if drawn_by is None else drawn_by
        keys = () if self.is_evaluated else (epoch,)
        inputs, targets = [], []
        with keep_random_states():
            for row, key in zip(rows.tolist(), drawn_by.tolist(), strict=True):
                set_random_states(seed_of(self.seed, "sample", self.setting, *keys, key))
                one_input, target = pair(self.dataset, row, self.setting)
                self._check_like("input", row, one_input, self.empty_inputs)
                self._check_like("target", row, target, self.empty_targets)
                inputs.append(one_input)
                targets.append(target)
        return torch.stack(inputs), torch.stack(targets)

    def _check_like(self, role: str, row: int, value: Tensor, reference: Tensor) -> None:
        if (value.shape, value.dtype) != (reference.shape[1:], reference.dtype):
            raise ImageError(
                [
                    f"{self.setting}: the {role} of sample {row} is {shape_text(value)}, that of "
                    f"the first one {shape_text(reference, 1)}: give all one shape and dtype, e.g. "
                    "by a final transforms.v2.CenterCrop."
                ]
            )


def pair(dataset: Dataset[Any], row: int, setting: str) -> Sample:
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
    is_pair = isinstance(sample, tuple | list) and len(sample) == 2
    image, target = sample if is_pair else (None, None)
    if isinstance(target, int | float | np.generic | np.ndarray):
        # A float becomes float64, as by default_collate.
        target = torch.as_tensor(np.asarray(target))
    if not is_pair:
        problem = f"sample {row} is a {type(sample).__name__}: give a pair (input, target)"
    elif not isinstance(image, Tensor):
        problem = (
            f"the input of sample {row} is a {type(image).__name__} and not a tensor: "
            "end the transforms of the Dataset with transforms.v2.ToImage()"
        )
    elif (
        image.dim() != 3
        or is_hwc(image)
        or not (image.dtype == torch.uint8 or image.is_floating_point())
    ):
        problem = (
            f"the input of sample {row} is {shape_text(image)}: "
            "give an image (C, H, W), uint8 of 0 to 255 or floats"
        )
    elif not isinstance(target, Tensor):
        problem = (
            f"the target of sample {row} is a {type(target).__name__}: give a number or a tensor"
        )
    else:
        return image.as_subclass(Tensor), target.as_subclass(Tensor)
    raise ImageError([f"{setting}: {problem}."])


def refuse_unpicklable(value: object, setting: str) -> None:
    """Raise ImageError if a Dataset or a transform cannot be sent to worker processes."""
    try:
        ForkingPickler.dumps(value)
    except Exception as error:  # Custom classes can raise any exception.
        problem = (
            f"{setting} ({type(value).__name__}) cannot be pickled ({reason_of(error)}): "
            "replace lambdas by functions of a module, and open files where they are read."
        )
        raise ImageError([problem]) from error


@contextlib.contextmanager
def keep_random_states() -> Iterator[None]:
    """Restore the global states of torch (CPU), NumPy and `random` at the end."""
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_rng_state, torch.get_rng_state())
        stack.callback(np.random.set_state, np.random.get_state())
        stack.callback(random.setstate, random.getstate())
        yield


def set_random_states(seed: int) -> None:
    """Set the global states of torch (CPU), NumPy and `random`, where 0 <= `seed` < 2**32."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed the GPUs.
    np.random.seed(seed)
    random.seed(seed)


def shape_text(value: Tensor, start_dim: int = 0) -> str:
    """Return dtype and shape of a tensor as text, the shape from dimension `start_dim` on."""
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape[start_dim:])}"


def reason_of(error: Exception) -> str:
    """Return an exception of custom code as one line, with its place."""
    message = " ".join(f"{type(error).__name__}: {error}".split())
    return located(message.removesuffix(": "), error)
