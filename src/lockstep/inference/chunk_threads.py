"""Chunks of rows, computed by threads: each reads files, and on a CPU has its own copy of the network."""

import copy
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from lockstep.config.errors import ConfigError, Error, one_line
from lockstep.data.images.dataset_samples import Samples
from lockstep.data.images.image_files import ImageFiles
from lockstep.data.splits import Images
from lockstep.inference.row_chunks import Chunk
from lockstep.models.classifier import Classifier
from lockstep.runs.files import csv_text

# by a copy of the module, of positions (n,), pixels (n, C, H, W) and targets (n, ...)
RowsOf = Callable[[Classifier, Tensor, Tensor, Tensor], list[list[str]]]


def compute_chunks(
    module: Classifier, images: Images, numbered: Iterable[tuple[int, Tensor]], rows_of: RowsOf, count: int
) -> Iterator[Chunk]:
    """Yield the chunk of each number and positions (n,), as soon as it is computed, by up to `count` threads.

    A kernel of a CPU has one thread: it rounds by their number, and its threads would wait for those that decode. For a
    GPU the threads only read. Samples of a Dataset are read by the caller's thread, which they may need.
    """
    on_cpu, files, free = module.device.type == "cpu", images.pixels, SimpleQueue[Classifier]()
    for each in _copies(module, count if on_cpu else 1):
        free.put(each)

    def chunk_of(number: int, positions: Tensor, pixels: Tensor, targets: Tensor, errors: dict[int, str]) -> Chunk:
        kept = [row for row, position in enumerate(positions.tolist()) if position not in errors]
        own = free.get()
        try:  # a network may fail without an image
            rows = rows_of(own, positions[kept], pixels[kept], targets[kept]) if kept else []
        finally:
            free.put(own)
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


def _copies(module: Classifier, count: int) -> list[Classifier]:
    """Return the module and copies that share its weights. Raises ConfigError if it cannot be copied."""
    shared = {id(parameter): parameter for parameter in module.parameters()}
    try:
        return [module, *(copy.deepcopy(module, dict[int, Any](shared)) for _ in range(1, count))]
    except Exception as error:  # of custom code
        hint = f"set OMP_NUM_THREADS=1 ({type(error).__name__}: {one_line(error)})"
        raise ConfigError(Error(type(module.net).__name__, "cannot be copied for several threads", hint)) from error
