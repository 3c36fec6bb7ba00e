"""`lockstep.load`: predictions by the network of a run."""

import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from typing_extensions import override

from lockstep.assembly import checkpoints
from lockstep.assembly.precision import keep_float32, set_tf32
from lockstep.assembly.session import Session, open_session
from lockstep.config import saved_run
from lockstep.config.checks import validation
from lockstep.config.saved import config_file
from lockstep.data.images.dataset_samples import keep_random_states
from lockstep.inference import embed, predict, selective
from lockstep.inference.options import TrainedRun
from lockstep.models.classifier import Classifier
from lockstep.python import configuration
from lockstep.python.images import ImageLike, Inputs, inputs_of
from lockstep.python.prediction import Prediction, Predictions
from lockstep.runs import naming
from lockstep.runs.folder import RunFolder
from lockstep.system import hardware
from lockstep.system.text import plural
from lockstep.trials.members import members


def load(
    run: str | os.PathLike[str],
    *,
    checkpoint: Literal["best", "last"] = "best",
    device: str | torch.device | None = None,
    calibrate: bool = True,
    max_error: float | None = None,
    flip: bool = False,
    trust: bool = False,
) -> "Predictor":
    """Load the trained network of a run.

    The run is its folder, `latest` for the newest below outputs/, or a `lockstep.Run`. Of the
    folder of a sweep, the networks of its best setting are loaded, and their probabilities are
    averaged. With `flip`, those of each image and its mirror image are averaged, too.

    The device is that of a training with these settings on this machine: its first GPU, else its
    CPU. `device` selects another one: "cpu", "cuda", "cuda:1". It computes in float32, or in
    float64 after a training in float64. Random states and switches of this process stay unchanged.
    Without `calibrate`, probabilities are those of the trained network, as for a run with
    calibrate=false. With `max_error`, such as 0.05, classes are `unknown` unless at most this
    fraction of the answers is wrong. Only code of known libraries and of the project in the current
    folder is called. With `trust`, any code that the run folder names is called.

    Raises FileNotFoundError if the run or its checkpoint does not exist. Raises ValueError if the
    checkpoint is damaged or the device does not exist. Raises ConfigError, a ValueError, for
    untrusted or missing modules, and for an error rate that cannot be kept. Also raises it for a
    custom LightningModule, which has no task that predicts, and for networks that cannot be
    averaged.
    """
    folders, average = members(os.fspath(run), is_flipped=flip)
    if checkpoint not in ("best", "last"):
        raise ValueError(f'checkpoint={checkpoint!r} does not exist: choose "best" or "last".')
    path, *_ = [
        checkpoints.requested_checkpoint(folder, checkpoint, option='checkpoint="{}"')
        for folder in folders
    ]
    devices, strategy = _trainer_settings(device)
    with _keep_global_state(), tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        saved_config, *_ = [
            configuration.load_settings(folder, is_trusted=trust) for folder in folders
        ]
        predict.refuse_custom_module(saved_config, "lockstep.load")
        adapted_config = saved_run.adapt_to_machine(
            saved_config, devices=devices, strategy=strategy
        )
        config = validation.check_tree(
            config_file.to_tree(adapted_config)
            | {"calibrate": calibrate and saved_config.calibrate}
        )
        with open_session(RunFolder(Path(scratch)), config, None) as session:
            trained = TrainedRun(folders[0], path, config, tuple(folders[1:]), flip, average)
            threshold, _ = selective.threshold_of(trained, max_error, "max_error=")
            return Predictor(session, predict.load_network(session, trained), trained, threshold)


@contextlib.contextmanager
def _keep_global_state() -> Iterator[None]:
    """Restore the global state of this process after the block.

    It consists of random states, the search path, the current GPU and the precision of float32
    products.
    """
    path = list(sys.path)
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    current_gpu = torch.cuda.current_device() if gpus else 0
    with keep_random_states(), torch.random.fork_rng(gpus), keep_float32():
        try:
            yield
        finally:
            sys.path[:] = path
            if torch.cuda.is_initialized():
                torch.cuda.set_device(current_gpu)


def _trainer_settings(device: str | torch.device | None) -> tuple[int | list[int], str | None]:
    """Return trainer.devices and strategy for a network on `device`, in one process.

    Raises ValueError.
    """
    if device is None:
        return 1, None
    torch_device = torch.device(device)
    if torch_device.type == "cpu":
        return 1, "cpu"
    number, num_gpus = torch_device.index or 0, hardware.num_visible_gpus()
    if torch_device.type != "cuda" or number >= num_gpus:
        raise ValueError(
            f'device="{torch_device}" does not exist: this machine has {plural(num_gpus, "GPU")}; '
            'device="cpu" uses none.'
        )
    return [number], "auto"


