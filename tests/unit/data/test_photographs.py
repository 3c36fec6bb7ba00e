"""A defect of photographs has one rule in training, evaluation, prediction and `lockstep.load`."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from lockstep.data.images import decoded_image, image_table
from lockstep.data.images.decoded_image import decode
from lockstep.data.images.image_table import IMAGE_SUFFIXES
from lockstep.data.images.preprocessing import Preprocessing
from lockstep.data.sources.folders import unlabeled_folder
from lockstep.data.splits import ImageError, all_pixels
from lockstep.models.classifier import ImageFormat
from lockstep.python.images import inputs_of
from tests.support.image_files import HEIC, read, write_image

SIDE = 12  # of every photograph, so that the preprocessing does not change its pixels
PREPROCESSING = Preprocessing((SIDE, SIDE), 1.0, "crop", "bilinear", "gray")
NOISE = np.random.default_rng(7).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
DEEP = np.random.default_rng(8).integers(0, 65536, (SIDE, SIDE, 3)).astype(np.uint16)
PLAIN = Image.fromarray(NOISE)


def by_pillow(path: Path, background: str = "gray") -> Image.Image:
    """Read the first frame upright, composited on the background."""
    with Image.open(path) as file:
        image = ImageOps.exif_transpose(file)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, background), layer)
    return image.convert("RGB")


def high_bytes(values: NDArray[np.uint16]) -> Image.Image:
    return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")


def deep_png(values: NDArray[np.uint16]) -> bytes:
    """An RGB PNG of 16 bits, which Pillow does not write."""
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 16, 2, 0, 0, 0)
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def orientation(number: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


GRAY, PALETTE, LAYER, CLEAR = PLAIN.convert("L"), PLAIN.quantize(16), PLAIN.copy(), PLAIN.copy()
LAYER.putalpha(Image.linear_gradient("L").resize(PLAIN.size))
CLEAR.putalpha(0)
# the name of a file, its contents, and how Pillow saves them
KINDS: dict[str, tuple[str, Image.Image | bytes, dict[str, Any]]] = {
    **{suffix: (f"a{suffix.upper()}", PLAIN, {}) for suffix in IMAGE_SUFFIXES},
    **{f"orientation {n}": ("a.png", PLAIN, {"exif": orientation(n)}) for n in range(1, 9)},
    "orientation of JPEG": ("a.jpg", PLAIN, {"exif": orientation(6)}),
    "CMYK": ("a.jpg", PLAIN.convert("CMYK"), {"quality": 100}),
    "CMYK of TIFF": ("a.tif", PLAIN.convert("CMYK"), {}),
    "16 bits of gray": ("a.tif", Image.fromarray(DEEP[:, :, 0].copy()), {}),
    "16 bits of PGM": ("a.pgm", Image.fromarray(DEEP[:, :, 0].copy()), {}),
    "16 bits of each color": ("a.png", deep_png(DEEP), {}),
    "all alpha 0": ("a.png", CLEAR, {}),
    **{
        f"RGBA {suffix}": (f"a{suffix}", LAYER, {})
        for suffix in (".png", ".webp", ".tif", ".avif", ".jp2")
    },
    **{f"LA {suffix}": (f"a{suffix}", LAYER.convert("LA"), {}) for suffix in (".png", ".jp2")},
    "palette, transparent bytes": ("a.png", PALETTE, {"transparency": bytes(range(0, 256, 16))}),
    "palette, opaque bytes": ("a.png", PALETTE, {"transparency": bytes([255] * 16)}),
    "palette, transparent index": ("a.png", PALETTE, {"transparency": 1}),
    "palette of GIF, transparent index": ("a.gif", PALETTE, {"transparency": 1}),
    "gray, transparent value": ("a.png", GRAY, {"transparency": GRAY.getpixel((0, 0))}),
    "RGB, transparent value": ("a.png", PLAIN, {"transparency": PLAIN.getpixel((0, 0))}),
    **{
        f"animated {suffix}": (
            f"a{suffix}",
            PLAIN,
            {"save_all": True, "append_images": [PLAIN.rotate(90)]},
        )
        for suffix in (".gif", ".webp", ".png", ".tif", ".avif")
    },
}
SPECIAL = {
    "16 bits of gray": high_bytes(DEEP[:, :, 0]),
    "16 bits of PGM": high_bytes(DEEP[:, :, 0]),
    "16 bits of each color": high_bytes(DEEP),
    "all alpha 0": PLAIN,
}


FORMAT = ImageFormat(("a", "b"), (3, SIDE, SIDE), (0.5,) * 3, (0.25,) * 3)


def opened_by_user(path: Path) -> Tensor:
    """Pixels of an image that was opened with Pillow, for `lockstep.load`."""
    with Image.open(path) as image:
        return inputs_of(image, FORMAT, PREPROCESSING).images[0]


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_as_pillow(tmp_path: Path, kind: str) -> None:
    name, content, options = KINDS[kind]
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content.save(path, **options)
    expected = SPECIAL[kind] if kind in SPECIAL else by_pillow(path)
    pixels = torch.from_numpy(np.array(expected)).permute(2, 0, 1).int()
    # half-transparent pixels are rounded once more by Pillow's alpha_composite
    limit = int(kind.startswith(("RGBA", "LA", "palette")))
    for found in (decode(str(path), 3, PREPROCESSING).pixels, opened_by_user(path)):
        assert (found.int() - pixels).abs().max() <= limit
    gray = decode(str(path), 1, PREPROCESSING).pixels[0].int()
    assert (gray - torch.from_numpy(np.array(expected.convert("L"))).int()).abs().max() <= limit


def test_shrunk_jpeg_everywhere(tmp_path: Path) -> None:
    """The decoder of a JPEG shrinks the file; who has opened it with Pillow has all its pixels."""
    root = tmp_path / "root"
    for number in range(3):  # each split needs an image of another class
        write_image(root / "b" / f"{number}.png", number, SIDE, SIDE)
    path = write_image(root / "a" / "a.jpg")
    Image.fromarray(NOISE).resize((32 * SIDE, 48 * SIDE)).save(
        path, exif=orientation(6), quality=95
    )
    unlabeled, _ = unlabeled_folder(str(path), preprocessing=PREPROCESSING, channels=3)
    found = [all_pixels(unlabeled.pixels)[0], inputs_of(str(path), FORMAT, PREPROCESSING).images[0]]
    for memory in ("stream", "once", "host"):
        splits = read(
            root, image_size=SIDE, background="gray", memory=memory, cache=str(tmp_path / "cache")
        )
        (part,) = (part for part in splits.by_name.values() if "a/a.jpg" in part.names)
        found.append(all_pixels(part.pixels)[part.names.index("a/a.jpg")])
    for pixels in found[1:]:
        assert torch.equal(pixels, found[0])
    assert 0 < (found[0].int() - opened_by_user(path).int()).abs().double().mean() < 1


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("image", "end", "max_pixels", "reason"),
    [
        (PLAIN, -40, 10**9, "truncated"),
        (PLAIN, None, SIDE * SIDE - 1, "are more than 143 pixels"),
        (
            Image.new("RGB", (40_000, 1)),
            None,
            12 * 480_000 - 1,
            r"1x40000 scaled to 12x480000 \(HxW\), to cover 12x12, is more than 5,759,999 pixels",
        ),
        (Image.new("I", (SIDE, SIDE)), None, 10**9, "32-bit pixels"),
    ],
    ids=["truncated", "huge", "wide", "32 bits"],
)
def test_unusable_image_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    image: Image.Image,
    end: int | None,
    max_pixels: int,
    reason: str,
) -> None:
    path = tmp_path / "a.tif"
    image.save(path)
    path.write_bytes(path.read_bytes()[:end])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", max_pixels)
    with pytest.raises(ImageError, match=reason):
        decode(str(path), 3, PREPROCESSING)
    if max_pixels >= SIDE * SIDE:  # who has the pixels in memory has chosen to read them
        with pytest.raises(ValueError, match=reason):
            opened_by_user(path)


@pytest.fixture
def without_heif(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (image_table, decoded_image):
        monkeypatch.setattr(module, "has_heif", lambda: False)


@pytest.mark.parametrize("name", ["a.HEIF", "a.jpg"])
def test_heic(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pi_heif")
    (tmp_path / name).write_bytes(HEIC)
    assert image_table.list_images(tmp_path) == [name]
    pixels, size = decode(
        str(tmp_path / name), 3, Preprocessing.from_keys(None, "auto", "crop", "auto", "white")
    )
    assert size == (48, 32)
    corners = [pixels[:, 4, 4], pixels[:, 4, -4], pixels[:, -4, -4]]
    for corner, color in zip(corners, ([40, 200, 40], [200, 40, 40], [40, 40, 200]), strict=True):
        assert (corner.int() - torch.tensor(color)).abs().max() <= 8


@pytest.mark.usefixtures("without_heif")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a.heic", "pip install pi-heif"),
        ("a.jxl", "type"),
        ("a.DNG", "type"),
    ],
)
def test_decode_unread_type(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / name).write_bytes(HEIC)
    with pytest.raises(ImageError, match=reason):
        decode(str(tmp_path / name), 3, PREPROCESSING)


@pytest.mark.usefixtures("without_heif")
def test_unread_images_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (
        "a.png",
        "a.HEIC",
        "b.heic",
        "c.dng",
        "notes.txt",
        "readme",
        "._a.heic",
        "@eaDir/c.heic",
    ):
        for label in ("cat", "dog"):
            (tmp_path / label / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / label / name).touch()
    assert image_table.list_images(tmp_path) == ["cat/a.png", "dog/a.png"]
    assert "6 files not read, 4 .heic, 2 .dng" in capsys.readouterr().out
