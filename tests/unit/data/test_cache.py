"""The cache gives the pixels of the files as they are now, whoever builds it, however often, and however that ends."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import distributed as dist

from lockstep.config.composing import compose
from lockstep.data.images import decoded_splits
from lockstep.data.images.image_files import ImageFiles
from lockstep.data.images.image_table import list_classes
from lockstep.data.images.ragged_table import Rows
from lockstep.data.splits import Splits, whole
from lockstep.runs import naming
from tests.support.commands import Command
from tests.support.harness import ROOT
from tests.support.image_files import CHANGES, read, write_folder, write_image
from tests.support.processes import Ranks


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
    for a, b in zip(one.parts.values(), other.parts.values(), strict=True):
        assert torch.equal(whole(a.pixels), whole(b.pixels))
        assert torch.equal(a.targets, b.targets)
        assert a.names == b.names


# -- what it gives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("memory", "kind"), [("auto", Rows), ("stream", ImageFiles)])
@pytest.mark.parametrize("changes", [{}, {"channels": 1, "background": "black"}, {"image_size": None}])
def test_cached_and_streamed_images_are_those_decoded_into_memory(
    root: Path, cache: str, memory: str, kind: type, changes: dict[str, Any]
) -> None:
    in_memory = read(root, **changes)
    values = whole(in_memory.train.pixels).double() / 255
    assert in_memory.statistics is not None
    assert in_memory.statistics.mean == pytest.approx(values.mean((0, 2, 3)).tolist(), rel=1e-12)
    assert in_memory.statistics.std == pytest.approx(values.std((0, 2, 3), correction=0).tolist(), rel=1e-12)
    for _ in range(2):  # built, then found
        found = read(root, cache=cache, memory=memory, **changes)
        assert isinstance(found.train.pixels, kind)
        assert_same(found, in_memory)


def test_another_split_builds_nothing_and_other_pixels_have_another_folder(root: Path, cache: str) -> None:
    read(root, cache=cache)
    before = [path.stat().st_ino for path in entries(cache)]
    read(root, cache=cache, val_fraction=0.1, split_seed=7)
    assert [path.stat().st_ino for path in entries(cache)] == before
    read(root, cache=cache, image_size=9)
    read(root, cache=cache, background="black")
    assert len({path.parent for path in entries(cache)}) == 3


# -- what makes it stale -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_folder_is_decoded_again_and_its_old_entry_deleted(root: Path, cache: str, change: str) -> None:
    path = write_image(root / "red fox" / "a.bmp", seed=5)
    before = read(root, cache=cache)
    pixels = whole(before.train.pixels).clone()
    (old,) = entries(cache)
    CHANGES[change](path)
    assert_same(read(root, cache=cache), read(root))
    assert old not in entries(cache)
    assert len(entries(cache)) == 1
    assert torch.equal(whole(before.train.pixels), pixels)  # a run that has it mapped continues


def test_an_incomplete_file_is_built_again(root: Path, cache: str) -> None:
    read(root, cache=cache)
    (path,) = entries(cache)
    for content in (path.read_bytes()[:-1], path.read_bytes()[:150], b"\x93NUMPY", b""):
        path.write_bytes(content)
        assert_same(read(root, cache=cache), read(root))


# -- who builds it -----------------------------------------------------------------------------------------------------


def _build(root: str, cache: str) -> tuple[int, float]:
    """How often this process decoded, and the sum of the pixels it got."""
    with mock.patch.object(decoded_splits, "decode_all", wraps=decoded_splits.decode_all) as decode_all:
        dist.barrier()
        splits = read(Path(root), cache=cache)
    return decode_all.call_count, whole(splits.train.pixels).double().sum().item()


@pytest.mark.full
@pytest.mark.processes
def test_of_three_builders_at_once_one_builds_and_all_have_the_pixels(ranks: Ranks, tmp_path: Path, cache: str) -> None:
    root = write_folder(tmp_path / "many", count=150)
    found = ranks.run(3, _build, str(root), cache)
    assert sorted(count for count, _ in found) == [0, 0, 1]
    assert {total for _, total in found} == {whole(read(root).train.pixels).double().sum().item()}
    assert leftovers(cache) == []


KILLED = """
import sys, time
from lockstep.config.composing import compose
from lockstep.data.images import decoded_splits as decoding
from tests.support.image_files import read
from pathlib import Path
decode_all = decoding.decode_all

