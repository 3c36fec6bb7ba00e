"""Files behind a URL are copied once, completely and nowhere else, and no message contains a secret."""

import contextlib
import functools
import io
import shutil
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from lockstep.assembly import run_parts
from lockstep.config import overrides
from lockstep.config.checks import data_presence, validation
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError
from lockstep.config.schema.target_sections import is_url
from lockstep.data.images.image_table import list_classes
from lockstep.data.transfer import copying
from lockstep.system.redaction import redact
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


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def archive(root: Path) -> Path:
    path = root.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as file:
        for name in contents(root):
            file.write(root / name, f"all/{name}")
    return path


def url_of(kind: str, root: Path, server: str, memory: Any) -> str:
    if kind == "memory":
        for name, content in contents(root).items():
            memory.pipe(f"/bucket/flowers/{name}", content)
    return {
        "http": f"{server}/flowers",
        "zip over http": f"zip://all::{server}/flowers.zip",
        "memory": "memory://bucket/flowers",
    }[kind]


# -- what is fetched ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["http", "zip over http", "memory"])
def test_the_images_behind_a_url_are_those_of_the_folder_and_fetched_once(
    kind: str, root: Path, tmp_path: Path, server: str, memory: Any
) -> None:
    expected = contents(root)
    write_image(root / ".thumbs" / "1.png")
    write_image(root / "red fox" / "@eaDir" / "1.png")
    (root / "readme.txt").write_text("no image")
    archive(root)
    url = url_of(kind, root, server, memory)
    folder = make(url, tmp_path / "scratch")
    assert contents(folder) == expected
    assert list_classes(str(folder)).names == list_classes(str(root)).names
    before = times(folder)
    assert make(url, tmp_path / "scratch") == folder
    assert times(folder) == before


def test_a_url_is_downloaded_again_for_other_names_or_once_its_copy_is_deleted(
    root: Path, tmp_path: Path, server: str
) -> None:
    folder, url = make(f"{server}/flowers", tmp_path / "scratch"), f"{server}/flowers"
    one, other = list_classes(str(folder)), list_classes(str(make(url, tmp_path / "other node")))
    assert (one.digest, one.origin) == (other.digest, other.origin) == (one.digest, url)
    path = root / "red fox" / "bild ü 01.png"
    path.write_bytes(path.read_bytes()[::-1])  # of the same size
    assert make(url, tmp_path / "scratch") == folder
    assert contents(folder) != contents(root)
    shutil.rmtree(folder.parent)
    assert contents(make(url, tmp_path / "scratch")) == contents(root)
    assert list_classes(str(folder)).digest != one.digest
    write_image(root / "red fox" / "new.png", seed=8)
    assert contents(make(url, tmp_path / "scratch")) == contents(root)


def test_an_archive_with_other_contents_is_downloaded_again(root: Path, tmp_path: Path) -> None:
    url = f"zip://all::file://{archive(root)}"
    make(url, tmp_path / "scratch")
    write_image(root / "red fox" / "bild ü 01.png", seed=8)
    archive(root)
    assert contents(make(url, tmp_path / "scratch")) == contents(root)


def test_without_copy_to_files_are_next_to_the_decoded_ones(root: Path, tmp_path: Path) -> None:
    folder = make(f"file://{root}", None, cache=str(tmp_path / "cache"))
    assert folder.parents[1] == tmp_path / "cache"
    assert contents(folder) == contents(root)


def test_the_files_of_a_list_are_fetched_and_no_others(root: Path, tmp_path: Path, server: str) -> None:
    names = sorted(contents(root))[1::2]
    file = write_list(tmp_path / "list.csv", [{"path": f"./{name}", "label": name[0]} for name in names])
    asked = listed(file, tmp_path / "scratch", f"{server}/flowers")
    data_presence.check(asked)
    assert contents(Path(read(asked))) == {name: (root / name).read_bytes() for name in names}
    write_list(file, [{"path": name, "label": name[0]} for name in ("none.png", *names)])
    with pytest.raises(ValueError, match=r"row 2, column path: .*none\.png does not exist.*is the copy of http"):
        read(asked, run_parts.source)


def test_a_folder_that_cannot_be_listed_is_no_empty_one(root: Path, tmp_path: Path, server: str) -> None:
    folder = make(f"{server}/flowers", tmp_path / "scratch")
    Handler.broken.add("/flowers/red%20fox/")
    with pytest.raises(ValueError, match=r"data\.root=.*flowers cannot be listed .*500"):
        make(f"{server}/flowers", tmp_path / "scratch")
    assert contents(folder) == contents(root)


