"""Plain JPEGs have the pixels of Pillow, and damaged ones the same end by both decoders."""

import io
import itertools
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageCms, ImageFile

from lockstep.data.images import decoded_image
from lockstep.data.images.decoded_image import DecodedImage, decode
from lockstep.data.images.preprocessing import Preprocessing
from lockstep.data.splits import ImageError

SIZES = [(1, 1), (7, 7), (33, 50), (101, 77)]
PREPROCESSINGS = [
    Preprocessing.from_keys(size, 1.0, "crop", "bilinear", "white") for size in (None, 8)
]
plain_jpeg = decoded_image._plain_jpeg


def photograph(height: int, width: int) -> Image.Image:
    draws = np.random.default_rng((height, width))
    coarse = draws.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), dtype=np.uint8)
    smooth = np.array(
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), int
    )
    return Image.fromarray(
        (smooth + draws.integers(-20, 20, smooth.shape)).clip(0, 255).astype(np.uint8)
    )


def stored(image: Image.Image, form: str = "JPEG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = orientation, "a maker of cameras"
    return exif


def jpegs(height: int, width: int) -> dict[str, bytes]:
    """JPEGs of all kinds. Those that Pillow has to decode are named so."""
    photo = photograph(height, width)
    found = {
        name: simplejpeg.encode_jpeg(np.array(photo), colorsubsampling=name)
        for name in ("444", "422", "420", "440", "411")
    }
    for subsampling, progressive in itertools.product(range(3), (False, True)):
        quality = 95 if progressive else 30
        options = {"subsampling": subsampling, "progressive": progressive, "quality": quality}
        found[f"{options}"] = stored(photo, **options, restart_marker_blocks=3 * (quality == 95))
    plain = found["420"]
    scans = re.split(rb"(?=\xff[\xc0-\xfe])", stored(photo, progressive=True))  # at its markers
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return found | {
        **{f"orientation {number}": stored(photo, exif=turned(number)) for number in range(1, 9)},
        "gray": stored(photo.convert("L")),
        "progressive gray": stored(photo.convert("L"), progressive=True, exif=turned(7)),
        "RGB of Adobe": stored(photo, keep_rgb=True),
        "profile and comment": stored(photo, icc_profile=profile, comment=b"a comment"),
        "thumbnail": stored(photo, exif=turned(6).tobytes() + stored(photo.resize((16, 12)))),
        "MPO": stored(photo, "MPO", save_all=True, append_images=[photo.rotate(180)]),
        "bytes after the end": plain + b"a film" * 1000 + found["444"],
        "last scans missing": b"".join(scans[:-5]) + scans[-1],
        "Pillow: CMYK": stored(photo.convert("CMYK")),
        "Pillow: bytes before a marker": plain.replace(b"\xff\xdb", b"\0\0\xff\xdb", 1),
    }


def outcome(path: Path, channels: int, preprocessing: Preprocessing) -> DecodedImage | str:
    try:
        return decode(str(path), channels, preprocessing)
    except ImageError as error:
        return str(error)


def by_both(path: Path, channels: int, preprocessing: Preprocessing) -> tuple[str, str]:
    """Return the decoder that read a file, or the error, and the difference from Pillow alone."""
    found = []

    def spied(file: ImageFile.ImageFile, channels: int) -> Any:
        found.append(plain_jpeg(file, channels))
        return found[-1]

    with patch.object(decoded_image, "_plain_jpeg", spied):
        ours = outcome(path, channels, preprocessing)
    with patch.object(decoded_image, "_plain_jpeg", return_value=None):
        theirs = outcome(path, channels, preprocessing)
    if isinstance(ours, str) or isinstance(theirs, str):
        return str(ours), "" if ours is theirs or str(ours) == theirs else f"by Pillow {theirs}"
    decoder = "Pillow" if found[0] is None else "simplejpeg"
    if (ours.pixels.shape, *ours[1:]) != (theirs.pixels.shape, *theirs[1:]):
        return (
            decoder,
            f"{ours.pixels.shape}, {ours[1:]}; by Pillow {theirs.pixels.shape}, {theirs[1:]}",
        )
    apart = (ours.pixels.int() - theirs.pixels.int()).abs()
    share = (apart > 0).double().mean().item()
    return decoder, f"{share:.2%} of the values by up to {apart.max().item()}" if share else ""


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_jpegs_as_pillow(tmp_path: Path, size: tuple[int, int]) -> None:
    path = tmp_path / "a.jpg"
    for (name, data), preprocessing, channels in itertools.product(
        jpegs(*size).items(), PREPROCESSINGS, (1, 3)
    ):
        path.write_bytes(data)
        is_plain = "Pillow" not in name and (channels == 3 or "gray" in name)
        expected = ("simplejpeg" if is_plain else "Pillow", "")
        assert by_both(path, channels, preprocessing) == expected, (name, preprocessing, channels)


@pytest.mark.filterwarnings("ignore")  # Pillow's of damaged files
def test_damaged_jpegs_as_pillow(tmp_path: Path) -> None:
    ends, path = Counter[str](), tmp_path / "a.jpg"
    files = list(jpegs(23, 37).values())
    for number in range(250):
        draws = random.Random(number)
        data = bytearray(draws.choice(files))
        place = draws.randrange(len(data))
        if draws.random() < 0.3:
            del data[place:]
        else:
            data[place : place + 4] = draws.randbytes(4)
        path.write_bytes(data)
        end, difference = by_both(path, 3, draws.choice(PREPROCESSINGS))
        assert not difference, f"{number}: {end}; {difference}"
        ends["refused" if "cannot be read" in end else end] += 1
    assert ends.keys() == {"simplejpeg", "Pillow", "refused"}
