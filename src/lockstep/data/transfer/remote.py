"""Files behind a URL, through the drivers of fsspec: s3://, gs://, https:// with a listing, zip://::..., and others.

A driver finds its secrets itself: in its own files and variables, and in those of fsspec (~/.config/fsspec, FSSPEC_*).
"""

import contextlib
import errno
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lockstep.data.transfer.copying import NUM_PER_BLOCK, NUM_THREADS, Source, State, digest_of, is_left_out
from lockstep.system.redaction import redacted

# what drivers tell of the content of a file, or of its last change
TELLING = ("etag", "md5", "crc", "checksum", "digest", "sha", "modified", "updated", "mtime", "created", "date_time")
# the names of packages that are not those of their modules
PACKAGES = {"smbclient": "smbprotocol", "google": "gcsfs", "pygit2": "pygit2", "yaml": "pyyaml"}
MAX_DEPTH = 32
ENCODED = ("http", "https")  # names in their listings are parts of URLs


def is_url(root: str) -> bool:
    """Whether a path is a URL, or a chain of them."""
    return re.match(r"[A-Za-z][\w+.-]*(://|::.*:)", root) is not None


def without_query(url: str) -> str:
    """A URL, or a chain of them, as it stays when it is signed again."""
    return "::".join(part.partition("?")[0] for part in url.split("::"))


def name_of(url: str) -> str:
    """What a folder with its files is called."""
    words = [word for word in re.split(r"::|[/:]+", re.sub(r"[?#][^:]*", "", url)) if word]
    return re.sub(r"[^\w.-]+", "_", unquote(words[-1])).lstrip(".")[:80] or "files"


def faults(url: str, key: str) -> Iterator[str]:
    """What can be said against a URL, the value of `key`, before it is asked for anything."""
    from fsspec import get_filesystem_class

    if re.search(r"://[^/?#@]*:[^/?#]*@|^https?://[^/?#]*@|::https?://[^/?#]*@", url):
        yield (
            f"{key}={redacted(url)} has a user or password in it, which the run folder would keep: give them to the "
            "driver in its own files or variables"
        )
    for part in url.split("::"):
        protocol = part.partition("://")[0] if "://" in part else part
        if "/" in protocol:
            continue  # the end of a chain may be a path
        try:
            get_filesystem_class(protocol)
        except ImportError as error:
            missing = getattr(error.__cause__, "name", None) or protocol
            package = PACKAGES.get(missing.partition(".")[0], missing.partition(".")[0])
            yield f"{key}={redacted(url)} needs a driver for {protocol}:// that is not installed: pip install {package}"
        except ValueError:
            yield f"{key}={redacted(url)}: there is no driver for {protocol}://: correct the URL"


def files_at(url: str, key: str, *, below: str, suffixes: Sequence[str], beat: Callable[[], None]) -> Source:
    """The files behind a URL, the value of `key`; only those in the folder `below`, only those with these `suffixes`.

    `beat` is called now and then where each file is asked for. Raises ValueError where the URL cannot be listed, or has
    a name that leads out of the folder of a copy.
    """
    setting = f"{key}={redacted(url)}"
    with _Told(f"{setting} cannot be listed", "correct the URL, or give the driver access"):
        system, path = _opened(url)
        start = f"{path.rstrip('/')}/" if path.rstrip("/") else ""
        root = f"{start}{below}".rstrip("/")
        listed = _listed(system, root)
    turn = contextlib.nullcontext() if _takes_threads(system) else threading.Lock()
    is_encoded = url.startswith(ENCODED)
    paths: dict[str, str] = {}
    for remote_path in listed:
        name = remote_path.removeprefix(start)
        if is_encoded:
            if "?" in name or "#" in name:
                continue  # a server's links for another order of its listing
            name = unquote(name)
        if remote_path in (root, path):
            raise ValueError(
                f"{setting} is no folder with files: give one; an archive is one as {key}=zip://::{redacted(url)}"
            )
        if suffixes and not name.lower().endswith(tuple(suffixes)):
            continue
        # no part may be empty either: "/etc/passwd" joined to a folder is /etc/passwd
        if {"", ".", ".."} & set(name.split("/")) or "\0" in name:
            raise ValueError(
                f"{setting} has a file {name!r}, which would lie outside the folder of a copy: rename it there."
            )
        if suffixes and any(map(is_left_out, name.split("/"))):
            continue
        paths[name] = remote_path
    if not paths:
        what = f"a file that ends with {', '.join(suffixes)}" if suffixes else "a file"
        raise ValueError(
            f"{setting} has nothing to copy: looked for {what}{f' in {below}' if below else ''}, below it."
        )
    names = sorted(paths)
    known = [(paths[name], listed[paths[name]]) for name in names]
    states = dict(zip(names, _states(system, setting, known, turn, beat), strict=True))

    def fetch(name: str, path: Path) -> None:
        with turn, _Told(f"{setting}: {name} cannot be fetched", "start again; what is copied already stays"):
            system.get_file(paths[name], str(path))

    return Source(states, fetch, digest_of(states))


