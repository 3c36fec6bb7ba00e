"""Files behind a URL are copied once, completely and to one place; messages contain no secret."""

import contextlib
import functools
import shutil
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from lockstep.assembly import run_parts
from lockstep.config.checks import data_presence
from lockstep.config.errors import ConfigError
from lockstep.data.images.image_table import list_classes
from lockstep.data.transfer import copying
from tests.support.composed import config_of
from tests.support.copies import contents, listed, make, read, section, times
from tests.support.http_server import Handler
from tests.support.image_files import write_folder, write_image, write_list


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "flowers", count=4)


@pytest.fixture
def server(root: Path) -> Iterator[str]:
    handler = functools.partial(Handler, directory=str(root.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as found:
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        Handler.broken.clear()
        yield f"http://127.0.0.1:{found.server_address[1]}"
        found.shutdown()


# -- what is fetched -------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["{}/flowers", "zip://flowers::{}/flowers.zip"])
def test_url_copied_once(place: str, root: Path, tmp_path: Path, server: str) -> None:
    expected = contents(root)
    write_image(root / ".thumbs" / "1.png")
    write_image(root / "red fox" / "@eaDir" / "1.png")
    (root / "readme.txt").write_text("no image")
    shutil.make_archive(str(root), "zip", root.parent, root.name)
    url = place.format(server)
    folder = make(url, tmp_path / "scratch")
    assert contents(folder) == expected
    assert list_classes(str(folder)).names == list_classes(str(root)).names
    before = times(folder)
    assert make(url, tmp_path / "scratch") == folder
    assert times(folder) == before


def test_changed_url_copied_again(root: Path, tmp_path: Path, server: str) -> None:
    folder, url = make(f"{server}/flowers", tmp_path / "scratch"), f"{server}/flowers"
    before = list_classes(str(folder)).digest
    path = root / "red fox" / "bild ü 01.png"
    path.write_bytes(path.read_bytes()[::-1])  # of the same size
    assert make(url, tmp_path / "scratch") == folder
    assert contents(folder) != contents(root)
    shutil.rmtree(folder.parent)
    assert contents(make(url, tmp_path / "scratch")) == contents(root)
    assert list_classes(str(folder)).digest != before


def test_listed_files_copied(root: Path, tmp_path: Path, server: str) -> None:
    names = sorted(contents(root))[1::2]
    file = write_list(
        tmp_path / "list.csv", [{"path": f"./{name}", "label": name[0]} for name in names]
    )
    asked = listed(file, tmp_path / "scratch", f"{server}/flowers")
    data_presence.check(asked)
    assert contents(Path(read(asked))) == {name: (root / name).read_bytes() for name in names}
    write_list(file, [{"path": name, "label": name[0]} for name in ("none.png", *names)])
    with pytest.raises(
        ValueError, match=r"row 2, column path: .*none\.png does not exist.*is the copy of http"
    ):
        read(asked, run_parts.source)


def test_unlistable_folder_refused(root: Path, tmp_path: Path, server: str) -> None:
    folder = make(f"{server}/flowers", tmp_path / "scratch")
    Handler.broken.add("/flowers/red%20fox/")
    with pytest.raises(ValueError, match=r"data\.root=.*flowers cannot be listed .*500"):
        make(f"{server}/flowers", tmp_path / "scratch")
    assert contents(folder) == contents(root)


# -- names that lead elsewhere ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../evil.png", "/evil.png", "a/./evil.png"])
def test_name_leads_elsewhere(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        file.writestr("a/1.png", "x")
        file.writestr(name, "x")
    rows = [{"path": path, "label": path[0]} for path in ("a/1.png", name)]
    file, url = write_list(tmp_path / "list.csv", rows), f"zip://::file://{tmp_path / 'bad.zip'}"
    scratch = tmp_path / "scratch"
    for asked in (section(url, scratch), listed(file, scratch, url)):
        with contextlib.suppress(ValueError):
            read(asked)
    assert not [
        *scratch.rglob("evil.png"),
        *tmp_path.glob("evil.png"),
        *tmp_path.parent.glob("evil.png"),
    ]
    files = copying.Files("bad", LocalFileSystem(), {name: str(tmp_path / "bad.zip")}, "key")
    with pytest.raises(ValueError, match=r"evil\.png is not below bad: set data\.root"):
        copying.copy(files, scratch, "data.copy_to=scratch")


# -- what goes wrong -------------------------------------------------------------------------------


def test_missing_files_refused(root: Path, tmp_path: Path, server: str) -> None:
    (root.parent / "empty").mkdir()
    archive = shutil.make_archive(str(root), "zip", root)
    for url, message in (
        (f"{server}/nowhere", r"data\.root=http://.*/nowhere cannot be listed \(FileNotFoundError"),
        ("http://127.0.0.1:9/flowers", r"cannot be listed \(ClientConnectorError"),
        (f"file://{root.parent}/empty", "no files: give a folder"),
        (
            f"file://{archive}",
            r"no files: give a folder, or an archive as data\.root=zip://::file:///",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make(url, tmp_path / "scratch")


def test_failed_file_leaves_no_copy(root: Path, tmp_path: Path, server: str) -> None:
    Handler.broken.add("/flowers/red%20fox/bild%20%C3%BC%2001.png")
    with pytest.raises(
        ValueError, match=r"cannot be copied \(ClientResponseError: 500.*/bild%20%C3%BC%2001\.png"
    ):
        make(f"{server}/flowers", tmp_path / "scratch")
    Handler.broken.clear()
    assert contents(make(f"{server}/flowers", tmp_path / "scratch")) == contents(root)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("nope://bucket", "nope://"),
        ("reference://x.json", "reference://"),
        ("zip://a.zip::simplecache::http://host/x", "simplecache://"),
        ("https://me:hunter2@host/x", "user or password"),
        ("zip://::https://hunter2@host/x.zip", "user or password"),
    ],
)
def test_url_refused(url: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error) as caught:
        config_of("data=image_folder", f"data.root='{url}'")
    assert "hunter2" not in str(caught.value)


def test_missing_driver_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    known: Any = sys.modules["fsspec.registry"]
    monkeypatch.delitem(known._registry, "s3", raising=False)
    with pytest.raises(ConfigError, match=r"data\.root=.*Install s3fs"):
        make("zip://::s3://bucket/flowers.zip", tmp_path / "scratch")


def test_url_without_copy_refused() -> None:
    url = ("data=image_folder", "data.root=memory://x")
    config_of(*url)
    config_of(*url, "data.cache=null", "data.copy_to=y")
    with pytest.raises(ConfigError, match="copy_to=data/cache"):
        config_of(*url, "data.cache=null")
    with pytest.raises(ConfigError, match="data=image_folder or data=list"):
        config_of("data=cifar10", "data.root=memory://x")


SECRET = "https://host/flowers.zip?token=hunter2&X-Amz-Signature=hunter3"


@pytest.mark.parametrize(
    "text",
    [
        f"GET {SECRET} said 403",
        "https://me:hunter2@host/x",
        "{'aws_secret_access_key': 'hunter2', 'Signature': 'hunter3'}",
        "password=hunter2",
    ],
)
def test_driver_error_without_secret(text: str) -> None:
    explained = copying.explain_errors("s3://b cannot be listed")
    with pytest.raises(ValueError) as caught, explained:  # noqa: PT011
        raise RuntimeError(text)
    assert "hunter" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("url", [SECRET, f"zip://::{SECRET}"])
def test_name_without_secret(url: str) -> None:
    assert "hunter" not in copying.name_of(url)
