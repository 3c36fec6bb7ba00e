"""The cache gives the current pixels of the files.

This holds whoever builds it, however often, and however that ends.
"""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from lockstep.data.images import decoded_splits
from lockstep.data.images.image_files import ImageFiles
from lockstep.data.images.ragged_table import Rows
from lockstep.data.splits import Splits, all_pixels
from tests.support.commands import Command
from tests.support.harness import ROOT
from tests.support.image_files import CHANGES, read, write_folder, write_image


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "my images")


@pytest.fixture
def cache(tmp_path: Path) -> str:
    return str(tmp_path / "the cache")


def entries(cache: str) -> list[Path]:
    return sorted(Path(cache).glob("*/*.rows"))


def leftovers(cache: str) -> list[Path]:
    return sorted(Path(cache).glob("*/.*.rows.*"))


def assert_same(one: Splits, other: Splits) -> None:
    assert (one.class_names, one.statistics) == (other.class_names, other.statistics)
    for a, b in zip(one.by_name.values(), other.by_name.values(), strict=True):
        assert torch.equal(all_pixels(a.pixels), all_pixels(b.pixels))
        assert torch.equal(a.targets, b.targets)
        assert a.names == b.names


# -- what it gives ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("memory", "kind"), [("auto", Rows), ("stream", ImageFiles)])
@pytest.mark.parametrize(
    "changes", [{}, {"channels": 1, "background": "black", "image_size": None}]
)
def test_cached_and_streamed_as_decoded(
    root: Path, cache: str, memory: str, kind: type, changes: dict[str, Any]
) -> None:
    in_memory = read(root, **changes)
    values = all_pixels(in_memory.train.pixels).double() / 255
    assert in_memory.statistics is not None
    assert in_memory.statistics.mean == pytest.approx(values.mean((0, 2, 3)).tolist(), rel=1e-12)
    assert in_memory.statistics.std == pytest.approx(
        values.std((0, 2, 3), correction=0).tolist(), rel=1e-12
    )
    for _ in range(2):  # built, then found
        found = read(root, cache=cache, memory=memory, **changes)
        assert isinstance(found.train.pixels, kind)
        assert_same(found, in_memory)


def test_entries_other_settings(root: Path, cache: str) -> None:
    for changes, num_entries in (
        ({}, 1),
        ({"split_seed": 7}, 1),
        ({"image_size": 9}, 2),
        ({"background": "black"}, 3),
    ):
        read(root, cache=cache, **changes)
        assert len(entries(cache)) == num_entries


# -- what makes it stale ---------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES)
def test_changed_folder_decoded_again(root: Path, cache: str, change: str) -> None:
    path = write_image(root / "red fox" / "a.bmp", seed=5)
    before = read(root, cache=cache)
    pixels = all_pixels(before.train.pixels).clone()
    (old,) = entries(cache)
    CHANGES[change](path)
    assert_same(read(root, cache=cache), read(root))
    assert old not in entries(cache)
    # A run that has it mapped continues.
    assert torch.equal(all_pixels(before.train.pixels), pixels)


def test_incomplete_file_built_again(root: Path, cache: str) -> None:
    read(root, cache=cache)
    (path,) = entries(cache)
    for content in (path.read_bytes()[:-1], path.read_bytes()[:150], b"\x93NUMPY", b""):
        path.write_bytes(content)
        assert_same(read(root, cache=cache), read(root))


# -- who builds it ---------------------------------------------------------------------------------


KILLED = """
import sys, time
from lockstep.config.composing import compose
from lockstep.data.images import decoded_splits as decoding
from tests.support.image_files import read
from pathlib import Path
decode_all = decoding.decode_all

def half(images, *args, **kwargs):
    decode_all(images.take(slice(len(images) // 2)), *args, **kwargs)
    print("half", flush=True)
    time.sleep(600)

decoding.decode_all = half
read(Path(sys.argv[1]), cache=sys.argv[2])
"""


@pytest.mark.full
@pytest.mark.processes
def test_builder_killed(root: Path, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", KILLED, str(root), cache]
    with Command(command, ROOT, stdout=subprocess.PIPE, text=True) as builder:
        assert builder.stdout is not None
        try:
            assert "half\n" in iter(builder.stdout.readline, "")
            assert (entries(cache), len(leftovers(cache))) == ([], 1)
            monkeypatch.setattr(
                "builtins.print", lambda text, **_: text.startswith("Waiting") and builder.kill()
            )
            found = read(root, cache=cache)
        finally:
            builder.kill()
    assert_same(found, read(root))
    assert leftovers(cache) == []


# -- what goes wrong -------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")
def test_foreign_files_ignored(root: Path, cache: str) -> None:
    read(root, cache=cache)
    (path,) = entries(cache)
    expected = path.read_bytes()
    note = path.with_suffix(".json")
    path.write_bytes(expected[:-1] + bytes([expected[-1] ^ 1]))
    note.write_text(json.dumps({key: [[9], [9]] for key in json.loads(note.read_text())}))
    for planted in (path, note):
        os.chown(planted, 61001, 61001)
    assert_same(read(root, cache=cache), read(root))
    assert path.read_bytes() == expected
    os.chown(path.parent, 61001, 61001)
    path.unlink()
    with pytest.raises(
        ValueError, match=r"belongs to another user: set data\.cache to a folder of your own"
    ):
        read(root, cache=cache)


def test_full_disk(root: Path, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ValueError, match=r"data\.cache=.*No space left on device"):
        read(root, cache=cache)
    assert entries(cache) == leftovers(cache) == []


def test_images_beyond_memory_streamed(
    root: Path, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 40 * 3 * 8 * 9
    monkeypatch.setattr(decoded_splits, "available_bytes", lambda: needed)
    assert isinstance(read(root, cache=cache, memory="auto").train.pixels, Rows)
    monkeypatch.setattr(decoded_splits, "available_bytes", lambda: needed - 1)
    assert isinstance(read(root, cache=cache, memory="auto").train.pixels, ImageFiles)
    # on request: the kernel pages
    assert isinstance(read(root, cache=cache, memory="host").train.pixels, Rows)
