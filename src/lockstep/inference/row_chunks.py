"""Rows of all images by any number of workers, in one file.

Images are split into chunks that do not depend on the workers, so the bits of the rows do not
either. Each worker takes the next chunk when it is free. Its threads read files, and on a CPU they
call the network that all of them share. Each rank appends its chunks to a hidden file, as one line
of JSON each, and rank 0 joins the files. Hidden files are next to the output, which may be on
another disk.
"""

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.assembly.session import Session
from lockstep.data.images.dataset_samples import Samples
from lockstep.data.images.image_files import NUM_PER_RUN, ImageFiles
from lockstep.data.splits import ImageError, Images
from lockstep.data.transfer.file_lock import Progress
from lockstep.distributed.collectives import gather_objects
from lockstep.models.classifier import ImageFormat
from lockstep.runs import files
from lockstep.runs.files import csv_text
from lockstep.runs.naming import display_path
from lockstep.system.internals import shared_count

# Maximum number of pixels of a chunk on a CPU. The feature maps of more images come from fresh
# pages in every layer. This takes 13.6 in place of 7.5 ms for an image of 224 pixels (ResNet-18 of
# width 8, one thread of an AMD EPYC, 2026-11-27).
MAX_PIXELS = 4 * 224**2
Index = tuple[Path, dict[int, int]]  # a file, and the offset of each of its chunks
# The arguments are positions (n,), pixels (n, C, H, W) and targets (n, ...). Several threads call
# it at once.
RowsOf = Callable[[Tensor, Tensor, Tensor], list[list[str]]]
RowWriter = Callable[[Iterator[str]], None]  # takes the rows of each chunk, as CSV


class Chunk(NamedTuple):
    """Rows of a part of the images as CSV, and an error for each image that cannot be read."""

    number: int
    rows: str
    errors: list[str]


@dataclass(frozen=True)
class RowFile:
    """A file of rows, which `write` writes on rank 0.

    Until then the chunks are next to its path. If `is_strict`, nothing is written if an image
    cannot be read.
    """

    path: Path
    write: RowWriter
    is_strict: bool = True


def write_rows(
    session: Session, image_format: ImageFormat, images: Images, rows_of: RowsOf, file: RowFile
) -> list[str]:
    """Write the rows of all images, and return the errors of those that cannot be read.

    The network that computes the rows takes images of the `image_format`. Every rank must call it.
    """
    height, width = image_format.image_shape[1:]
    fitting = MAX_PIXELS // (height * width) if session.device.type == "cpu" else NUM_PER_RUN
    size = max(1, min(session.config.eval_batch_size, NUM_PER_RUN, fitting))
    session.on_rank_0(lambda: prepare(file.path))
    with hidden_file(file.path) as path:
        chunks = _take_chunks(session, images, rows_of, size, str(file.path))
        indexes = gather_objects(write_chunks(path, chunks))
        join_all = partial(join, indexes, file.write, is_strict=file.is_strict)
        return session.on_rank_0(join_all) or []


def _take_chunks(
    session: Session, images: Images, rows_of: RowsOf, size: int, counter_name: str
) -> Iterator[Chunk]:
    """Yield computed chunks of `size` images.

    This rank takes the next chunk when it is free. A `counter_name` can be used only once.
    """
    runs = torch.arange(len(images)).split(size)
    counts = itertools.takewhile(lambda count: count < len(runs), shared_count(counter_name))
    numbered_runs = ((count, runs[count]) for count in counts)
    # Otherwise a worker with many threads would take all of a few chunks.
    max_threads = min(torch.get_num_threads(), math.ceil(len(runs) / session.world_size))
    progress = Progress("Predicting", "images")
    for chunk in compute_chunks(session.device, images, numbered_runs, rows_of, max_threads):
        yield chunk
        if session.is_shown:
            progress.show(chunk.number * size, len(images))


