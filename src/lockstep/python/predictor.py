"""`lockstep.load`: the network of a run, asked for predictions."""

import contextlib
import itertools
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from typing_extensions import override

from lockstep.config import storage, trained, validation
from lockstep.models.classifier import Classifier
from lockstep.python import configuration
from lockstep.python.images import ImageLike, inputs_of
from lockstep.python.prediction import Prediction, Predictions
from lockstep.runs import naming
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import shown
from lockstep.system import hardware
from lockstep.system.wording import plural
from lockstep.training import checkpoints, predict, session
from lockstep.training.precision import float32_kept, set_tf32
from lockstep.training.session import Session


def load(
    run: str | os.PathLike[str],
    *,
    checkpoint: Literal["best", "last"] = "best",
    device: str | torch.device | None = None,
    trust: bool = False,
) -> "Predictor":
    """The trained network of a run: its folder, `latest` of those below outputs/, or what `lockstep.train` returned.

    It computes where and in which precision a training of these settings would on this machine: on its first GPU, else
    its CPU. `device` chooses another one: "cpu", "cuda", "cuda:1". Random states and switches of this process stay as
    they are. With `trust` whatever the run folder names is called; else only what known libraries and the project in
    the current folder have, and ConfigError names what is of neither.

    Raises FileNotFoundError where the run or its checkpoint is not there, ValueError where the checkpoint is damaged or
    the device is not there, and ConfigError, a ValueError, where modules of the run are gone, or a LightningModule of
    one's own was trained, which has no task that predicts.
    """
    folder = naming.find(os.fspath(run))
    if checkpoint not in ("best", "last"):
        raise ValueError(f'checkpoint={checkpoint!r}: there is no such checkpoint, choose "best" or "last".')
    path = checkpoints.asked(folder, checkpoint, option='checkpoint="{}"')
    devices, strategy = _asked(device)
    with _unchanged(), tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        saved = configuration.saved(folder, is_trusted=trust)
        predict.refuse_own_module(saved, "lockstep.load")
        config = validation.check_tree(storage.to_tree(trained.here(saved, devices=devices, strategy=strategy)))
        with session.opened(RunFolder(Path(scratch)), config, None) as here:
            return Predictor(here, predict.loaded(here, path), path)


@contextlib.contextmanager
def _unchanged() -> Iterator[None]:
    """Leave random states, the search path, the current GPU and how float32 is multiplied as they were."""
    states, path = (random.getstate(), np.random.get_state()), list(sys.path)
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    current = torch.cuda.current_device() if gpus else 0
    with torch.random.fork_rng(gpus), float32_kept():
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            sys.path[:] = path
            if torch.cuda.is_initialized():
                torch.cuda.set_device(current)


def _asked(device: str | torch.device | None) -> tuple[int | list[int], str | None]:
    """The settings devices and strategy that put a network on `device`, in one process. Raises ValueError."""
    if device is None:
        return 1, None
    known = torch.device(device)
    if known.type == "cpu":
        return 1, "cpu"
    number, num_gpus = known.index or 0, hardware.num_visible_gpus()
    gpus = plural(num_gpus, "GPU")
    if known.type != "cuda" or number >= num_gpus:
        raise ValueError(f'device="{known}" is not there: this machine has {gpus}, device="cpu" uses none.')
    return [number], "auto"


class Predictor:
    """A trained network that is called with images; `lockstep.load` makes it.

    Images go the way they go in training and in `lockstep predict`: files and PIL images are turned upright, laid on
    the background of the run where they are transparent, become grey or RGB, are scaled until they cover the size of
    the network, and cropped in their centre. So are arrays and tensors of another size. Several are computed in batches
    of eval_batch_size.
    """

    def __init__(self, here: Session, module: Classifier, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.precision = here.precision
        self._module = module
        self._batch_size = here.config.eval_batch_size
        self._background = predict.background_of(here.config)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of what is predicted, in the order of the values."""
        return tuple(self._module.image_format.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of what the network is given."""
        channels, height, width = self._module.image_format.image_shape
        return channels, height, width

    @property
    def device(self) -> torch.device:
        """What the network computes on."""
        return self._module.device

    # a path can be a file or a folder, and a tensor one image or several: a type that is asked for both helps nobody
    @overload
    def __call__(self, images: Image.Image | NDArray[np.uint8]) -> Prediction: ...
    @overload
    def __call__(self, images: str | os.PathLike[str] | Tensor) -> Any: ...
    @overload
    def __call__(self, images: Sequence[ImageLike]) -> Predictions: ...
    def __call__(self, images: ImageLike | Sequence[ImageLike]) -> Prediction | Predictions:
        """What the network says of an image, as a `Prediction`, or of several, as `Predictions` in their order.

        One image is the path of a file, a PIL image, a uint8 array (H, W) or (H, W, C) of RGB, or a tensor (C, H, W).
        Several are the path of a folder, whose files are taken in sorted order, a tensor (B, C, H, W), or a list of
        any of these. Tensors of uint8 have values of 0 to 255. Tensors of floats have values of 0 to 1, not
        normalized, and are rounded to bytes, on which the network was trained; one that was trained on floats of the
        user's own gets floats as they are, as in its training, and of its size.

        Raises ValueError for what is no image, and FileNotFoundError for a path that is not there.
        """
        is_many = isinstance(images, Sequence) and not isinstance(images, str)
        given: Sequence[Any] = images if is_many else [images]  # pyright: ignore[reportAssignmentType]
        found = [inputs_of(image, self._module.image_format, self._background) for image in given]
        values: list[Tensor] = []
        tensors = [inputs.images for inputs in found] or [torch.empty(0, *self.image_shape, dtype=torch.uint8)]
        for _, alike in itertools.groupby(tensors, lambda images: images.dtype):
            values += [self._values(batch) for batch in torch.cat(list(alike)).split(self._batch_size)]
        files = tuple(file for inputs in found for file in inputs.files)
        predictions = Predictions(torch.cat(values), self.class_names, self._module.task.named, files)
        return predictions[0] if not is_many and found[0].is_one else predictions

    def _values(self, images: Tensor) -> Tensor:
        """What the task says of a batch, (n, ...), in host memory."""
        with float32_kept():
            set_tf32(self.precision == "tf32")
            return predict.predictions(self._module, images).cpu()  # a GPU may compute the next batch in the same place

    @override
    def __repr__(self) -> str:
        shape = "x".join(map(str, self.image_shape))
        what = f"{len(self.class_names)} {self._module.task.named} of {shape} images"
        return f"Predictor({shown(self.checkpoint)}: {what}, {self.precision} on {self.device})"
