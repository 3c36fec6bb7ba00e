"""Copies of files on a local disk, from a folder or a URL, made once for all processes of a machine.

A copy is the folder `<name>-<digest of the files>/`. It contains the files, in `<name>/`, and their record
(image_table.py). An incomplete copy is called `<name>-<digest>-part`. All files are read by the drivers of fsspec,
which find secrets in their own files and variables. No torch.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lockstep.data.images.image_table import COPY_RECORD, copied_digest, read_record, states_of
from lockstep.data.transfer.file_lock import Progress, wait_for_lock
from lockstep.runs.files import is_own_folder, write_json
from lockstep.system.redaction import redact

NUM_THREADS = 32  # which wait for a network or a disk
ARCHIVES = ("zip", "tar")
# parts of the names of attributes that change with the content of a file
CHANGING = ("etag", "md5", "crc", "checksum", "digest", "sha", "modified", "updated", "mtime", "created", "date_time")
# of storage and archives. Others run programs, log in to machines, or read what a file of theirs names, and the
# configuration of a run may be anybody's
PROTOCOLS = (
    *("http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "hf", "oss", "oci", "hdfs", "webhdfs"),
    *("file", "memory", *ARCHIVES),
)


@dataclass(frozen=True, eq=False)
class Files:
    """Files to copy: their paths in a file system of fsspec, by their names in the copy.

    `digest` changes with any of them. `origin` is their folder or URL, without secrets.
    """

    origin: str
    system: Any
    paths: Mapping[str, str]
    digest: str


def copy(files: Files, folder: Path, setting: str) -> str:
    """Copy files unless `folder` has a complete copy. Returns the path of the copy below it. Raises ValueError."""
    name, names = name_of(files.origin), list(files.paths)
    place = folder / f"{name}-{files.digest[:12]}"
    part = place.with_name(f"{place.name}-part")
    for file in names:
        if {"", ".", ".."} & {*file.split("/")}:  # an absolute path has an empty first part
            raise ValueError(f"{setting}: {file} is not below {files.origin}: set data.root to a folder of all files.")
    with explain_errors(f"{setting}: {files.origin} cannot be copied"):
        folder.mkdir(parents=True, exist_ok=True)
        with wait_for_lock(folder / f".{name}.lock", f"copies {name}"):
            for path in (place, part):
                if os.path.lexists(path) and not is_own_folder(path):
                    raise PermissionError(f"{path} belongs to another user, use a folder of your own")
            if not read_record(place / name, names, states_of(place / name, names)[0]):
                for path in (place, part):  # a damaged copy, and one of a killed process
                    shutil.rmtree(path, ignore_errors=True)
                try:
                    _fetch(files, part / name)
                    states = states_of(part / name, names)[0][:, :2].tolist()
                    record = {"origin": files.origin, "digest": files.digest, "files": copied_digest(names, states)}
                    write_json(part / COPY_RECORD, record)
                    part.rename(place)
                finally:
                    shutil.rmtree(part, ignore_errors=True)
    return f"{place.name}/{name}"


def list_files(root: str, origin: str, below: str) -> tuple[Any, dict[str, dict[str, Any]]]:
    """Return the file system of a folder or URL, and its files in the folder `below` by name. Raises ValueError."""
    from fsspec.core import url_to_fs

    with explain_errors(f"data.root={origin} cannot be listed"):
        system, path = url_to_fs(root, skip_instance_cache=True)  # has no listings of an earlier run
        start = f"{path.rstrip('/')}/"
        found = list(_walk(system, f"{start}{below}".rstrip("/")))
    files = {info["name"].removeprefix(start): info for info in found}
    if root.startswith("http"):  # the listings of web servers have quoted names
        files = {unquote(name): info for name, info in files.items()}
    return system, files


def with_states(origin: str, system: Any, files: Mapping[str, dict[str, Any]]) -> Files:
    """Return files of a listing, with a digest of their states. Raises ValueError."""
    if not files:
        hint = f"give a folder, or an archive as data.root=zip://::{origin}"
        raise ValueError(f"data.root={origin} has no files to copy: {hint}")
    with explain_errors(f"data.root={origin} cannot be listed"), ThreadPool(NUM_THREADS) as pool:
        states = pool.map(lambda info: _state(system, info), files.values())
    paths = {name: info["name"] for name, info in files.items()}
    return Files(origin, system, paths, copied_digest(list(paths), states))


def url_errors(url: str) -> Iterator[str]:
    """Yield errors in a URL that are found without a request."""
    if re.search(r"://[^/?#@:]*:[^/?#]*@|^https?://[^/?#]*@|::https?://[^/?#]*@", url):
        problem = "contains a user or password, which the run folder would store"
        yield f"data.root={redact(url)} {problem}: set them in the files or variables of the driver"
    for part in url.split("::"):
        protocol = part.partition("://")[0]
        if protocol not in PROTOCOLS and "/" not in protocol:  # with a slash, a path at the end of a chain
            yield f"data.root={redact(url)} cannot be read: {protocol}:// is not one of {', '.join(PROTOCOLS)}"


def check(url: str) -> None:
    """Raise ValueError if a URL cannot be reached, by one request."""
    from fsspec.core import url_to_fs

    with explain_errors(f"data.root={redact(url)} cannot be listed"):
        system, path = url_to_fs(url, skip_instance_cache=True)
        system.ls(path, detail=False)


def name_of(origin: str) -> str:
    """Name of a folder for the files of another folder or of a URL."""
    name = unquote(origin.partition("?")[0].rstrip("/").rpartition("/")[2])
    return re.sub(r"[^\w .-]+", "_", name).lstrip(".")[:80] or "files"


@contextlib.contextmanager
def explain_errors(problem: str) -> Iterator[None]:
    """Convert exceptions of disks and drivers to ValueErrors without secrets."""
    try:
        yield
    except Exception as error:  # drivers raise any exception
        text = redact(f"{type(error).__name__}: {' '.join(str(error).split())}")[:300]
        hint = "check the path or URL, credentials, permissions and free space."
        raise ValueError(f"{problem} ({text}): {hint}") from None


def _walk(system: Any, folder: str) -> Iterator[dict[str, Any]]:
    """Yield the attributes of every file. fsspec's walk silently omits folders that cannot be listed (2026.9)."""
    if system.protocol in ARCHIVES:  # which scan all their files to list one folder
        yield from system.find(folder, detail=True).values()
        return
    for info in system.ls(folder, detail=True):
        path = info["name"].rstrip("/")
        if info["type"] != "directory":
            yield info
        elif path != folder:
            yield from _walk(system, path)


def _state(system: Any, info: dict[str, Any]) -> list[str]:
    """Return the attributes of a file that change with its content. Listings of web servers have none."""
    info = system.info(info["name"]) if info.get("size") is None else info
    changing = (f"{key}={value}" for key, value in info.items() if any(word in key.lower() for word in CHANGING))
    return [str(info.get("size")), *sorted(changing)]


def _fetch(files: Files, folder: Path) -> None:
    """Copy files; a second name of a file becomes a link, so that both are one image in the copy, too."""
    firsts: dict[str, Path] = {}
    for name, path in files.paths.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        first = firsts.setdefault(path, target)
        if first != target:
            target.symlink_to(os.path.relpath(first, target.parent))
    progress = Progress(f"Copying {folder.name}", "files")
    pairs = [(path, str(target)) for path, target in firsts.items()]
    num_threads = 1 if files.system.protocol in ARCHIVES else NUM_THREADS  # threads cannot share an archive
    with ThreadPool(num_threads) as pool:
        for count, _ in enumerate(pool.imap(lambda pair: files.system.get_file(*pair), pairs)):
            progress.show(count, len(pairs))
    progress.end()
    print(f"Copied {len(pairs):,} files of {folder.name} in {progress.elapsed_s:.1f} s", flush=True)