def compute_chunks(
    device: torch.device,
    images: Images,
    numbered_runs: Iterable[tuple[int, Tensor]],
    rows_of: RowsOf,
    count: int,
) -> Iterator[Chunk]:
    """Yield the chunk of each number and positions (n,), as soon as it is computed.

    Up to `count` threads compute the chunks. A kernel on a CPU has one thread, because its rounding
    depends on the number of threads, and its threads would wait for those that decode. For a GPU
    the threads only read. Samples of a Dataset are read by the caller's thread, which they may
    need.
    """
    on_cpu, source = device.type == "cpu", images.pixels

    def work(
        number: int, positions: Tensor, pixels: Tensor, targets: Tensor
    ) -> Callable[[], Chunk]:
        errors: dict[int, str] = {}
        if isinstance(source, ImageFiles):
            pixels, errors = source.read(positions)
        readable_rows = [
            row for row, position in enumerate(positions.tolist()) if position not in errors
        ]

        def finish() -> Chunk:
            rows: list[list[str]] = []
            if readable_rows:  # A network may fail on a batch without an image.
                tensors = (positions, pixels, targets)
                rows = rows_of(*(values[readable_rows] for values in tensors))
            return Chunk(number, csv_text(rows), [errors[key] for key in sorted(errors)])

        return partial(Chunk, *finish()) if on_cpu else finish

    num_threads = (
        source.num_threads(count) if isinstance(source, ImageFiles) and not on_cpu else count
    )
    max_pending = count if on_cpu else count + 1  # One more chunk is the one that the GPU computes.
    runs, futures = iter(numbered_runs), set[Future[Callable[[], Chunk]]]()
    threads = ThreadPoolExecutor(num_threads, "chunk", torch.set_num_threads, (1,))
    try:
        while True:
            for number, positions in itertools.islice(runs, max_pending - len(futures)):
                futures.add(threads.submit(work, number, positions, *_read(images, positions)))
            if not futures:
                return
            future = next(as_completed(futures))
            futures.remove(future)
            yield future.result()()
    finally:
        # A signal ends the process regardless of what the threads compute.
        threads.shutdown(wait=False)


def _read(images: Images, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pixels (n, C, H, W), which are empty for files, and the targets (n, ...)."""
    if isinstance(images.pixels, Samples):
        return images.pixels.make(positions, 0)
    is_later = isinstance(images.pixels, ImageFiles)
    return torch.empty(0) if is_later else images.pixels[positions], images.targets[positions]


def prepare(output: Path) -> None:
    """Create the folder of `output`, and remove the hidden files of killed commands.

    Raises ValueError if another process is writing `output`.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    for path in output.parent.glob(".*"):
        is_temporary = files.LEFTOVER.fullmatch(path.name) is not None
        if not is_temporary or path.name.rsplit(".", 2)[0] != f".{output.name}":
            continue
        is_locked = files.is_locked(path)
        if is_locked:
            raise ValueError(
                f"{display_path(output)} is being written by another process: "
                "wait for it to end, or choose another --output"
            )
        if is_locked is False:
            files.remove(path)


@contextlib.contextmanager
def hidden_file(output: Path) -> Iterator[Path]:
    """Create and lock a hidden file next to `output`, and remove it at the end."""
    path = output.with_name(files.temporary_name(output))
    try:
        with files.hold_lock(path):
            yield path
    finally:
        files.remove(path)


def write_chunks(path: Path, chunks: Iterable[Chunk]) -> Index:
    """Append chunks to a file, and return their offsets."""
    offsets: dict[int, int] = {}
    with open(path, "ab", opener=files.open_regular) as file:
        for chunk in chunks:
            offsets[chunk.number] = file.tell()
            file.write(f"{json.dumps(chunk)}\n".encode())
    return path, offsets


def join(indexes: Sequence[Index], write: RowWriter, *, is_strict: bool) -> list[str]:
    """Let `write` write the rows of all chunks in order, and return the errors of their images.

    Raises ImageError, inside `write`, if there are no rows, or if there are errors and `is_strict`.
    """
    errors: list[str] = []
    places = {
        number: (path, offset) for path, offsets in indexes for number, offset in offsets.items()
    }

    def rows() -> Iterator[str]:
        has_rows = False
        for number in range(len(places)):
            path, offset = places[number]
            sources[path].seek(offset)
            chunk = Chunk(*json.loads(sources[path].readline()))
            yield chunk.rows
            errors.extend(chunk.errors)
            has_rows = has_rows or bool(chunk.rows)
        if errors and (is_strict or not has_rows):
            raise ImageError(errors)

    with contextlib.ExitStack() as stack:
        sources = {
            path: stack.enter_context(open(path, "rb", opener=files.open_regular))
            for path, _ in indexes
        }
        write(rows())
    return errors


def write_table(output: Path, header: Sequence[str], rows: Iterable[str]) -> None:
    """Write a header and rows to a CSV file atomically."""
    with files.atomic_file(output) as file:
        for chunk in itertools.chain([csv_text([header])], rows):
            file.write(chunk.encode(errors="surrogateescape"))  # A file name need not be UTF-8.
