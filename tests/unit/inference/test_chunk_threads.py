"""Threads compute chunks of a prediction, wait for nothing, and any number gives the same bits."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from lockstep.data.images.dataset_samples import Samples
from lockstep.data.images.preprocessing import Preprocessing
from lockstep.data.sources.folders import unlabeled_folder
from lockstep.data.splits import Images
from lockstep.inference.row_chunks import Chunk, compute_chunks
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.runs.files import csv_text
from tests.support import modules

SIZE = 64
CPU = torch.device("cpu")


class Sums(nn.Module):
    """Adds up an image, which several threads do in parts; cannot be copied, as some networks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.lock = threading.Lock()

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([image.square().sum() for image in images]).unsqueeze(1) * self.weight


def module_of(net: nn.Module, size: int = SIZE) -> Classifier:
    image_format = ImageFormat(("a", "b", "c", "d"), (3, size, size), (0.5,) * 3, (0.25,) * 3)
    return modules.classifier(net, image_format=image_format).eval()


def cells(
    module: Classifier, positions: Tensor, pixels: Tensor, targets: Tensor
) -> list[list[str]]:
    """Return rows of the sums; a partial of it is what `compute_chunks` calls."""
    with torch.inference_mode():
        sums = module(pixels)[:, 0]
    return [[str(at), float(each).hex()] for at, each in zip(positions.tolist(), sums, strict=True)]


def numbered(count: int, size: int, taken: list[int] | None = None) -> Iterator[tuple[int, Tensor]]:
    for number, run in enumerate(torch.arange(count).split(size)):
        if taken is not None:
            taken.append(number)
        yield number, run


@pytest.fixture
def photographs(tmp_path: Path) -> Images:
    noise = np.random.default_rng(0)
    for number in range(10):
        Image.fromarray(noise.integers(0, 256, (200, 200, 3), dtype=np.uint8)).save(
            tmp_path / f"{number}.png"
        )
    (tmp_path / "4.png").write_bytes(b"no image")
    return unlabeled_folder(
        str(tmp_path),
        preprocessing=Preprocessing.from_keys(SIZE, "auto", "crop", "auto", "white"),
        channels=3,
    )[0]


@pytest.mark.parametrize("count", [1, 3])
def test_chunk_rows_and_errors(photographs: Images, count: int) -> None:
    """Every file has a row or an error, and none is read too early."""
    taken: list[int] = []
    found: list[Chunk] = []
    for chunk in compute_chunks(
        CPU, photographs, numbered(10, 3, taken), partial(cells, module_of(Sums())), count
    ):
        assert len(taken) <= len(found) + count
        found.append(chunk)
    rows = "".join(chunk.rows for chunk in sorted(found)).splitlines()
    assert [line.split(",")[0] for line in rows] == [*"012356789"]
    assert [(chunk.number, len(chunk.errors)) for chunk in sorted(found)] == [
        (0, 0),
        (1, 1),
        (2, 0),
        (3, 0),
    ]


@pytest.mark.parametrize("from_files", [True, False])
def test_bits_any_num_threads(photographs: Images, from_files: bool) -> None:
    pixels = torch.randint(
        0, 256, (30, 3, 256, 256), generator=torch.Generator().manual_seed(0)
    ).to(torch.uint8)
    images = (
        photographs
        if from_files
        else Images(pixels, torch.zeros(30, dtype=torch.int64), [*map(str, range(30))])
    )
    module, before = module_of(Sums(), images.pixels.shape[2]), torch.get_num_threads()
    plain, found = set(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            chunks = compute_chunks(
                CPU, images, numbered(len(images), 4), partial(cells, module), count
            )
            found.append(sorted(chunks))
            plain.add(csv_text(cells(module, torch.arange(30), pixels, pixels)))
    finally:
        torch.set_num_threads(before)
    assert len(plain) > 1
    assert found[0] == found[1] == found[2]


def test_dataset_single_reader() -> None:
    readers: set[int] = set()

    class Numbers(torch.utils.data.Dataset[Any]):
        def __getitem__(self, row: int) -> tuple[Tensor, int]:
            readers.add(threading.get_ident())
            return torch.full((3, SIZE, SIZE), row, dtype=torch.uint8), row % 4

    none = torch.empty(0, 3, SIZE, SIZE, dtype=torch.uint8), torch.empty(0, dtype=torch.int64)
    samples = Samples(Numbers(), torch.arange(6), "data", True, *none)
    images = Images(samples, none[1], [str(name) for name in range(6)])

    def rows_of(positions: Tensor, pixels: Tensor, targets: Tensor) -> list[list[str]]:
        assert pixels[:, 0, 0, 0].tolist() == positions.tolist()
        return [[str(target)] for target in targets.tolist()]

    chunks = compute_chunks(CPU, images, numbered(6, 2), rows_of, 3)
    assert "".join(chunk.rows for chunk in sorted(chunks)).split() == [*"012301"]
    assert readers == {threading.get_ident()}