def check(url: str, key: str) -> None:
    """Raise ValueError where nothing answers at a URL, the value of `key`. Asks once; nothing is walked through."""
    with _Told(f"{key}={redacted(url)} cannot be listed", "correct the URL, or give the driver access"):
        system, path = _opened(url)
        system.ls(path, detail=False)


class _Told:
    """Turns whatever a driver raises into a ValueError that tells no secret; a full disk stays what it is."""

    def __init__(self, what: str, cure: str) -> None:
        self._what = what
        self._cure = cure

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # the border to drivers, each with exceptions of its own
        if isinstance(error, Exception) and getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ValueError(f"{self._what} ({redacted(text)[:300]}): {self._cure}.") from None


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, which knows nothing of an earlier look, and the path there."""
    from fsspec.core import url_to_fs

    system, path = url_to_fs(url)
    system.invalidate_cache()  # drivers live as long as the process: another job of a sweep must see what is there
    return system, path


def _takes_threads(system: Any) -> bool:
    """Whether several threads may use a file system; archives such as tar:// have one position in one file for all."""
    from fsspec.implementations.dirfs import DirFileSystem
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.zip import ZipFileSystem

    used = system.fs if isinstance(system, DirFileSystem) else system
    return used.async_impl or isinstance(used, LocalFileSystem | ZipFileSystem)


def _listed(system: Any, root: str) -> dict[str, dict[str, Any]]:
    """What is known of every file, by path. Raises what the driver raises, also where a folder cannot be read."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    kind: Any = type(system)
    # fsspec's own walk leaves out what fails below the first folder, as if those files were gone (2026.9)
    is_walk = kind._find is AsyncFileSystem._find if system.async_impl else kind.find is AbstractFileSystem.find
    files = _walked(system, root) if is_walk else system.find(root, detail=True)
    if not files and root and system.isfile(root):
        return {root: system.info(root)}
    if not files:
        system.ls(root, detail=False)  # a reason is better than none
    return {path: facts for path, facts in files.items() if facts.get("type") != "directory" and path[-1:] != "/"}


def _walked(system: Any, root: str) -> dict[str, dict[str, Any]]:
    files: dict[str, dict[str, Any]] = {}
    folders = [(root, 0)]
    while folders:
        folder, depth = folders.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"folders lie in folders {depth} deep, as {folder}: a circle?")
        for facts in system.ls(folder, detail=True):
            path = facts["name"].rstrip("/")
            if facts["type"] != "directory":
                files[path] = facts
            elif path != folder.rstrip("/") and not facts.get("islink"):
                folders.append((path, depth + 1))
    return files


def _states(
    system: Any,
    setting: str,
    files: Sequence[tuple[str, dict[str, Any]]],
    turn: AbstractContextManager[Any],
    beat: Callable[[], None],
) -> Iterator[State]:
    """The state of every file; what a listing does not tell is asked for, one file at a time where `turn` is a lock."""

    def state(file: tuple[str, dict[str, Any]]) -> State:
        path, facts = file
        if facts.get("size") is None:
            with turn, _Told(f"{setting} cannot be looked through", "start again, or look at the server"):
                facts = system.info(path)
        telling = sorted(
            f"{key}={value}" for key, value in facts.items() if any(word in key.lower() for word in TELLING)
        )
        code = hashlib.blake2b(os.fsencode("\0".join(telling)), digest_size=7).digest()
        size = facts.get("size")
        return (-1 if size is None else int(size), int.from_bytes(code), 0)

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for start in range(0, len(files), NUM_PER_BLOCK):
            yield from pool.map(state, files[start : start + NUM_PER_BLOCK])
            beat()