def half(images, *args, **kwargs):
    decode_all(images.head(len(images) // 2), *args, **kwargs)
    print("half", flush=True)
    time.sleep(600)

decoding.decode_all = half
read(Path(sys.argv[1]), cache=sys.argv[2])
"""


@pytest.mark.full
@pytest.mark.processes
def test_a_process_waits_for_another_one_and_builds_after_it_was_killed(
    root: Path, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", KILLED, str(root), cache]
    with Command(command, ROOT, stdout=subprocess.PIPE, text=True) as builder:
        assert builder.stdout is not None
        try:
            assert "half\n" in iter(builder.stdout.readline, "")
            assert (entries(cache), len(leftovers(cache))) == ([], 1)
            monkeypatch.setattr("builtins.print", lambda text, **_: text.startswith("Waiting") and builder.kill())
            found = read(root, cache=cache)
        finally:
            builder.kill()
    assert_same(found, read(root))
    assert leftovers(cache) == []


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_broken_images_are_named_and_leave_no_entry(root: Path, cache: str) -> None:
    for name in ("b.png", "c.png"):
        (root / "red fox" / name).write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"b\.png cannot be read .*\n.*c\.png cannot be read"):
        read(root, cache=cache)
    assert entries(cache) == leftovers(cache) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")
def test_pixels_and_notes_of_another_user_are_not_used(root: Path, cache: str) -> None:
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
    with pytest.raises(ValueError, match=r"belongs to another user: set data\.cache to a folder of your own"):
        read(root, cache=cache)


def test_a_cache_that_is_only_readable_is_used(root: Path, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read(root, cache=cache)
    before = sorted(Path(cache).rglob("*"))
    refused = mock.Mock(side_effect=PermissionError(errno.EACCES, "Permission denied"))
    monkeypatch.setattr(decoded_splits, "write_json", refused)
    assert_same(read(root, cache=cache, split_seed=5), read(root, split_seed=5))
    assert sorted(Path(cache).rglob("*")) == before


def full_disk(path: str) -> Any:
    return SimpleNamespace(total=10**9, used=10**9 - 100, free=100)


def failed_write(*_: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("module", "name", "function", "reason"),
    [(shutil, "disk_usage", full_disk, "GiB free"), (os, "pwrite", failed_write, "No space left on device")],
)
def test_cache_full_disk(
    root: Path, cache: str, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, function: Any, reason: str
) -> None:
    monkeypatch.setattr(module, name, function)
    with pytest.raises(ValueError, match=rf"data\.cache=.*{reason}"):
        read(root, cache=cache)
    assert entries(cache) == leftovers(cache) == []


def test_cache_is_a_file(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=rf"data\.cache={tmp_path}/file cannot be used"):
        read(root, cache=str(tmp_path / "file"))


def test_images_that_memory_cannot_hold_are_streamed_with_the_reason(
    root: Path, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 40 * 3 * 8 * 9
    monkeypatch.setattr(decoded_splits, "available_bytes", lambda: needed)
    assert isinstance(read(root, cache=cache, memory="auto").train.pixels, Rows)
    monkeypatch.setattr(decoded_splits, "available_bytes", lambda: needed - 1)
    assert isinstance(read(root, cache=cache, memory="auto").train.pixels, ImageFiles)
    assert isinstance(read(root, cache=cache, memory="host").train.pixels, Rows)  # on request: the kernel pages


# -- names -------------------------------------------------------------------------------------------------------------


def test_the_order_is_that_of_sorted_paths(tmp_path: Path) -> None:
    for name in ("a/b.png", "a-1.png", "a b.png", "a/a/z.png", "B.png", "a.png", "folder.png/q.png"):
        write_image(tmp_path / "c1" / name)
    write_image(tmp_path / "c2" / "x.png")
    (tmp_path / "c2" / "notes.txt").symlink_to("nowhere")
    expected = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.png") if path.is_file())
    assert list(list_classes(str(tmp_path)).names) == [path.as_posix() for path in expected]


@pytest.mark.parametrize("text", ["plain/path-1.2", "it's", "a,b=[c]{d}", "back\\", "q\\'", "$x", "null", "7"])
def test_a_folder_of_any_name_reaches_hydra_unchanged(text: str) -> None:
    override = f"data.root={naming.hydra_text(text)}"
    assert compose.compose_config(["data=image_folder", override]).data.root == text
