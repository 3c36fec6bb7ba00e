"""Plain JPEGs have the pixels of Pillow, and damaged files of all formats the same end by both decoders.

`python -m tests.unit.data.test_decoders SEED COUNT` decodes COUNT damaged files, and prints the number of each before.
"""

import io
import itertools
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageCms, ImageFile

from lockstep.data.images import decoded_image
from lockstep.data.images.decoded_image import FORMATS, DecodedImage, decode
from lockstep.data.images.preprocessing import View
from lockstep.data.splits import ImageError
from tests.support.harness import ROOT, environ

SEED, COUNT = 58, 2000
SIZES = [(1, 1), (1, 40), (4, 4), (6, 6), (7, 7), (9, 9), (17, 17), (33, 50), (101, 77), (200, 64)]
VIEWS = [View.from_keys(size, 1.0, "crop", "bilinear", "white") for size in (None, 1, 8, 30)]
plain_jpeg = decoded_image._plain_jpeg


def photograph(height: int, width: int) -> Image.Image:
    draws = np.random.default_rng((height, width))
    coarse = draws.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), dtype=np.uint8)
    smooth = np.array(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), int)
    return Image.fromarray((smooth + draws.integers(-20, 20, smooth.shape)).clip(0, 255).astype(np.uint8))


def stored(image: Image.Image, form: str = "JPEG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = orientation, "a maker of cameras"
    return exif


def pieces(data: bytes) -> list[bytes]:
    """The parts of a JPEG, which begin with its markers."""
    return re.split(rb"(?=\xff[\xc0-\xfe])", data)


def jpegs(height: int, width: int) -> dict[str, bytes]:
    """JPEGs of all kinds. Those that Pillow has to decode are named so."""
    photo = photograph(height, width)
    found = {
        name: simplejpeg.encode_jpeg(np.array(photo), colorsubsampling=name)
        for name in ("444", "422", "420", "440", "411")
    }
    for subsampling, progressive, quality in itertools.product(range(3), (False, True), (30, 95)):
        options = {"subsampling": subsampling, "progressive": progressive, "quality": quality}
        found[f"{options}"] = stored(photo, **options, restart_marker_blocks=3 * (quality == 95))
    plain, scans = found["420"], pieces(stored(photo, progressive=True))
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return found | {
        **{f"orientation {number}": stored(photo, exif=turned(number)) for number in range(1, 9)},
        "grey": stored(photo.convert("L")),
        "progressive grey": stored(photo.convert("L"), progressive=True, exif=turned(7)),
        "RGB of Adobe": stored(photo, keep_rgb=True),
        "profile and comment": stored(photo, icc_profile=profile, comment=b"a comment"),
        "thumbnail": stored(photo, exif=turned(6).tobytes() + stored(photo.resize((16, 12)))),
        "MPO": stored(photo, "MPO", save_all=True, append_images=[photo.rotate(180)]),
        "bytes after the end": plain + b"a film" * 1000 + found["444"],
        "last scans missing": b"".join(scans[:-5]) + scans[-1],
        "Pillow: CMYK": stored(photo.convert("CMYK")),
        "Pillow: bytes before a marker": plain.replace(b"\xff\xdb", b"\0\0\xff\xdb", 1),
    }


def others() -> list[bytes]:
    """Small files of all other formats."""
    photo, deep = photograph(23, 37), Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100)
    clear = photo.copy()
    clear.putalpha(Image.linear_gradient("L").resize(photo.size))
    frames: dict[str, Any] = {"save_all": True, "append_images": [photo.rotate(180)]}
    return [
        *(stored(photo, form, exif=turned(6)) for form in FORMATS if form != "JPEG"),
        *(stored(photo, form, **frames) for form in ("PNG", "WEBP", "GIF", "TIFF", "AVIF")),
        *(stored(clear, form) for form in ("PNG", "WEBP", "TIFF", "BMP", "JPEG2000", "AVIF")),
        *(stored(deep, form) for form in ("PNG", "TIFF", "PPM", "JPEG2000")),
        *(stored(photo.quantize(7), form) for form in ("PNG", "GIF", "BMP", "TIFF")),
        *(stored(photo.convert("1"), form) for form in ("PNG", "TIFF", "PPM")),
        *(stored(photo, "TIFF", compression=name) for name in ("jpeg", "tiff_lzw", "tiff_deflate", "packbits")),
        stored(photo, "WEBP", lossless=True),
        stored(photo, "JPEG2000", no_jp2=True),
    ]


