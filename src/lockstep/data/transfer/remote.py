"""Files behind a URL, through the drivers of fsspec: s3://, gs://, https:// with a listing, zip://::..., and others.

A driver finds its secrets itself: in its own files and variables, and in those of fsspec (~/.config/fsspec, FSSPEC_*).
"""

import contextlib
import errno
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lockstep.data.transfer.copying import NUM_THREADS, Source, digest_of, is_left_out
from lockstep.system.redaction import redacted

# what drivers tell of the content of a file, or of its last change
TELLING = ("etag", "md5", "crc", "checksum", "digest", "sha", "modified", "updated", "mtime", "created", "date_time")
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


def errors(url: str) -> Iterator[str]:
    """Errors in a URL that are found without asking its server."""
    from fsspec import get_filesystem_class

    if re.search(r"://[^/?#@]*:[^/?#]*@|^https?://[^/?#]*@|::https?://[^/?#]*@", url):
        yield (
            f"data.root={redacted(url)} has a user or password in it, which the run folder would keep: give them to "
            "the driver in its own files or variables"
        )
    for part in url.split("::"):
        protocol = part.partition("://")[0]
        try:
            if "/" not in protocol:  # else a path at the end of a chain
                get_filesystem_class(protocol)
        except (ImportError, ValueError) as error:  # which says what to install
            yield f"data.root={redacted(url)} cannot be read: {error}"


def files_at(url: str, *, below: str, suffixes: Sequence[str]) -> Source:
    """The files behind a URL; only those in the folder `below`, only those with these `suffixes` if there are any.

    Raises ValueError where the URL cannot be listed, or has a name that leads out of the folder of a copy.
    """
    with _explained(url, "listed"):
        system, path = _opened(url)
        start = f"{path.rstrip('/')}/" if path.rstrip("/") else ""
        listed = {facts["name"].rstrip("/"): facts for facts in _walked(system, f"{start}{below}".rstrip("/"))}
    paths: dict[str, str] = {}
    for remote_path in sorted(listed):
        name = remote_path.removeprefix(start)
        if url.startswith(ENCODED):
            if "?" in name or "#" in name:
                continue  # a server's links for another order of its listing
            name = unquote(name)
        parts = name.split("/")
        if suffixes and not name.lower().endswith(tuple(suffixes)):
            continue
        # no part may be empty either: "/etc/passwd" joined to a folder is /etc/passwd
        if {"", ".", ".."} & set(parts) or "\0" in name:
            raise ValueError(
                f"data.root={redacted(url)} has a file {name!r}, which would lie outside the folder of a copy: give a "
                "folder, or rename the file."
            )
        if not (suffixes and any(map(is_left_out, parts))):
            paths[name] = remote_path
    if not paths:
        raise ValueError(
            f"data.root={redacted(url)} has no files to copy{f' in {below}' if below else ''} "
            f"({', '.join(suffixes) or 'any'}): give a folder; an archive is one as data.root=zip://::{redacted(url)}"
        )
    bare = [path for path in paths.values() if listed[path].get("size") is None]  # as in the pages of a server
    with _explained(url, "listed"), ThreadPoolExecutor(NUM_THREADS) as pool:
        listed |= zip(bare, pool.map(system.info, bare), strict=True)

    def fetch(names: Sequence[str], folder: Path) -> None:
        with _explained(url, "fetched"):
            system.get([paths[name] for name in names], [str(folder / name) for name in names])

    sizes = {name: listed[path].get("size") for name, path in paths.items()}
    return Source(sizes, digest_of((name, _state(listed[path])) for name, path in paths.items()), fetch)


def check(url: str) -> None:
    """Raise ValueError where nothing answers at a URL. Asks once; nothing is walked through."""
    with _explained(url, "listed"):
        system, path = _opened(url)
        system.ls(path, detail=False)


@contextlib.contextmanager
def _explained(url: str, done: str) -> Iterator[None]:
    """Turns whatever a driver raises into a ValueError without secrets; a full disk stays what it is."""
    try:
        yield
    except Exception as error:  # the border to drivers, each with exceptions of its own
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise
        text = redacted(f"{type(error).__name__}: {' '.join(str(error).split())}")[:300]
        hint = "correct the URL, give its driver access, or try again."
        raise ValueError(f"data.root={redacted(url)} cannot be {done} ({text}): {hint}") from None


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, which knows nothing of an earlier look, and the path there."""
    from fsspec.core import url_to_fs

    system, path = url_to_fs(url)
    system.invalidate_cache()  # drivers live as long as the process: another job of a sweep must see what is there
    return system, path


def _walked(system: Any, folder: str) -> Iterator[dict[str, Any]]:
    """What is known of every file; fsspec's own walk omits folders that cannot be listed, without a word (2026.9)."""
    from fsspec.implementations.zip import ZipFileSystem

    find = system.find
    if isinstance(system, ZipFileSystem):  # which looks at all its files to list one folder
        yield from find(folder, detail=True).values()
        return
    for facts in system.ls(folder, detail=True):
        path = facts["name"].rstrip("/")
        if facts["type"] != "directory":
            yield facts
        elif path != folder.rstrip("/"):
            yield from _walked(system, path)


def _state(facts: dict[str, Any]) -> list[str]:
    """What a driver knows of the content of a file."""
    known = (f"{key}={value}" for key, value in facts.items() if any(word in key.lower() for word in TELLING))
    return [str(facts.get("size")), *sorted(known)]
