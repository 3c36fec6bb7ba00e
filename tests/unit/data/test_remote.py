"""Files behind a URL are copied once, completely and nowhere else, and no message contains a secret."""

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
from tests.support.copies import contents, listed, make, read, section
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
        Handler.fetched.clear()
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
    before = {path: path.stat().st_ctime_ns for path in folder.rglob("*.png")}
    assert make(url, tmp_path / "scratch") == folder
    assert {path: path.stat().st_ctime_ns for path in folder.rglob("*.png")} == before


def test_a_url_is_downloaded_again_for_other_names_or_once_its_copy_is_deleted(
    root: Path, tmp_path: Path, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, url = make(f"{server}/flowers", tmp_path / "scratch"), f"{server}/flowers"
    one, other = list_classes(str(folder)), list_classes(str(make(url, tmp_path / "other node")))
    assert (one.digest, one.origin) == (other.digest, other.origin) == (one.digest, url)
    path = root / "red fox" / "bild ü 01.png"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)  # of the same size
    capsys.readouterr()
    assert make(url, tmp_path / "scratch") == folder
    assert f"delete {folder.parent} to download it again" in capsys.readouterr().out
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
    cache = str(tmp_path / "cache")
    folder = make(f"file://{root}", None, cache=cache)
    assert folder.parents[1] == tmp_path / "cache"
    assert folder.name == "flowers"
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
    from io import BytesIO

    original = Handler.list_directory

    def listing(self: Any, path: Any) -> Any:
        text = b'<a href="?C=N;O=D">Name</a> <a href="?C=M;O=A">Last modified</a>'
        self.wfile, kept = BytesIO(), self.wfile
        page = original(self, path).read()
        self.wfile, self._headers_buffer = kept, []
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(text + page)))
        self.end_headers()
        return BytesIO(text + page)

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
    "nope://bucket": "cannot be read: nope:// is not one of http, https, s3, ",
    "reference://x.json": "cannot be read: reference:// is not one of http",
    "zip://a.zip::simplecache::http://host/x": "cannot be read: simplecache:// is not one of http",
    "https://me:hunter2@host/x": "https://***@host/x contains a user or password",
    "zip://::https://hunter2@host/x.zip": "https://***@host/x.zip contains a user or password",
}


@pytest.mark.parametrize("url", ERRORS)
def test_url_of_another_protocol_or_with_a_password_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validation.check_config(compose.compose_config(["data=image_folder", f"data.root='{url}'"]))
    assert len(str(caught.value).splitlines()) == 1
    assert ERRORS[url] in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://bucket/flowers", "zip://::s3://bucket/flowers.zip"])
def test_missing_driver_is_named(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    known: Any = sys.modules["fsspec.registry"]
    monkeypatch.delitem(known._registry, "s3", raising=False)
    with pytest.raises(ConfigError, match=r"data\.root=.*s3://bucket/flowers.* cannot be listed .*Install s3fs"):
        make(url, tmp_path / "scratch")


def test_settings_of_copies_meet() -> None:
    def errors(*texts: str) -> list[str]:
        try:
            validation.check_config(compose.compose_config(texts))
        except ConfigError as error:
            return str(error).splitlines()
        return []

    assert errors("data=image_folder", "data.root=memory://x") == []
    assert errors("data=image_folder", "data.root=memory://x", "data.cache=null", "data.copy_to=y") == []
    with pytest.raises(ConfigError, match=r"data\.copy_remove is not a setting: .*removed in 0\.3"):
        overrides.check(["data=cifar10", "data.copy_remove=true"])
    assert "copy_to=data/cache" in errors("data=image_folder", "data.root=memory://x", "data.cache=null")[0]
    assert "use data=image_folder or data=list" in errors("data=cifar10", "data.root=memory://x")[0]


SECRET = "https://host/flowers.zip?token=hunter2&X-Amz-Signature=hunter3"


def test_no_message_and_no_file_tells_a_secret() -> None:
    class Driver(Exception):
        pass

    for text in (
        f"GET {SECRET} said 403",
        "https://me:hunter2@host/x",
        "{'aws_secret_access_key': 'hunter2', 'Signature': 'hunter3'}",
        "password=hunter2",
    ):
        with (
            pytest.raises(ValueError, match="cannot be listed") as caught,
            copying.explain_errors("s3://b cannot be listed"),
        ):
            raise Driver(text)
        assert "hunter" not in str(caught.value)
        assert caught.value.__suppress_context__
    for url in (SECRET, f"zip://::{SECRET}"):
        assert "hunter" not in redact(url)
        assert "hunter" not in copying.name_of(url)


def test_a_url_is_not_a_path_and_has_a_name_for_its_folder() -> None:
    names = {"s3://b/x:y/": "x_y", "zip://a::https://h/f.zip?t=1": "f.zip", "s3://b/..": "files"}
    for url, name in names.items():
        assert is_url(url)
        assert copying.name_of(url) == name
    assert not any(map(is_url, ("data/flowers", "/data/a:b", "a::b", "~/x")))