def damaged(draws: random.Random, files: list[bytes]) -> bytes:
    """A file with bytes or whole parts changed, removed, doubled, cut off or mixed with those of another."""
    data, others = draws.choice(files), pieces(draws.choice(files))
    for _ in range(draws.choice((1, 1, 1, 2, 4))):
        parts, length = pieces(data), draws.choice((1, 1, 2, 4, 40))
        place = draws.randrange(len(parts))
        part = parts[place]
        at = min(draws.choice((draws.randrange(len(part) + 1), int(draws.expovariate(0.1)))), len(part))
        new = draws.choice((draws.randbytes(length), length * bytes([draws.choice((0, 1, 127, 255))])))
        changed = draws.choice((
            *2 * (part[:at] + new + part[at + length :],), part[:at] + new + part[at:], part[:at] + part[at + length :],
            part[:1] + new[:1] + part[2:], part + part, part + draws.choice(others), b"",
        ))  # fmt: skip
        data = b"".join((*parts[:place], changed, *parts[place + 1 :]))
    return data if draws.random() < 0.9 else data[: draws.randrange(len(data) + 1)]


def outcome(path: Path, channels: int, view: View) -> DecodedImage | str:
    try:
        return decode(str(path), channels, view)
    except ImageError as error:
        return str(error)


def by_both(path: Path, channels: int, view: View) -> tuple[str, str]:
    """Return which decoder read a file, or the error, and how the result of Pillow alone differs."""
    found = []

    def spied(file: ImageFile.ImageFile, channels: int) -> Any:
        found.append(plain_jpeg(file, channels))
        return found[-1]

    with patch.object(decoded_image, "_plain_jpeg", spied):
        ours = outcome(path, channels, view)
    with patch.object(decoded_image, "_plain_jpeg", return_value=None):
        theirs = outcome(path, channels, view)
    if isinstance(ours, str) or isinstance(theirs, str):
        return str(ours), "" if ours is theirs or str(ours) == theirs else f"by Pillow {theirs}"
    decoder = "Pillow" if found[0] is None else "simplejpeg"
    if (ours.pixels.shape, *ours[1:]) != (theirs.pixels.shape, *theirs[1:]):
        return decoder, f"{ours.pixels.shape}, {ours[1:]}; by Pillow {theirs.pixels.shape}, {theirs[1:]}"
    apart = (ours.pixels.int() - theirs.pixels.int()).abs()
    share = (apart > 0).double().mean().item()
    return decoder, f"{share:.2%} of the values by up to {apart.max().item()}" if share else ""


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_jpegs_have_the_pixels_of_pillow(tmp_path: Path, size: tuple[int, int]) -> None:
    path = tmp_path / "a.jpg"
    for (name, data), view, channels in itertools.product(jpegs(*size).items(), VIEWS, (1, 3)):
        path.write_bytes(data)
        is_plain = "Pillow" not in name and (channels == 3 or "grey" in name)
        expected = ("simplejpeg" if is_plain else "Pillow", "")
        assert by_both(path, channels, view) == expected, (name, view, channels)


@pytest.mark.processes
def test_damaged_files_end_the_same_by_both_decoders() -> None:
    words = [sys.executable, "-X", "faulthandler", "-m", "tests.unit.data.test_decoders", str(SEED), str(COUNT)]
    done = subprocess.run(words, cwd=ROOT, env=environ(), capture_output=True, text=True)
    *_, last = done.stdout.splitlines()
    assert done.returncode == 0, f"file {last} of seed {SEED}: {done.stderr[-2000:]}"
    ends = json.loads(last)
    assert ends.pop("MiB") < 100
    assert ends.keys() == {"simplejpeg", "Pillow", "refused"}
    assert min(ends.values()) > COUNT // 50


def decode_damaged(seed: int, count: int) -> None:
    Image.MAX_IMAGE_PIXELS = 1 << 20  # what gets past it shows in the memory
    files, ends = (list(jpegs(23, 37).values()), others()), Counter[str]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(count):
            print(number, flush=True)
            draws, path = random.Random(f"{seed} {number}"), Path(folder, "image")
            path.write_bytes(damaged(draws, files[number % 2]))
            end, difference = by_both(path, draws.choice((1, 3, 3)), draws.choice(VIEWS))
            assert not difference, f"{end}; {difference}"
            ends["refused" if end.startswith(f"image {path} cannot be read (") else end] += 1
    assert all("PIL" in warning.filename for warning in caught), caught
    mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> (20 if sys.platform == "darwin" else 10)
    print(json.dumps({**ends, "MiB": mib}))


if __name__ == "__main__":
    decode_damaged(*map(int, sys.argv[1:]))
