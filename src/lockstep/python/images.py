"""Converts the inputs of a predictor to the tensors of the same images in training."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lockstep.data.images.dataset_samples import shape_text
from lockstep.data.images.decoded_image import pixels_of
from lockstep.data.images.decoded_splits import refuse_beyond_memory
from lockstep.data.images.image_files import ImageFiles, decode_all
from lockstep.data.images.preprocessing import Preprocessing
from lockstep.data.sources.folders import unlabeled_folder
from lockstep.data.splits import ImageError, num_bytes
from lockstep.models.classifier import ImageFormat

ImageLike = str | os.PathLike[str] | Image.Image | NDArray[np.uint8] | Tensor
ACCEPTED = (
    "a path of a file or folder, a PIL image, a uint8 array (H, W) or (H, W, C), a tensor (C, H, "
    "W) or (B, C, H, W) of "
    "uint8 or floats, or a list of these"
)


class Inputs(NamedTuple):
    """Images (n, C, H, W) of the input size of the network, uint8 or floats, and their files.

    The file of an image can be None. `errors` are those of files in a folder that cannot be read,
    by file. The images of such files are arbitrary.
    """

    images: Tensor
    files: Sequence[str | None]
    is_one: bool  # true for a single image, false for a sequence of one
    errors: Mapping[str | None, str] = {}


def inputs_of(source: ImageLike, form: ImageFormat, preprocessing: Preprocessing) -> Inputs:
    """Read the images of one argument. Raises ValueError or FileNotFoundError."""
    channels = form.image_shape[0]
    if isinstance(source, str | os.PathLike):
        path = Path(source).expanduser()
        if not path.exists():
            raise FileNotFoundError(
                f"{source} does not exist (from {Path.cwd()}): give {ACCEPTED}."
            )
        folder_images, _ = unlabeled_folder(
            str(path), preprocessing=preprocessing, channels=channels
        )
        pixels = folder_images.pixels
        assert isinstance(pixels, ImageFiles)
        refuse_beyond_memory(str(path), num_bytes(pixels))
        images, errors = torch.empty(pixels.shape, dtype=torch.uint8), dict[str | None, str]()
        files = [os.fsdecode(file) for file in pixels.files]

        def store(position: int, scaled: Tensor) -> None:
            images[position] = preprocessing.crop(scaled)

        try:
            decode_all(pixels, torch.get_num_threads(), store)
        except ImageError as error:
            if not path.is_dir():
                raise
            for position, message in zip(error.positions, error.errors, strict=True):
                errors[files[position]] = message
        return Inputs(images, files, not path.is_dir(), errors)
    if isinstance(source, np.ndarray):
        source = _picture(source)
    if isinstance(source, Image.Image):
        try:
            pixels = pixels_of(source, channels, preprocessing.background)
        # Pillow reads a file when its pixels are needed, and decoders can raise any error.
        except Exception as error:
            raise ValueError(
                f"This image cannot be used ({error}): give another, or floats as a tensor."
            ) from error
        return Inputs(preprocessing(pixels).unsqueeze(0), [None], True)
    if isinstance(source, Tensor):
        images = _check_tensor(source, form, preprocessing)
        return Inputs(images, [None] * len(images), source.dim() == 3)
    raise ValueError(f"An object of type {type(source).__name__} is not an image: give {ACCEPTED}.")


def _picture(array: NDArray[np.uint8]) -> Image.Image:
    is_image = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    if array.dtype != np.uint8 or not is_image or array.size == 0:
        raise ValueError(
            f"An array of {array.dtype} of shape {array.shape} is not an image: give {ACCEPTED}."
        )
    return Image.fromarray(array[:, :, 0] if array.shape[2:] == (1,) else array)


def _check_tensor(tensor: Tensor, form: ImageFormat, preprocessing: Preprocessing) -> Tensor:
    """Return the images (n, C, H, W) of a tensor.

    They are preprocessed like files, unless the network takes floats.
    """
    description = f"A tensor of {shape_text(tensor)}"
    channels, height, width = form.image_shape
    images = tensor.detach().unsqueeze(0) if tensor.dim() == 3 else tensor.detach()
    if images.dim() != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise ValueError(f"{description} is not an image: give {ACCEPTED}.")
    if images.shape[1] != channels or 0 in images.shape[2:]:
        raise ValueError(f"{description} does not fit the network, which takes ({channels}, H, W).")
    images = images.as_subclass(Tensor)
    if images.is_floating_point() and form.is_float:
        if images.shape[2:] != (height, width):
            raise ValueError(
                f"{description} does not fit the network, which takes floats of shape "
                f"{form.image_shape} here."
            )
        return images
    if images.is_floating_point() and not bool(((images >= 0) & (images <= 1)).all()):
        min_value, max_value = images.min().item(), images.max().item()
        hint = "give uint8 of 0 to 255, or floats of 0 to 1, not normalized"
        raise ValueError(
            f"{description} has values from {min_value:.4g} to {max_value:.4g}: {hint}."
        )
    if images.is_floating_point():
        images = (255 * images.float()).round().to(torch.uint8)
    return preprocessing(images)
