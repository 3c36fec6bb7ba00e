"""Files behind a URL, by the drivers of fsspec: s3://, gs://, https:// with a listing, zip://::..., and others.

A driver reads its secrets from its own files and variables, and those of fsspec (~/.config/fsspec, FSSPEC_*).
"""

import contextlib
import errno
import posixpath
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lockstep.data.images.image_table import print_unread
from lockstep.data.transfer.copying import NUM_THREADS, Source, digest_of, is_skipped
from lockstep.system.redaction import redact
from lockstep.system.wording import plural

# parts of the names of attributes that change with the content of a file
CHANGING = ("etag", "md5", "crc", "checksum", "digest", "sha", "modified", "updated", "mtime", "created", "date_time")
ENCODED = ("http", "https")  # their listings contain quoted names
# of storage and archives. Others run programs, log in to machines, or read what a file of theirs names, and the
# configuration of a run may be anybody's
PROTOCOLS = (
    *("http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "hf", "oss", "oci", "hdfs", "webhdfs"),
    *("file", "memory", "zip", "tar"),
)


def strip_query(url: str) -> str:
    """Remove queries, which change when a URL is signed again."""
    return "::".join(part.partition("?")[0] for part in url.split("::"))


def name_of(url: str) -> str:
    """Name of a folder for the files of a URL."""
    parts = [part for part in re.split(r"::|[/:]+", re.sub(r"[?#][^:]*", "", url)) if part]
    return re.sub(r"[^\w.-]+", "_", unquote(parts[-1])).lstrip(".")[:80] or "files"


def errors(url: str) -> Iterator[str]:
    """Yield errors in a URL that are found without a request."""
    from fsspec import get_filesystem_class

    if re.search(r"://[^/?#@:]*:[^/?#]*@|^https?://[^/?#]*@|::https?://[^/?#]*@", url):
        problem = "contains a user or password, which the run folder would store"
        yield f"data.root={redact(url)} {problem}: set them in the files or variables of the driver"
    for part in url.split("::"):
        protocol = part.partition("://")[0]
        if "/" in protocol:  # a path at the end of a chain
            continue
        if protocol not in PROTOCOLS:
            yield f"data.root={redact(url)} cannot be read: {protocol}:// is not one of {', '.join(PROTOCOLS)}"
            continue
        try:
            get_filesystem_class(protocol)
        except (ImportError, ValueError) as error:  # its message names the package to install
            yield f"data.root={redact(url)} cannot be read: {error}"


def files_at(url: str, *, below: str, suffixes: Sequence[str], names: Sequence[str] | None = None) -> Source:
    """List the files of a URL in the folder `below`, only those with `suffixes` unless these are empty.

    With `names`, only these. Raises ValueError if the URL cannot be listed or lacks one, or a name would lie outside of
    the folder of a copy.
    """
    with _explain_errors(url, "listed"):
        system, path = _open_system(url)
        start = f"{path.rstrip('/')}/" if path.rstrip("/") else ""
        listed = {info["name"].rstrip("/"): info for info in _walk_files(system, f"{start}{below}".rstrip("/"))}
    print_unread(f"data.root={redact(url)}", list(map(posixpath.basename, listed)) if suffixes else [])
    paths: dict[str, str] = {}
    for remote_path in sorted(listed):
        name = remote_path.removeprefix(start)
        if url.startswith(ENCODED):
            if "?" in name or "#" in name:
                continue  # links of a server that sort its listing
            name = unquote(name)
        parts = name.split("/")
        if suffixes and not name.lower().endswith(tuple(suffixes)):
            continue
        # an absolute path has an empty first part
        if {"", ".", ".."} & set(parts) or "\0" in name:
            raise ValueError(
                f"data.root={redact(url)} has a file {name!r}, which would lie outside the folder of a copy: rename "
                "the file, or give another folder."
            )
        if not (suffixes and any(map(is_skipped, parts))):
            paths[name] = remote_path
    if names is not None:
        wanted = list(dict.fromkeys(map(posixpath.normpath, names)))
        if missing := [name for name in wanted if name not in paths]:
            lacks = f"data.root={redact(url)} lacks {plural(len(missing), 'file')} of data.file"
            raise ValueError(f"{lacks}, such as {missing[0]}: correct the list or the URL.")
        paths = {name: paths[name] for name in wanted}
    if not paths:
        raise ValueError(
            f"data.root={redact(url)} has no files to copy{f' in {below}' if below else ''} "
            f"({', '.join(suffixes) or 'any'}): give a folder, or an archive as data.root=zip://::{redact(url)}"
        )
    bare = [path for path in paths.values() if listed[path].get("size") is None]  # as in listings of web servers
    with _explain_errors(url, "listed"), ThreadPoolExecutor(NUM_THREADS) as pool:
        listed |= zip(bare, pool.map(system.info, bare), strict=True)

    def fetch(names: Sequence[str], folder: Path) -> None:
        with _explain_errors(url, "fetched"):
            system.get([paths[name] for name in names], [str(folder / name) for name in names])

    sizes = {name: listed[path].get("size") for name, path in paths.items()}
    return Source(sizes, digest_of((name, _state(listed[path])) for name, path in paths.items()), fetch)


def check(url: str) -> None:
    """Raise ValueError if a URL cannot be reached, by one request."""
    with _explain_errors(url, "listed"):
        system, path = _open_system(url)
        system.ls(path, detail=False)


@contextlib.contextmanager
def _explain_errors(url: str, done: str) -> Iterator[None]:
    """Convert exceptions of drivers to ValueErrors without secrets, except those of a full disk."""
    try:
        yield
    except Exception as error:  # drivers raise any exception
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise
        text = redact(f"{type(error).__name__}: {' '.join(str(error).split())}")[:300]
        hint = "correct the URL, check credentials, or try again."
        raise ValueError(f"data.root={redact(url)} cannot be {done} ({text}): {hint}") from None


def _open_system(url: str) -> tuple[Any, str]:
    """Open the file system of a URL, without cached listings, and return the path in it."""
    from fsspec.core import url_to_fs

    system, path = url_to_fs(url)
    system.invalidate_cache()  # of an earlier job in this process
    return system, path


def _walk_files(system: Any, folder: str) -> Iterator[dict[str, Any]]:
    """Yield the attributes of every file. fsspec's walk silently omits folders that cannot be listed (2026.9)."""
    from fsspec.implementations.zip import ZipFileSystem

    if isinstance(system, ZipFileSystem):  # which scans all its files to list one folder
        found: Any = system.find(folder, detail=True)
        yield from found.values()
        return
    for info in system.ls(folder, detail=True):
        path = info["name"].rstrip("/")
        if info["type"] != "directory":
            yield info
        elif path != folder.rstrip("/"):
            yield from _walk_files(system, path)


def _state(info: dict[str, Any]) -> list[str]:
    known = (f"{key}={value}" for key, value in info.items() if any(word in key.lower() for word in CHANGING))
    return [str(info.get("size")), *sorted(known)]