# -- names that lead elsewhere -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../evil.png", "/evil.png", "a/./evil.png"])
def test_name_in_an_archive_that_leads_elsewhere(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        file.writestr("a/1.png", "x")
        file.writestr(name, "x")
    rows = [{"path": path, "label": path[0]} for path in ("a/1.png", name)]
    file, url = write_list(tmp_path / "list.csv", rows), f"zip://::file://{tmp_path / 'bad.zip'}"
    scratch = tmp_path / "scratch"
    for asked in (section(url, scratch), listed(file, scratch, url)):
        with contextlib.suppress(ValueError):
            read(asked)
    assert not [*scratch.rglob("evil.png"), *tmp_path.glob("evil.png"), *tmp_path.parent.glob("evil.png")]
    files = copying.Files("bad", LocalFileSystem(), {name: str(tmp_path / "bad.zip")}, "key")
    with pytest.raises(ValueError, match=r"evil\.png is not below bad: set data\.root"):
        copying.copy(files, scratch, "data.copy_to=scratch")


def test_links_for_another_order_of_a_listing_are_no_files(
    root: Path, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listing(self: Any, path: str) -> io.BytesIO:
        names = [*(f"{name.name}/" if name.is_dir() else name.name for name in Path(path).iterdir()), "?C=N;O=D"]
        page = "".join(f'<a href="{quote(name, safe="/?=;")}">{name}</a>' for name in names).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        return io.BytesIO(page)

    monkeypatch.setattr(Handler, "list_directory", listing)
    assert contents(make(f"{server}/flowers", tmp_path / "scratch")) == contents(root)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_missing_files_are_refused(root: Path, tmp_path: Path, server: str, memory: Any) -> None:
    (root.parent / "empty").mkdir()
    for url, message in (
        (f"{server}/nowhere", r"data\.root=http://.*/nowhere cannot be listed \(FileNotFoundError"),
        ("http://127.0.0.1:9/flowers", r"cannot be listed \(ClientConnectorError"),
        (f"file://{root.parent}/empty", "no files: give a folder"),
        (
            f"file://{archive(root)}",
            r"no files: give a folder, or an archive as data\.root=zip://::file:///",
        ),
        ("memory://nothing", "cannot be listed"),
    ):
        with pytest.raises(ValueError, match=message):
            make(url, tmp_path / "scratch")


def test_a_file_that_fails_is_named_and_nothing_is_taken_for_a_copy(root: Path, tmp_path: Path, server: str) -> None:
    Handler.broken.add("/flowers/red%20fox/bild%20%C3%BC%2001.png")
    with pytest.raises(ValueError, match=r"cannot be copied \(ClientResponseError: 500.*/bild%20%C3%BC%2001\.png"):
        make(f"{server}/flowers", tmp_path / "scratch")
    Handler.broken.clear()
    assert contents(make(f"{server}/flowers", tmp_path / "scratch")) == contents(root)


ERRORS = {
    "nope://bucket": "nope://",
    "reference://x.json": "reference://",
    "zip://a.zip::simplecache::http://host/x": "simplecache://",
    "https://me:hunter2@host/x": "user or password",
    "zip://::https://hunter2@host/x.zip": "user or password",
}


@pytest.mark.parametrize("url", ERRORS)
def test_url_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=ERRORS[url]) as caught:
        checked("data=image_folder", f"data.root='{url}'")
    assert "hunter2" not in str(caught.value)


def checked(*overrides: str) -> object:
    return validation.check_config(compose.compose_config(overrides))


@pytest.mark.parametrize("url", ["s3://bucket/flowers", "zip://::s3://bucket/flowers.zip"])
def test_missing_driver_is_named(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    known: Any = sys.modules["fsspec.registry"]
    monkeypatch.delitem(known._registry, "s3", raising=False)
    with pytest.raises(ConfigError, match=r"data\.root=.*Install s3fs"):
        make(url, tmp_path / "scratch")


def test_url_needs_copy_or_cache() -> None:
    url = ("data=image_folder", "data.root=memory://x")
    checked(*url)
    checked(*url, "data.cache=null", "data.copy_to=y")
    with pytest.raises(ConfigError, match="copy_to=data/cache"):
        checked(*url, "data.cache=null")
    with pytest.raises(ConfigError, match="data=image_folder or data=list"):
        checked("data=cifar10", "data.root=memory://x")
    with pytest.raises(ConfigError, match=r"data\.copy_remove .*removed"):
        overrides.check(["data=cifar10", "data.copy_remove=true"])


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
    with pytest.raises(ValueError) as caught, copying.explain_errors("s3://b cannot be listed"):  # noqa: PT011
        raise RuntimeError(text)
    assert "hunter" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("url", [SECRET, f"zip://::{SECRET}"])
def test_url_without_secret(url: str) -> None:
    assert "hunter" not in redact(url)
    assert "hunter" not in copying.name_of(url)


@pytest.mark.parametrize(
    ("url", "name"), [("s3://b/x:y/", "x_y"), ("zip://a::https://h/f.zip?t=1", "f.zip"), ("s3://b/..", "files")]
)
def test_url_folder_name(url: str, name: str) -> None:
    assert is_url(url)
    assert not is_url(name)
    assert copying.name_of(url) == name
