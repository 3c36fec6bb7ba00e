"""Every node copies once, all ranks continue or none, and copies keep the bits of a training."""

import contextlib
import shutil
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from fsspec.implementations.local import LocalFileSystem
from torch import distributed as dist
from torchvision.datasets import CIFAR10, FashionMNIST

from lockstep.assembly import agreement, data_copies, run_parts
from lockstep.config.errors import ConfigError
from lockstep.config.schema.target_sections import Data
from lockstep.data.sources import FOLDERS
from tests.support.copies import contents, section, shown
from tests.support.harness import difference, train_all, wait_until, write_run
from tests.support.image_files import write_folder, write_image
from tests.support.processes import Ranks
from tests.support.recipes import FOLDER

pytestmark = pytest.mark.full

# -- the same bits ---------------------------------------------------------------------------------


def recipe(images: Path, *extra: str) -> list[str]:
    return [
        *FOLDER,
        "trainer.max_epochs=1",
        "callbacks.pictures=null",
        f"data.root={images}",
        f"data.cache={images.parent / 'cache'}",
        "trainer.devices=2",
        *extra,
    ]


@pytest.mark.processes
def test_copied_source_bitwise(tmp_path: Path) -> None:
    images, scratch = (
        write_folder(tmp_path / "images", count=20),
        f"data.copy_to={tmp_path / 'scratch'}",
    )
    url = (
        f"data.root='zip://::file://{shutil.make_archive(str(tmp_path / 'zipped'), 'zip', images)}'"
    )
    direct = write_run(tmp_path / "direct", recipe(images))
    copied = write_run(tmp_path / "copied", recipe(images, scratch, "data.memory=stream"))
    fetched = write_run(tmp_path / "fetched", recipe(images, scratch, url))
    train_all([direct, copied, fetched], 2)
    assert sorted(path.name.split("-")[0] for path in shown(tmp_path / "scratch")) == [
        "images",
        "zipped.zip",
    ]
    assert difference(direct, copied) == difference(direct, fetched) == 0


# -- all ranks or none -----------------------------------------------------------------------------


def _stage(root: str, scratch: str, ranks_per_node: int, home: str) -> Any:
    """How many files this rank copied and what is in the copy; the errors where there are some."""
    rank = dist.get_rank()
    node, local_rank = divmod(rank, ranks_per_node)
    place = Path(home) / f"node{node}"
    place.mkdir(exist_ok=True)
    data = section(root, Path(scratch))
    load = lambda data: contents(Path(data.arguments()["root"]))  # noqa: E731
    with (
        contextlib.chdir(place),  # every node has a disk of its own below the same path
        mock.patch.object(
            LocalFileSystem, "get_file", autospec=True, side_effect=LocalFileSystem.get_file
        ) as get_file,
    ):
        try:
            found = run_parts.once_a_node(
                data, load, rank=rank, local_rank=local_rank, is_silent=True
            )
        except ConfigError as error:
            return str(error).splitlines()
    return get_file.call_count, found


@pytest.mark.processes
@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_copy_once_per_node(ranks: Ranks, tmp_path: Path, ranks_per_node: int) -> None:
    root = write_folder(tmp_path / "images", count=6)
    found = ranks.run(3, _stage, str(root), "scratch", ranks_per_node, str(tmp_path))
    assert [count for count, _ in found] == [
        12 if rank % ranks_per_node == 0 else 0 for rank in range(3)
    ]
    assert all(read == contents(root) for _, read in found)


@pytest.mark.processes
@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_failed_copy_one_node(ranks: Ranks, tmp_path: Path, ranks_per_node: int) -> None:
    """All ranks end with the error of that node."""
    root = write_folder(tmp_path / "images", count=3)
    (tmp_path / "node1").mkdir()
    (tmp_path / "node1" / "scratch").write_text("no folder")
    errors = ranks.run(3, _stage, str(root), "scratch", ranks_per_node, str(tmp_path))
    assert errors[0] == errors[1] == errors[2]
    assert f"/scratch: {root} cannot be copied" in errors[0][0]


def _num_messages() -> int:
    """Messages of this rank while rank 0 worked."""
    with (
        mock.patch.object(agreement, "gather_objects", wraps=agreement.gather_objects) as gather,
        mock.patch.object(agreement, "HEARTBEAT_S", 0.05),
    ):
        agreement.together(lambda: time.sleep(1.0 - dist.get_rank().bit_length()))
    return gather.call_count


@pytest.mark.processes
def test_heartbeat_waiting_ranks(ranks: Ranks) -> None:
    """Waiting ranks run collectives, so that none of them times out."""
    counts = ranks.run(2, _num_messages)
    assert counts[0] == counts[1] >= 5


def _stage_changing(root: str, home: str) -> Any:
    """The source gets another image after the first node has listed it."""
    find, listed = data_copies._files, Path(home) / "listed"

    def changing(*args: Any) -> Any:
        if dist.get_rank() == 1:
            wait_until(listed.exists, "the list of the first node")
            write_image(Path(root) / "red fox" / "late.png")
        found = find(*args)
        listed.touch()
        return found

    with mock.patch.object(data_copies, "_files", changing):
        return _stage(root, "scratch", 1, home)


@pytest.mark.processes
def test_source_changed_between_copies(ranks: Ranks, tmp_path: Path) -> None:
    """Nodes that copied different states of a source are refused."""
    root = write_folder(tmp_path / "images", count=3)
    errors = ranks.run(2, _stage_changing, str(root), str(tmp_path))
    assert errors[0] == errors[1]
    assert f"{root} changed" in errors[0][0]


def _download(root: str, ranks_per_node: int) -> Any:
    """Arguments of the calls of a source that downloads, on this rank."""
    rank, asked = dist.get_rank(), []
    raw = Path(root) / "FashionMNIST" / "raw"

    def load(data: Data) -> int:
        arguments = data.arguments()
        is_missing = not (raw / "images").exists()
        asked.append((arguments["download"], is_missing))
        if is_missing and arguments["download"]:
            raw.mkdir(parents=True)  # fails for the second of two at once
            (raw / "images").write_text("pixels")
        return len((raw / "images").read_text())

    values = {"root": root, "download": True}
    data = Data.model_validate(
        {
            "_target_": "lockstep.data.fashion_mnist",
            "val_fraction": 0.1,
            "split_seed": 0,
            "memory": "auto",
        }
        | values
    )
    size = run_parts.once_a_node(
        data, load, rank=rank, local_rank=rank % ranks_per_node, is_silent=True
    )
    return asked, size


@pytest.mark.processes
@pytest.mark.parametrize("ranks_per_node", [1, 3])
def test_download_once_shared_root(ranks: Ranks, tmp_path: Path, ranks_per_node: int) -> None:
    (tmp_path / "data").mkdir()
    for is_first in (True, False):
        found = ranks.run(3, _download, str(tmp_path / "data"), ranks_per_node)
        assert [size for _, size in found] == [6, 6, 6]
        assert found[0][0] == [(True, is_first)]
        assert sum(is_missing for asked, _ in found for _, is_missing in asked) == is_first


def test_download_folders_torchvision() -> None:
    assert FOLDERS["lockstep.data.cifar10"] == CIFAR10.base_folder
    dataset = type("FashionMNIST", (), {"root": ""})()
    raw = FashionMNIST.raw_folder.fget(dataset)  # pyright: ignore[reportOptionalCall]
    assert raw == FOLDERS["lockstep.data.fashion_mnist"]
