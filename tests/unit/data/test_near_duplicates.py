"""Near copies are the same picture at another size, quality, brightness or crop, and few others."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from benchmarks.near_duplicates import EDITS, THRESHOLD, tiles
from lockstep.data.near_duplicates import near_pairs, thumbnail


def thumbnails(images: list[Image.Image]) -> list[Tensor]:
    made = (thumbnail(torch.from_numpy(np.array(image)).permute(2, 0, 1)) for image in images)
    return [each for each in made if each is not None]


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    """Tiles of two photographs that are not nearly of one gray."""
    return [image for image in tiles() if np.asarray(image.convert("L"), float).std() > 8]


@pytest.mark.parametrize("edit", EDITS)
def test_edited_image_near_original(images: list[Image.Image], edit: str) -> None:
    draws = np.random.default_rng(0)
    edited = [EDITS[edit](image, draws) for image in images]
    pairs = near_pairs(thumbnails([*images, *edited]), THRESHOLD)
    found = {(first, second) for _, first, second in pairs}
    expected = {(number, number + len(images)) for number in range(len(images))}
    assert found <= expected
    clipped = 2 if edit == "brighter by 30 %" else 0  # of a white sky nothing is left
    assert len(expected - found) <= clipped


def test_indexed_as_compared(images: list[Image.Image], monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(0)
    edited = [edit(image, draws) for edit in EDITS.values() for image in images]
    pool = thumbnails([*images, *edited])
    compared = near_pairs(pool, THRESHOLD)
    monkeypatch.setattr("lockstep.data.near_duplicates.MIN_INDEXED", 0)
    assert near_pairs(pool, THRESHOLD) == compared


def test_small_and_plain_not_compared() -> None:
    noise = torch.randint(
        0, 256, (3, 29, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    assert thumbnail(noise) is not None
    assert thumbnail(noise[:, :28]) is None
    assert thumbnail(torch.full((3, 64, 64), 128, dtype=torch.uint8)) is None


def test_floats_as_bytes(images: list[Image.Image]) -> None:
    pixels = torch.from_numpy(np.array(images[0])).permute(2, 0, 1)
    made = thumbnail(pixels), thumbnail((pixels / 255 - 0.5) / 0.25)
    ((distance, _, _),) = near_pairs([each for each in made if each is not None], THRESHOLD)
    assert distance < 0.001
