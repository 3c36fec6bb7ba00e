"""What goes wrong in photographs has one rule each, in training, evaluation, prediction and `lockstep.load`."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from lockstep.data.images import decoded_image, image_table
from lockstep.data.images.decoded_image import decode
from lockstep.data.images.preprocessing import View
from lockstep.data.sources.folders import unlabelled_folder
from lockstep.data.splits import ImageError, whole
from lockstep.models.classifier import ImageFormat
from lockstep.python.images import inputs_of
from tests.support.image_files import HEIC, read, write_image

SIDE = 12  # of every photograph, so that the view does not change its pixels
VIEW = View((SIDE, SIDE), 1.0, "crop", "bilinear", "grey")
NOISE = np.random.default_rng(7).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
DEEP = np.random.default_rng(8).integers(0, 65536, (SIDE, SIDE, 3)).astype(np.uint16)
PLAIN = Image.fromarray(NOISE)


def by_pillow(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return np.array(ImageOps.exif_transpose(image).convert("RGB"))


def high_bytes(values: NDArray[np.uint16]) -> NDArray[np.uint8]:
    return np.broadcast_to((values >> 8).astype(np.uint8), (SIDE, SIDE, 3))


def deep_png(values: NDArray[np.uint16]) -> bytes:
    """An RGB PNG of 16 bits, which Pillow does not write."""
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 16, 2, 0, 0, 0)
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    chunks = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def turned(path: Path) -> NDArray[np.uint8]:
    exif = Image.Exif()
    exif[0x0112] = 6
    PLAIN.save(path, exif=exif)
    return by_pillow(path)


def printed(path: Path) -> NDArray[np.uint8]:
    """CMYK, which JPEG files of Adobe store inverted: the colours must come back."""
    smooth = np.tile(np.arange(0, 240, 20, dtype=np.uint8)[:, None, None], (1, SIDE, 3))
    Image.fromarray(smooth).convert("CMYK").save(path, quality=100)
    found = by_pillow(path)
    assert np.abs(found.astype(int) - smooth).max() <= 12
    return found


def deep_grey(path: Path) -> NDArray[np.uint8]:
    Image.fromarray(DEEP[:, :, 0].copy()).save(path)
    return high_bytes(DEEP[:, :, :1])


def deep_colour(path: Path) -> NDArray[np.uint8]:
    path.write_bytes(deep_png(DEEP))
    return high_bytes(DEEP)


def palette(path: Path) -> NDArray[np.uint8]:
    PLAIN.quantize(16).save(path)
    return by_pillow(path)


def transparent(path: Path) -> NDArray[np.uint8]:
    layer = PLAIN.copy()
    layer.putalpha(Image.linear_gradient("L").resize(PLAIN.size))
    layer.save(path)
    return np.array(Image.alpha_composite(Image.new("RGBA", layer.size, "grey"), layer).convert("RGB"))


def without_alpha(path: Path) -> NDArray[np.uint8]:
    """Four bytes a pixel, whose fourth means nothing: viewers show it opaque."""
    image = PLAIN.copy()
    image.putalpha(0)
    if path.suffix == ".bmp":
        masks = struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
        head = struct.pack("<IiiHHIIiiII", 108, SIDE, SIDE, 1, 32, 3, 4 * SIDE * SIDE, 0, 0, 0, 0) + masks + bytes(52)
        rows = np.flipud(np.array(image))[..., [2, 1, 0, 3]].tobytes()
        path.write_bytes(b"BM" + struct.pack("<IHHI", 122 + len(rows), 0, 0, 122) + head + rows)
    else:
        image.save(path)
    return NOISE


def animated(path: Path) -> NDArray[np.uint8]:
    PLAIN.save(path, save_all=True, append_images=[PLAIN.rotate(90)], lossless=True)
    return NOISE


KINDS: dict[str, tuple[str, Callable[[Path], NDArray[np.uint8]]]] = {
    "rotated": ("a.jpg", turned), "CMYK": ("a.jpg", printed), "CMYK of TIFF": ("a.tif", printed),
    "16 bits": ("a.tif", deep_grey), "16 bits of PGM": ("a.pgm", deep_grey),
    "16 bits of each colour": ("a.png", deep_colour), "palette": ("a.gif", palette),
    "transparent": ("a.png", transparent), "all alpha 0": ("a.png", without_alpha),
    "all alpha 0 of BMP": ("a.bmp", without_alpha), "animated": ("a.webp", animated),
}  # fmt: skip


def everywhere(path: Path) -> dict[str, Callable[[], Tensor]]:
    """Read the pixels of one photograph as training, evaluation, prediction and `lockstep.load` do."""
    form = ImageFormat(("a", "b"), (3, SIDE, SIDE), (0.5,) * 3, (0.25,) * 3)
    settings = {"image_size": SIDE, "background": "grey"}

    def in_folder(memory: str) -> Tensor:
        for number in range(3):  # of another class; each split needs an image
            write_image(path.parents[1] / "b" / f"{number}.png", number, SIDE, SIDE)
        splits = read(path.parents[1], **settings, memory=memory, cache=str(path.parents[2] / "cache"))
        (found,) = (
            whole(part.pixels)[row]
            for part in splits.parts.values()
            for row, name in enumerate(part.names)
            if name == f"a/{path.name}"
        )
        return found

    def predicted() -> Tensor:
        images, _ = unlabelled_folder(str(path), view=VIEW, channels=3)
        return whole(images.pixels)[0]

    def from_pillow() -> Tensor:
        with Image.open(path) as image:
            return inputs_of(image, form, VIEW).images[0]

    return {
        "streamed": lambda: in_folder("stream"),
        "evaluated": lambda: in_folder("once"),
        "cached": lambda: in_folder("host"),
        "predicted": predicted,
        "loaded from a file": lambda: inputs_of(str(path), form, VIEW).images[0],
        "loaded from Pillow": from_pillow,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "root" / "a").mkdir(parents=True)
    return tmp_path / "root" / "a"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_photograph_has_the_same_pixels_everywhere(folder: Path, kind: str) -> None:
    name, write = KINDS[kind]
    expected = write(folder / name)
    difference = {
        where: (pixels().int() - torch.from_numpy(expected.copy()).permute(2, 0, 1).int()).abs().max().item()
        for where, pixels in everywhere(folder / name).items()
    }
    # half-transparent pixels are rounded once more by Pillow's alpha_composite
    assert set(difference.values()) <= ({0, 1} if kind == "transparent" else {0}), difference
    assert len(set(difference.values())) == 1


def test_a_large_photograph_is_the_same_from_every_file_and_nearly_so_from_pillow(folder: Path) -> None:
    """The decoder of a JPEG shrinks the file; who has opened it with Pillow has all its pixels."""
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = Image.fromarray(NOISE).resize((32 * SIDE, 48 * SIDE))
    picture.save(folder / "a.jpg", exif=exif, quality=95)
    found = {where: pixels() for where, pixels in everywhere(folder / "a.jpg").items()}
    whole_image = found.pop("loaded from Pillow")
    assert len({tuple(pixels.flatten().tolist()) for pixels in found.values()}) == 1
    assert 0 < (found["cached"].int() - whole_image.int()).abs().double().mean() < 1


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("kind", ["truncated", "huge", "wide", "32 bits"])
def test_a_photograph_that_cannot_be_used_is_refused_everywhere(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "a.tif"
    size = (40_000, 1) if kind == "wide" else (SIDE, SIDE)
    Image.new("I" if kind == "32 bits" else "RGB", size).save(path)
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:-40])
    elif kind == "huge":
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", SIDE * SIDE - 1)
        write_image(folder / "b.png", height=4, width=4)
    elif kind == "wide":
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 12 * 480_000 - 1)
    reason = {
        "truncated": "truncated",
        "huge": "are more than 143 pixels",
        "wide": r"1x40000 scaled to 12x480000 \(HxW\), to cover 12x12, is more than 5,759,999 pixels",
        "32 bits": "32-bit pixels",
    }[kind]
    for where, pixels in everywhere(path).items():
        if where == "loaded from Pillow" and kind == "huge":
            continue  # who has the pixels in memory has chosen to read them
        with pytest.raises(ValueError, match=reason) as error:
            pixels()
        assert where == "loaded from Pillow" or isinstance(error.value, ImageError), where


@pytest.fixture
def without_heif(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (image_table, decoded_image):
        monkeypatch.setattr(module, "has_heif", lambda: False)


@pytest.mark.parametrize("name", ["a.heic", "a.HEIF", "a.hif", "a.jpg"])
def test_heic_is_read_upright_whatever_its_name(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pi_heif")
    (tmp_path / name).write_bytes(HEIC)
    assert image_table.list_images(tmp_path) == [name]
    pixels, size = decode(str(tmp_path / name), 3, View.from_keys(None, "auto", "crop", "auto", "white"))
    assert size == (48, 32)
    corners = [pixels[:, 4, 4], pixels[:, 4, -4], pixels[:, -4, -4]]
    for corner, colour in zip(corners, ([40, 200, 40], [200, 40, 40], [40, 40, 200]), strict=True):
        assert (corner.int() - torch.tensor(colour)).abs().max() <= 8


@pytest.mark.usefixtures("without_heif")
@pytest.mark.parametrize("name", ["a.heic", "a.jpg"])
def test_heic_says_what_to_install(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(HEIC)
    with pytest.raises(ImageError, match=r"is HEIC: install pi-heif \(pip install pi-heif\) or convert them"):
        decode(str(tmp_path / name), 3, VIEW)


@pytest.mark.parametrize("name", ["a.jxl", "a.DNG"])
def test_an_image_of_another_type_says_to_convert_it(tmp_path: Path, name: str) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / name, "TIFF")
    with pytest.raises(ImageError, match=rf"{name} is of a type that is not read: convert them, e\.g\. to JPEG"):
        decode(str(tmp_path / name), 3, VIEW)


@pytest.mark.usefixtures("without_heif")
def test_images_that_are_not_read_are_counted_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.png", "a.HEIC", "b.heic", "c.dng", "notes.txt", "readme", "._a.heic", "@eaDir/c.heic"):
        for label in ("cat", "dog"):
            (tmp_path / label / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / label / name).touch()
    hint = "install pi-heif (pip install pi-heif) or convert them, e.g. to JPEG\n"
    assert image_table.list_images(tmp_path) == ["cat/a.png", "dog/a.png"]
    assert capsys.readouterr().out == f"{tmp_path}: 6 files not read, 4 .heic, 2 .dng: {hint}"
    for _ in range(2):
        assert image_table.list_classes(str(tmp_path)).names == ["cat/a.png", "dog/a.png"]
    assert capsys.readouterr().out == f"data.root={tmp_path}: 6 files not read, 4 .heic, 2 .dng: {hint}"
