"""Decode image files to uint8 pixels, in the same way for training, prediction and a cache."""

import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from torch import Tensor

from lockstep.data.images.image_table import CONVERT_HINT, HEIF_HINT, UNREAD_SUFFIXES, has_heif
from lockstep.data.images.preprocessing import Preprocessing, Size, size_of
from lockstep.data.splits import ImageError

# Pillow has 43 parsers, among them one of PostScript. No file reaches the parsers not listed here.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
HEIF_BRANDS = (
    b"heic",
    b"heix",
    b"heim",
    b"heis",
    b"hevc",
    b"hevx",
    b"hevm",
    b"hevs",
    b"mif1",
    b"msf1",
)
Array = NDArray[np.uint8]  # (H, W) or (H, W, C)
Turn = Callable[[Array], Array]
TURNS: dict[int, Turn] = {  # transforms to upright, by EXIF orientation
    2: np.fliplr,
    3: lambda pixels: np.rot90(pixels, 2),
    4: np.flipud,
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.rot90(pixels, 2).swapaxes(0, 1),
    8: np.rot90,
}
SWAPS = [TURNS[orientation] for orientation in (5, 6, 7, 8)]  # These swap height and width.
JPEGS = ("JPEG", "MPO")
# A JPEG is read completely up to this size. Pillow reads no further than the image.
MAX_JPEG_BYTES = 1 << 28
# These are the color spaces of simplejpeg, by mode and number of channels. Color images are
# converted to grayscale by Pillow, which rounds.
PLAIN = {("RGB", 3): "RGB", ("L", 3): "RGB", ("L", 1): "GRAY"}


class DecodedImage(NamedTuple):
    """An image as uint8 (C, H, W), and the `size` (H, W) of its file in upright orientation.

    A decoder may have shrunk a JPEG, so that `size` is larger than the image.
    """

    pixels: Tensor
    size: Size


def decode(path: str, channels: int, preprocessing: Preprocessing) -> DecodedImage:
    """Decode one image file.

    The EXIF orientation is applied, transparent pixels are composited on a background, and 16-bit
    values are reduced to 8 bits. Raises ImageError, also for an image that would be too large after
    scaling.

    A JPEG is shrunk by 2, 4 or 8 while it is decoded, if it stays at least twice as large as
    `preprocessing` scales it. Plain JPEGs are decoded directly by libjpeg-turbo, which gives the
    pixels of Pillow without its copies. All other files are decoded by Pillow.
    """
    try:
        with open_image(path) as file:
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and file.width * file.height > limit:
                raise ValueError(f"{file.height}x{file.width} (HxW) are more than {limit:,} pixels")
            size = _shrunk(file, preprocessing)
            jpeg_pixels = _plain_jpeg(file, channels)
            pixels = (
                pixels_of(file, channels, preprocessing.background)
                if jpeg_pixels is None
                else _as_tensor(jpeg_pixels, _turn(file))
            )
            size = size or size_of(pixels)
            preprocessing.scaled_size(*size)
            return DecodedImage(pixels, size)
    except ImageError:
        raise
    except Exception as error:  # Decoders can raise any exception.
        message = " ".join(str(error).split()) or type(error).__name__
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else message
        raise ImageError(
            [f"image {path} cannot be read ({reason}): replace or delete it."]
        ) from error


def open_image(path: str) -> ImageFile:
    """Open a file of one of `FORMATS`, or HEIC if pi-heif is installed.

    Raises ImageError, and the errors of Pillow.
    """
    if path.lower().endswith(UNREAD_SUFFIXES):
        raise ImageError([f"image {path} is of a type that is not read: {CONVERT_HINT}."])
    try:
        return Image.open(path, formats=FORMATS)
    except UnidentifiedImageError:
        with open(path, "rb") as file:
            head = file.read(12)
        if head[4:8] != b"ftyp" or head[8:] not in HEIF_BRANDS:
            raise
    if not has_heif():
        raise ImageError([f"image {path} is HEIC: {HEIF_HINT} or {CONVERT_HINT}."])
    import pi_heif

    pi_heif.register_heif_opener()
    return Image.open(path, formats=["HEIF"])


def _shrunk(file: ImageFile, preprocessing: Preprocessing) -> Size | None:
    """Let the decoder of a JPEG shrink it, if it is much larger than `preprocessing` needs.

    Returns the original size (H, W) in this case, and None otherwise.
    """
    if file.format not in JPEGS or preprocessing.size is None:
        return None
    size = upright_size(file)
    factor = min(
        side // (2 * scaled)
        for side, scaled in zip(size, preprocessing.scaled_size(*size), strict=True)
    )
    if factor < 2:
        return None
    file.draft(file.mode, (file.width // factor, file.height // factor))
    return size


def _plain_jpeg(file: ImageFile, channels: int) -> Array | None:
    """Decode an opened JPEG of 8-bit grayscale or RGB, at the size to which it is shrunk.

    Returns None for any other image, and if the decoder warns.
    """
    colors = PLAIN.get((file.mode, channels))
    if file.format not in JPEGS or colors is None:
        return None
    assert file.fp is not None
    if os.fstat(file.fp.fileno()).st_size > MAX_JPEG_BYTES:
        return None
    height, width = file.height, file.width
    # The decoder refuses the image if the rest of the file says that it is larger than this.
    buffer = np.empty((height, width, channels), np.uint8)
    file.fp.seek(0)
    try:
        return simplejpeg.decode_jpeg(
            file.fp.read(), colors, min_height=height, min_width=width, buffer=buffer
        )
    except ValueError:
        return None


def pixels_of(image: Image.Image, channels: int, background: str) -> Tensor:
    """Return the uint8 pixels (C, H, W) of a Pillow image, with the conversions of `decode`.

    `background` is a color of PIL.ImageColor. Raises ValueError for 32-bit pixels, and the errors
    of Pillow.
    """
    image.load()  # This sets mode and EXIF.
    if image.mode == "I" and image.format == "PPM":  # Pillow reads PGM of 9 to 16 bits as 32.
        image = image.convert("I;16")
    turn = _turn(image)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"32-bit pixels (mode {image.mode})")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        # BMPs of 32 bits can have a meaningless fourth byte, and viewers show them opaque.
        is_opaque = layer.getchannel("A").getextrema() == (0, 0)
        image = layer.convert("RGB") if is_opaque else Image.new("RGB", layer.size, background)
        image.paste(layer, mask=layer)
    mode = "L" if channels == 1 else "RGB"
    image = image if image.mode == mode else image.convert(mode)
    return _as_tensor(np.array(image), turn)


def _as_tensor(pixels: Array, turn: Turn | None) -> Tensor:
    """Apply `turn` to pixels (H, W) or (H, W, C), and return them as (C, H, W)."""
    tensor = torch.from_numpy(pixels if turn is None else turn(pixels).copy())
    return tensor.view(*tensor.shape[:2], -1).permute(2, 0, 1)


def upright_size(file: ImageFile) -> Size:
    """Return the size (H, W) of an opened file after its EXIF orientation is applied.

    Pillow applies the orientation of TIFF files itself.
    """
    is_swapped = file.format != "TIFF" and _turn(file) in SWAPS
    return (file.width, file.height) if is_swapped else (file.height, file.width)


def _turn(image: Image.Image) -> Turn | None:
    """Return the transform that applies the EXIF orientation.

    Returns None if no transform is needed or the EXIF data cannot be read. ImageOps.exif_transpose
    is not used, because it writes all tags again and fails for any invalid one.
    """
    try:
        return TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # The parser can raise any exception.
        return None
