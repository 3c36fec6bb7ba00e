"""From image files to uint8 pixels, the same in training, prediction and a cache."""

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
from lockstep.data.images.preprocessing import View, size_of
from lockstep.data.splits import ImageError

# Pillow has 43 parsers, of PostScript among others: no file reaches the rest
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
TURNS: dict[int, Turn] = {  # upright, by EXIF orientation
    2: np.fliplr,
    3: lambda pixels: np.rot90(pixels, 2),
    4: np.flipud,
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.rot90(pixels, 2).swapaxes(0, 1),
    8: np.rot90,
}
SWAPS = [TURNS[orientation] for orientation in (5, 6, 7, 8)]  # height and width
JPEGS = ("JPEG", "MPO")
MAX_JPEG_BYTES = 1 << 28  # of a JPEG that is read whole; Pillow reads no further than the image
# colours of simplejpeg by mode and channels; the grey of colours is Pillow's, which rounds it
PLAIN = {("RGB", 3): "RGB", ("L", 3): "RGB", ("L", 1): "GRAY"}


class DecodedImage(NamedTuple):
    """An image as uint8 (C, H, W), and the `size` (H, W) of the file, upright. A decoder may have shrunk a JPEG."""

    pixels: Tensor
    size: tuple[int, int]


def decode(path: str, channels: int, view: View) -> DecodedImage:
    """Decode one image file: upright, transparent pixels laid on a background, 16 bits cut to 8.

    Raises ImageError, also for an image that would be too large once it is scaled.

    A JPEG is shrunk by 2, 4 or 8 as it is decoded, if it stays twice as large as `view` scales it,
    at least. Plain JPEGs are decoded by libjpeg-turbo itself: the pixels of Pillow, without its
    copies. Pillow has all other files.
    """
    try:
        with open_image(path) as file:
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and file.width * file.height > limit:
                raise ValueError(f"{file.height}x{file.width} (HxW) are more than {limit:,} pixels")
            size = _shrunk(file, view)
            plain = _plain_jpeg(file, channels)
            pixels = (
                pixels_of(file, channels, view.background)
                if plain is None
                else _as_tensor(plain, _turn(file))
            )
            size = size or size_of(pixels)
            view.scaled_size(*size)
            return DecodedImage(pixels, size)
    except ImageError:
        raise
    except Exception as error:  # decoders raise any exception
        text = " ".join(str(error).split()) or type(error).__name__
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else text
        raise ImageError(
            [f"image {path} cannot be read ({reason}): replace or delete it."]
        ) from error


def open_image(path: str) -> ImageFile:
    """Open a file of one of `FORMATS`, or HEIC where pi-heif is installed. Raises ImageError, and errors of Pillow."""
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


def _shrunk(file: ImageFile, view: View) -> tuple[int, int] | None:
    """Have the decoder of a JPEG shrink it, if it is much larger than its view. Returns its size (H, W) then."""
    if file.format not in JPEGS or view.size is None:
        return None
    size = upright_size(file)
    factor = min(
        side // (2 * scaled) for side, scaled in zip(size, view.scaled_size(*size), strict=True)
    )
    if factor < 2:
        return None
    file.draft(file.mode, (file.width // factor, file.height // factor))
    return size


def _plain_jpeg(file: ImageFile, channels: int) -> Array | None:
    """Decode an opened JPEG of 8-bit grey or RGB, as shrunk; None for another, or with any warning of the decoder."""
    colours = PLAIN.get((file.mode, channels))
    if file.format not in JPEGS or colours is None:
        return None
    assert file.fp is not None
    if os.fstat(file.fp.fileno()).st_size > MAX_JPEG_BYTES:
        return None
    height, width = file.height, file.width
    # refused if the rest of the file says that it is larger
    most = np.empty((height, width, channels), np.uint8)
    file.fp.seek(0)
    try:
        return simplejpeg.decode_jpeg(
            file.fp.read(), colours, min_height=height, min_width=width, buffer=most
        )
    except ValueError:
        return None


def pixels_of(image: Image.Image, channels: int, background: str) -> Tensor:
    """Return the uint8 pixels (C, H, W) of a Pillow image, as in `decode`.

    `background` is a colour of PIL.ImageColor. Raises ValueError for 32-bit pixels, and errors of
    Pillow.
    """
    image.load()  # sets mode and EXIF
    if image.mode == "I" and image.format == "PPM":  # Pillow reads PGM of 9 to 16 bits as 32
        image = image.convert("I;16")
    turn = _turn(image)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"32-bit pixels (mode {image.mode})")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        # of BMPs of 32 bits, whose fourth byte means nothing: viewers show them opaque
        is_opaque = layer.getchannel("A").getextrema() == (0, 0)
        image = layer.convert("RGB") if is_opaque else Image.new("RGB", layer.size, background)
        image.paste(layer, mask=layer)
    wanted = "L" if channels == 1 else "RGB"
    image = image if image.mode == wanted else image.convert(wanted)
    return _as_tensor(np.array(image), turn)


def _as_tensor(pixels: Array, turn: Turn | None) -> Tensor:
    """Turn pixels (H, W) or (H, W, C), and return them as (C, H, W)."""
    turned = torch.from_numpy(pixels if turn is None else turn(pixels).copy())
    return turned.view(*turned.shape[:2], -1).permute(2, 0, 1)


def upright_size(file: ImageFile) -> tuple[int, int]:
    """(H, W) of an opened file once it is turned upright; Pillow turns TIFF itself."""
    is_swapped = file.format != "TIFF" and _turn(file) in SWAPS
    return (file.width, file.height) if is_swapped else (file.height, file.width)


def _turn(image: Image.Image) -> Turn | None:
    """Return the turn that makes a photograph upright; None also if its EXIF cannot be read.

    Not ImageOps.exif_transpose, which writes all tags again and fails for any invalid one.
    """
    try:
        return TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # the parser raises any exception
        return None
