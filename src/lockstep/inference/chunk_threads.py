"""Chunks of rows, computed by threads: each reads files, and on a CPU calls the network that all of them share."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from lockstep.data.images.dataset_samples import Samples
from lockstep.data.images.image_files import ImageFiles
from lockstep.data.splits import Images
from lockstep.inference.row_chunks import Chunk
from lockstep.runs.files import csv_text

# of positions (n,), pixels (n, C, H, W) and targets (n, ...), called by several threads at once
RowsOf = Callable[[Tensor, Tensor, Tensor], list[list[str]]]


def compute_chunks(
    device: torch.device, images: Images, numbered: Iterable[tuple[int, Tensor]], rows_of: RowsOf, count: int
) -> Iterator[Chunk]:
    """Yield the chunk of each number and positions (n,), as soon as it is computed, by up to `count` threads.

    A kernel of a CPU has one thread: it rounds by their number, and its threads would wait for those that decode. For a
    GPU the threads only read. Samples of a Dataset are read by the caller's thread, which they may need.
    """
    on_cpu, files = device.type == "cpu", images.pixels

    def chunk_of(number: int, positions: Tensor, pixels: Tensor, targets: Tensor, errors: dict[int, str]) -> Chunk:
        kept = [row for row, position in enumerate(positions.tolist()) if position not in errors]
        # a network may fail without an image
        rows = rows_of(positions[kept], pixels[kept], targets[kept]) if kept else []
        return Chunk(number, csv_text(rows), [errors[key] for key in sorted(errors)])

    def work(number: int, positions: Tensor, known: Tensor, targets: Tensor) -> Callable[[], Chunk]:
        pixels, errors = files.read(positions) if isinstance(files, ImageFiles) else (known, dict[int, str]())
        finish = partial(chunk_of, number, positions, pixels, targets, errors)
        return partial(Chunk, *finish()) if on_cpu else finish

    num_threads = files.num_threads(count) if isinstance(files, ImageFiles) and not on_cpu else count
    most = count if on_cpu else count + 1  # with the one that the GPU computes
    source, pending = iter(numbered), set[Future[Callable[[], Chunk]]]()
    threads = ThreadPoolExecutor(num_threads, "chunk", torch.set_num_threads, (1,))
    try:
        while True:
            for number, positions in islice(source, most - len(pending)):
                pending.add(threads.submit(work, number, positions, *_read(images, positions)))
            if not pending:
                return
            done = next(as_completed(pending))
            pending.remove(done)
            yield done.result()()
    finally:
        threads.shutdown(wait=False)  # a signal ends the process, whatever they compute


def _read(images: Images, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pixels (n, C, H, W), none of files, and the targets (n, ...)."""
    if isinstance(images.pixels, Samples):
        return images.pixels.make(positions, 0)
    is_later = isinstance(images.pixels, ImageFiles)
    return torch.empty(0) if is_later else images.pixels[positions], images.targets[positions]