class Predictor:
    """A trained network that is called with images. It is created by `lockstep.load`.

    Images are preprocessed as in an evaluation and in `lockstep predict`. For files and PIL images,
    the EXIF orientation is applied. They are composited on the background of the run if
    transparent, and converted to grayscale or RGB. Images are scaled, and cropped or padded to the
    input size of the network, as the run does. Batches have eval_batch_size images.
    """

    def __init__(
        self,
        session: Session,
        module: Classifier,
        trained: TrainedRun,
        threshold: float | None = None,
    ) -> None:
        self.checkpoint: Path = trained.checkpoint
        self._average = trained.average
        self.precision: str = session.precision
        self.threshold = threshold
        self._module = module
        self._batch_size = session.config.eval_batch_size
        self._preprocessing = predict.preprocessing_of(session.config, module.image_format)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the predicted classes, labels or numbers, in the order of the values."""
        return tuple(self._module.image_format.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """The shape (C, H, W) of the input of the network."""
        channels, height, width = self._module.image_format.image_shape
        return channels, height, width

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self._module.device

    # A path can be a file or a folder, and a tensor one image or several.
    @overload
    def __call__(self, images: Image.Image | NDArray[np.uint8]) -> Prediction: ...
    @overload
    def __call__(self, images: str | os.PathLike[str] | Tensor) -> Any: ...
    @overload
    def __call__(self, images: Sequence[ImageLike]) -> Predictions: ...
    def __call__(self, images: ImageLike | Sequence[ImageLike]) -> Prediction | Predictions:
        """Predict one image, as a `Prediction`, or several, as `Predictions` in their order.

        One image is the path of a file, a PIL image, a uint8 array (H, W) or (H, W, C) of RGB, or a
        tensor (C, H, W). Several images are the path of a folder, whose files are sorted, a tensor
        (B, C, H, W), or a list of any of these.

        Values of uint8 tensors are 0 to 255. Values of float tensors are 0 to 1, not normalized,
        and are rounded to bytes, on which the network was trained. A network that was trained on
        custom floats takes floats of its input size, unchanged.

        A file in a folder that cannot be read has a prediction with its `error`. Raises ValueError
        for other such files and anything else, and FileNotFoundError for a path that does not
        exist.
        """
        values, all_inputs = self._values(images, predict.predictions)
        files = tuple(file for inputs in all_inputs for file in inputs.files)
        errors = {file: error for inputs in all_inputs for file, error in inputs.errors.items()}
        predictions = Predictions(
            values, self.class_names, self._module.task.output_noun, files, self.threshold, errors
        )
        is_many = isinstance(images, Sequence) and not isinstance(images, str)
        return predictions[0] if not is_many and all_inputs[0].is_one else predictions

    def features(self, images: ImageLike | Sequence[ImageLike]) -> Tensor:
        """Return the features (n, D) of one image or several: the inputs of the last layer.

        Images are given as in a call. Features are in host memory, in float32, or float64 for a run
        in float64. Feature maps and tokens are averaged over positions. Features of files in a
        folder that cannot be read are NaN. `lockstep embed` writes the same values, up to rounding.
        Raises the errors of a call, and ConfigError, a ValueError, for a network without such a
        layer, and for an average.
        """
        return self._values(images, embed.features)[0]

    def _values(
        self,
        images: ImageLike | Sequence[ImageLike],
        compute: Callable[[Classifier, Tensor], Tensor],
    ) -> tuple[Tensor, list[Inputs]]:
        """Return the values (n, ...) of all images, in host memory, and the inputs of `compute`."""
        if isinstance(images, str) or not isinstance(images, Sequence):
            images = [images]
        form, values = self._module.image_format, list[Tensor]()
        all_inputs = [inputs_of(image, form, self._preprocessing) for image in images]
        tensors = [inputs.images for inputs in all_inputs]
        if not tensors:
            tensors = [torch.empty(0, *self.image_shape, dtype=torch.uint8)]
        with keep_float32():
            set_tf32(self.precision == "tf32")
            for _, group in itertools.groupby(tensors, lambda images: images.dtype):
                for batch in torch.cat(list(group)).split(self._batch_size):
                    # A GPU may reuse the memory for the next batch.
                    values.append(compute(self._module, batch).cpu())
        all_values = torch.cat(values)
        is_broken = [file in inputs.errors for inputs in all_inputs for file in inputs.files]
        missing_value = torch.nan if all_values.is_floating_point() else 0
        all_values[torch.tensor(is_broken, dtype=torch.bool)] = missing_value
        return all_values, all_inputs

    @override
    def __repr__(self) -> str:
        shape = "x".join(map(str, self.image_shape))
        return (
            f"Predictor({self._average or naming.display_path(self.checkpoint)}: "
            f"{len(self.class_names)} {self._module.task.output_noun} of {shape} images, "
            f"{self.precision} on {self.device})"
        )
