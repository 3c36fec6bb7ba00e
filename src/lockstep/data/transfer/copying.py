"""Copy files from a folder or a URL to a local disk, once for all processes of a machine.

A copy is the folder `<name>-<key>/`. It contains the files, in `<name>/`, and their record
(image_table.py), which is written last. Files are read by the drivers of fsspec, which find secrets
in their configuration files and environment variables. This module does not import torch.
"""

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from lockstep.data.images.image_table import COPY_RECORD, copied_digest, read_record, states_of
from lockstep.data.transfer.file_lock import Progress, wait_for_lock
from lockstep.runs.files import is_folder_of_user, write_json
from lockstep.system.redaction import redact

NUM_THREADS = 32  # Threads mostly wait for a network or a disk.
ARCHIVES = ("zip", "tar")
# An attribute of a file in a listing changes with the content if its name contains one of these.
CHANGING = "size|etag|md5|crc|checksum|digest|sha|modified|updated|mtime|date_time"
# These are the protocols of storage and archives. The configuration of a run may come from anybody,
# and other protocols run programs, log in to machines, or read what one of their files names.
PROTOCOLS = (
    "http",
    "https",
    "s3",
    "s3a",
    "gs",
    "gcs",
    "az",
    "abfs",
    "abfss",
    "adl",
    "hf",
    "oss",
    "oci",
    "hdfs",
    "webhdfs",
    "file",
    "memory",
    *ARCHIVES,
)


class Files(NamedTuple):
    """Files to copy, as paths in a file system of fsspec by their names in the copy.

    `origin` is their folder or URL, without secrets. `key` selects a copy. `digest` changes with
    any of the files. If it is empty, a digest of the contents is recorded.
    """

    origin: str
    system: Any
    paths: Mapping[str, str]
    key: str
    digest: str = ""


def copy(files: Files, folder: Path, setting: str) -> tuple[str, str]:
    """Copy files, unless `folder` has a complete copy of them.

    Returns the path of the copy below the folder, and the digest of its files. Raises ValueError.
    """
    name = name_of(files.origin)
    copy_folder = folder / f"{name}-{files.key[:12]}"
    names = list(files.paths)
    with explain_errors(f"{setting}: {files.origin} cannot be copied"):
        folder.mkdir(parents=True, exist_ok=True)
        with wait_for_lock(folder / f".{name}.lock", f"copies {name}"):
            if os.path.lexists(copy_folder) and not is_folder_of_user(copy_folder):
                raise PermissionError(
                    f"{copy_folder} belongs to another user, use a folder of your own"
                )
            states = states_of(copy_folder / name, names)[0]
            record = read_record(copy_folder / name, names, states)
            # There is no record, it is damaged, or a process was killed while copying.
            if not record:
                shutil.rmtree(copy_folder, ignore_errors=True)
                record = _fetch(files, copy_folder / name)
            elif not files.digest:
                print(
                    f"Reading the copy of {files.origin}: "
                    f"delete {copy_folder} to download it again",
                    flush=True,
                )
    return f"{copy_folder.name}/{name}", record["digest"]


def list_files(url: str) -> tuple[Any, dict[str, dict[str, Any]]]:
    """Return the file system of a URL, and the attributes of its files by name below the URL."""
    from fsspec.core import url_to_fs

    # The instance cache is skipped, because it has the listings of an earlier run.
    system, folder = url_to_fs(url, skip_instance_cache=True)
    if system.protocol in ARCHIVES:  # These scan all their files to list one folder.
        infos = [*system.find(folder, detail=True).values()]
    else:
        walk = system.walk(folder, detail=True, on_error="raise")
        infos = [info for _, _, files in walk for info in files.values()]
    names = [info["name"].removeprefix(f"{folder.rstrip('/')}/") for info in infos]
    # The listings of web servers have percent-encoded names.
    decode = unquote if url.startswith("http") else str
    return system, dict(zip(map(decode, names), infos, strict=True))


def state_of(info: Mapping[str, Any]) -> list[str]:
    """Return the attributes in a listing that change with the content of a file.

    The result is empty for web servers, which list no such attributes.
    """
    return [f"{key}={info[key]}" for key in sorted(info) if re.search(CHANGING, key, re.I)]


def url_errors(url: str) -> Iterator[str]:
    """Yield the errors in a URL that are found without a request."""
    if re.search(r"://[^/?#@:]*:[^/?#]*@|^https?://[^/?#]*@|::https?://[^/?#]*@", url):
        yield (
            f"data.root={redact(url)} contains a user or password, which the run folder would "
            "store: set them in the files or variables of the driver"
        )
    for component in url.split("::"):
        protocol = component.partition("://")[0]
        # A component with a slash is a path at the end of a chain.
        if protocol not in PROTOCOLS and "/" not in protocol:
            yield (
                f"data.root={redact(url)} cannot be read: "
                f"{protocol}:// is not one of {', '.join(PROTOCOLS)}"
            )


def name_of(origin: str) -> str:
    """Return a folder name for the files of another folder or of a URL."""
    name = unquote(origin.partition("?")[0].rstrip("/").rpartition("/")[2])
    return re.sub(r"[^\w .-]+", "_", name).lstrip(".")[:80] or "files"


@contextlib.contextmanager
def explain_errors(problem: str) -> Iterator[None]:
    """Convert exceptions of disks and drivers to ValueErrors without secrets."""
    try:
        yield
    except Exception as error:  # Drivers can raise any exception.
        message = redact(f"{type(error).__name__}: {' '.join(str(error).split())}")[:300]
        raise ValueError(
            f"{problem} ({message}): check the path or URL, credentials, permissions and free "
            "space."
        ) from None


def _fetch(files: Files, folder: Path) -> dict[str, str]:
    """Copy files into a new folder, and return their record.

    A second name of a file becomes a link, so that both names are one image.
    """
    if not files.paths:
        raise ValueError(
            f"no files: give a folder, or an archive as data.root=zip://::{files.origin}"
        )
    name, originals = folder.name, {}
    for file, path in files.paths.items():
        if {"", ".", ".."} & {*file.split("/")}:  # An absolute path starts with an empty part.
            raise ValueError(
                f"{file} is not below {files.origin}: set data.root to a folder of all files"
            )
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        original = originals.setdefault(path, target)
        if original != target:
            target.symlink_to(os.path.relpath(original, target.parent))
    progress = Progress(f"Copying {name}", "files")
    # Threads cannot share an archive.
    num_threads = 1 if files.system.protocol in ARCHIVES else NUM_THREADS
    with ThreadPool(num_threads) as pool:
        copies = pool.imap(
            lambda path: files.system.get_file(path, str(originals[path])), originals
        )
        for count, _ in enumerate(copies):
            progress.show(count, len(originals))
    print(
        f"Copied {len(originals):,} files of {name} in {progress.elapsed_s:.1f} s",
        flush=True,
    )
    names = list(files.paths)
    states, _ = states_of(folder, names)
    contents = [hashlib.blake2b(path.read_bytes()).hexdigest() for path in originals.values()]
    record = {
        "origin": files.origin,
        "digest": files.digest or copied_digest(names, contents),
        "files": copied_digest(names, states[:, :2].tolist()),
    }
    write_json(folder.parent / COPY_RECORD, record)
    return record
