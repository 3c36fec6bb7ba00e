"""From image files to uint8 pixels, the same in training, prediction and a cache."""

import contextlib
import re
from typing import NamedTuple

import numpy as np
import torch
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from torch import Tensor

from lockstep.data.images.preprocessing import View, size_of
from lockstep.data.splits import ImageError

# Pillow has 43 parsers, of PostScript among others: no file reaches the rest
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
TURNS = {  # by EXIF orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SWAPS = [TURNS[orientation] for orientation in (5, 6, 7, 8)]  # height and width
# what is done about files that are not plain upright photographs of 8 bits, by the name that `data check` counts
SPECIAL = {
    "rotated": "turned upright by their EXIF data",
    "CMYK": "converted to RGB without their colour profile",
    "16 bits": "cut to 8",
    "palette": "converted to the colours",
    "transparent": "laid on {background}",
    "all alpha 0": "taken without their alpha",
    "animated": "of which the first frame is used",
}
# factor and divisor from a transparent colour that Pillow 13 leaves as the PNG stores it, to that of the pixels
TRANSPARENT_SCALES = {"L;2": (85, 1), "L;4": (17, 1), "RGB;16B": (1, 256)}


class DecodedImage(NamedTuple):
    """An image as uint8 (C, H, W), the `size` (H, W) of the file, upright, and the names in `SPECIAL` that apply.

    The decoder of a JPEG may have shrunk it.
    """

    pixels: Tensor
    size: tuple[int, int]
    special: tuple[str, ...]


def decode(path: str, channels: int, view: View) -> DecodedImage:
    """Decode one image file: upright, transparent pixels laid on a background, 16 bits cut to 8.

    Raises ImageError, also for an image that would be too large once it is scaled.

    By Pillow, because torchvision's decoders are deprecated since 0.29; the RGB pixels are the same. The decoder of a
    JPEG shrinks it by 2, 4 or 8 if it stays twice as large as `view` scales it, at least.
    """
    try:
        with Image.open(path, formats=FORMATS) as file:
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and file.width * file.height > limit:
                raise ValueError(f"{file.height}x{file.width} (HxW) are more than {limit:,} pixels")
            size = _shrunk(file, view)
            pixels, special = pixels_of(file, channels, view.background)
            special = (*special, "animated") if _is_animated(file) else special
            size = size or size_of(pixels)
            view.scaled_size(*size)
            return DecodedImage(pixels, size, special)
    except Exception as error:  # decoders raise any exception
        text = " ".join(str(error).split()) or type(error).__name__
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else text
        raise ImageError([f"image {path} cannot be read ({reason}): replace or delete it."]) from error


def _shrunk(file: ImageFile, view: View) -> tuple[int, int] | None:
    """Have the decoder of a JPEG shrink it, if it is much larger than its view. Returns its size (H, W) then."""
    if file.format not in ("JPEG", "MPO") or view.size is None:
        return None
    size = upright_size(file)
    factor = min(side // (2 * scaled) for side, scaled in zip(size, view.scaled_size(*size), strict=True))
    if factor < 2:
        return None
    file.draft(file.mode, (file.width // factor, file.height // factor))
    return size


def pixels_of(image: Image.Image, channels: int, background: str) -> tuple[Tensor, tuple[str, ...]]:
    """Return the uint8 pixels (C, H, W) of a Pillow image, as in `decode`, and the names in `SPECIAL` that apply.

    `background` is a colour of PIL.ImageColor. Raises ValueError for 32-bit pixels, and errors of Pillow.
    """
    tile = next(iter(getattr(image, "tile", [])), None)
    stored = str(tile and tile.args)
    image.load()  # sets mode and EXIF
    if image.mode == "I" and image.format == "PPM":  # Pillow reads PGM of 9 to 16 bits as 32
        image = image.convert("I;16")
    turn, mode, alpha = _turn(image), image.mode, (255, 255)
    if mode.startswith("I;16"):
        image = _cut_to_eight_bits(image)
    elif mode in ("I", "F"):
        raise ValueError(f"32-bit pixels (mode {mode})")
    elif tile and "transparency" in image.info and tile.args in TRANSPARENT_SCALES:
        factor, divisor = TRANSPARENT_SCALES[tile.args]
        colour = np.array(image.info["transparency"]) * factor // divisor
        image.info["transparency"] = tuple(colour.tolist()) if colour.ndim else int(colour)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        alpha = layer.getchannel("A").getextrema()
        # of BMPs of 32 bits, whose fourth byte means nothing: viewers show them opaque
        image = layer.convert("RGB") if alpha == (0, 0) else Image.new("RGB", layer.size, background)
        image.paste(layer, mask=layer)
    wanted = "L" if channels == 1 else "RGB"
    image = image if image.mode == wanted else image.convert(wanted)
    pixels = np.array(image if turn is None else image.transpose(turn))
    found = {
        "rotated": turn is not None,
        "CMYK": mode == "CMYK",
        "16 bits": mode.startswith("I;16") or re.search(r";16[BLN]", stored) is not None,
        "palette": mode in ("P", "PA"),
        "transparent": alpha not in ((0, 0), (255, 255)),
        "all alpha 0": alpha == (0, 0),
    }
    tensor = torch.from_numpy(pixels).view(*pixels.shape[:2], channels).permute(2, 0, 1)
    return tensor, tuple(name for name, is_there in found.items() if is_there)


def upright_size(file: ImageFile) -> tuple[int, int]:
    """(H, W) of an opened file once it is turned upright; Pillow turns TIFF itself."""
    is_swapped = file.format != "TIFF" and _turn(file) in SWAPS
    return (file.width, file.height) if is_swapped else (file.height, file.width)


def _turn(image: Image.Image) -> Image.Transpose | None:
    """Return the turn that makes a photograph upright; None also if its EXIF cannot be read.

    Not ImageOps.exif_transpose, which writes all tags again and fails for any invalid one.
    """
    try:
        return TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # the parser raises any exception
        return None


def _cut_to_eight_bits(image: Image.Image) -> Image.Image:
    """Convert 16-bit grey to mode L, or to LA if one grey is transparent, which Pillow 13 finds in 8 bits only."""
    deep, transparent = np.asarray(image), image.info.get("transparency")
    cut = Image.fromarray((deep >> 8).astype(np.uint8))
    if transparent is not None:
        cut.putalpha(Image.fromarray(255 * (deep != transparent).astype(np.uint8)))
    return cut


def _is_animated(file: ImageFile) -> bool:
    """Return whether a file has more frames or pages. Previews and depth maps of photographs (MPO) do not count."""
    with contextlib.suppress(Exception):  # GIF looks for the next frame, which may be damaged
        return file.format != "MPO" and getattr(file, "is_animated", False)
    return False
