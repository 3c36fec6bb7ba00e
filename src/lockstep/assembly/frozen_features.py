"""Features of a frozen network, computed once for each image by all workers.

They are kept in the cache of the images. A network, with its weights and precision, has a file
`<cache>/features-<name>-<hash>.npy` with a record for each image. A record contains the digest of
the pixels that the network receives, and the input of the head. Images that are not in the file are
added to it.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from lockstep.assembly.agreement import together
from lockstep.assembly.precision import end_training_precision
from lockstep.assembly.session import Session
from lockstep.callbacks.stop import StopTogether
from lockstep.config.errors import ConfigError, config_error
from lockstep.config.schema.configuration import Config
from lockstep.data.images.decoded_splits import is_trusted
from lockstep.data.loader import NUM_AHEAD, read_ahead
from lockstep.data.module import ImageData
from lockstep.data.splits import Pixels, makes_targets
from lockstep.data.transfer.file_lock import Progress, wait_for_lock
from lockstep.distributed import collectives
from lockstep.distributed.collectives import broadcast, gather_objects
from lockstep.models.classifier import Classifier
from lockstep.models.frozen import TakesFeatures, head_inputs
from lockstep.runs.files import atomic_file

FORMAT = 1  # Increase this when the same network gives other features.
CHUNK = 64  # images of a forward pass, on any number of workers
# These keys change no feature of the same weights.
FREE_KEYS = ("pretrained", "head_only", "frozen_norms")

T = TypeVar("T")


class FrozenFeatures(Callback):
    """Serves features in place of images from the start of a fit, when the weights are loaded."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._serve(trainer, pl_module, self._session, ("train", "val", "test"))

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Serve features in float32 for the steps after a training in another precision."""
        end_training_precision(trainer, pl_module)
        if self._session.precision not in ("float32", "float64"):
            self._serve(
                trainer, pl_module, replace(self._session, precision="float32"), ("val", "test")
            )

    @torch.no_grad()
    def _serve(
        self, trainer: Trainer, module: LightningModule, session: Session, splits: Iterable[str]
    ) -> None:
        """Compute the features that the cache lacks, and serve them.

        If a stop is requested, the features computed so far are kept. Raises ConfigError on all
        ranks if the data, the batches, the network or the cache do not allow it.
        """
        config = session.config
        data = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        assert isinstance(data, ImageData)
        assert isinstance(module, Classifier)
        pixels = {split: data.splits.by_name[split].pixels for split in splits}
        if any(map(makes_targets, pixels.values())):
            raise _refusal(
                f"computes features once, and {config.data.target} may draw each sample at random"
            )
        if config.optimizer.is_newton and data.batches("train").num_steps > 1:
            raise config_error(
                "range",
                f"global_batch_size={config.global_batch_size}",
                "is smaller than the training set, and optimizer=newton needs all images",
                "raise it",
            )
        if session.is_distributed:
            broadcast([*module.parameters(), *module.buffers()])
        record = _record(config, module, pixels["val"][torch.arange(min(2, len(pixels["val"])))])
        path, digests = _path(session, module), _digests(session, pixels)
        sources = {
            digest: (pixels[split], row)
            for split, split_digests in digests.items()
            for row, digest in enumerate(split_digests)
        }
        callbacks: Iterable[Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        # There is no such callback in `lockstep verify`.
        stops = [callback for callback in callbacks if isinstance(callback, StopTogether)]
        with ExitStack() as lock_stack:
            _on_disk(
                path,
                lambda path: lock_stack.enter_context(_lock(path)) if session.rank == 0 else None,
                None,
            )
            table = _on_disk(path, lambda path: _read(path, record), np.empty(0, record))
            missing = sorted(set().union(*gather_objects(sources.keys() - _rows(table).keys())))
            if missing:
                requested = partial(stops[0].request, trainer) if stops else int
                is_writer = session.local_rank == 0
                computed_records = np.empty(
                    len(missing) if is_writer or path is None else 0, record
                )
                images = {digest: sources[digest] for digest in missing}
                num_computed, request = _compute(
                    session, module, images, computed_records, requested
                )
                computed_records = computed_records[:num_computed]
                _on_disk(
                    path,
                    lambda path: (
                        _write(path, np.concatenate([table, computed_records]))
                        if is_writer
                        else None
                    ),
                    None,
                )
                # This stop saves no checkpoint, because that of a resumed run is not loaded
                # completely.
                if request:
                    raise stops[0].stopped(request)
                table = _on_disk(path, lambda path: _read(path, record), computed_records)
        row_by_digest, values = _rows(table), torch.from_numpy(table["values"])
        features: dict[str, Pixels] = {}
        for split, split_digests in digests.items():
            rows = torch.tensor([row_by_digest[digest] for digest in split_digests])
            features[split] = values[rows].to(session.device)
        data.serve(features)


def _refusal(problem: str) -> ConfigError:
    return config_error(
        "unsupported", "model.head_only=true", problem, "use model.head_only=each_epoch"
    )


def _record(config: Config, module: Classifier, images: Tensor) -> np.dtype[Any]:
    """Return the dtype of a record.

    Raises ConfigError unless the outputs of the network are those of its head.
    """
    assert isinstance(module.net, TakesFeatures)
    outputs = list[Tensor]()
    layers = (module.net.get_submodule(module.net.feature_head), module.net)
    hooks = [
        layer.register_forward_hook(lambda *given: outputs.append(given[2])) for layer in layers
    ]
    values = _head_inputs(module, images)
    for hook in hooks:
        hook.remove()
    if values.dim() != 2 or len(outputs) != 2 or outputs[0] is not outputs[1]:
        raise _refusal(f": the outputs of {config.model.target} are not those of its last layer")
    kind = "<f8" if values.dtype == torch.float64 else "<f4"
    return np.dtype([("digest", "V16"), ("values", kind, (values.shape[1],))])


def _path(session: Session, module: Classifier) -> Path | None:
    """Return the file of the features of a network, or None without a cache."""
    net, section = module.net, session.config.model
    assert isinstance(net, TakesFeatures)
    cache = together(session.config.data.resolve_paths).arguments().get("cache")
    arguments = {key: value for key, value in section.arguments().items() if key not in FREE_KEYS}
    settings = (section.target, arguments, session.precision, session.device.type, module.layout)
    code = hashlib.blake2b(" ".join(map(str, (FORMAT, *settings))).encode(), digest_size=8)
    for name, value in {**net.state_dict(), "mean": module.mean, "std": module.std}.items():
        if not name.startswith(f"{net.feature_head}."):
            code.update(f"{name} {tuple(value.shape)}".encode() + value.cpu().numpy().tobytes())
    name = f"features-{arguments.get('name', 'network')}-{gather_objects(code.hexdigest())[0]}.npy"
    return None if cache is None else Path(cache).expanduser() / name


def _on_disk(path: Path | None, work: Callable[[Path], T], otherwise: T) -> T:
    """Return `work(path)`, or `otherwise` without a path. Every rank must call it.

    Raises ConfigError on all ranks.
    """

    def explained() -> T:
        try:
            return otherwise if path is None else work(path)
        except OSError as error:
            raise ValueError(
                f"data.cache={path and path.parent} cannot keep features ({error}): "
                "free some space, set a folder of your own, or data.cache=null."
            ) from error

    return together(explained)


def _lock(path: Path) -> AbstractContextManager[object]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return wait_for_lock(path.with_suffix(".lock"), "computes features")


def _read(path: Path, record: np.dtype[Any]) -> NDArray[Any]:
    """Map the records of a file into memory.

    There are none if the file does not exist, or if another user could have written it.
    """
    if is_trusted(path):
        with suppress(ValueError, EOFError):  # The file may not be a file of NumPy.
            table = np.load(path, mmap_mode="c")
            if table.dtype == record:
                return table
    return np.empty(0, record)


def _write(path: Path, table: NDArray[Any]) -> None:
    with atomic_file(path) as file:
        np.save(file, table)


def _head_inputs(module: Classifier, images: Tensor) -> Tensor:
    assert isinstance(module.net, TakesFeatures)
    with head_inputs(module.net, module.net.feature_head) as inputs, module.eager_mode():
        module(images.to(module.device))
    return inputs[0].to(module.mean.dtype)


def _digests(session: Session, pixels: Mapping[str, Pixels]) -> dict[str, list[bytes]]:
    """Return the digests of the pixels of all images of each split.

    Every rank reads a part of the images.
    """
    runs = [
        (split, run)
        for split, split_pixels in pixels.items()
        for run in torch.arange(len(split_pixels)).split(CHUNK)
    ]

    def digests(split_pixels: Pixels, run: Tensor) -> list[bytes]:
        images = np.ascontiguousarray(split_pixels[run].cpu().numpy())
        return [hashlib.blake2b(image, digest_size=16).digest() for image in images]

    rank_digests = together(
        lambda: [
            digests(pixels[split], run) for split, run in runs[session.rank :: session.world_size]
        ]
    )
    split_digests = {split: list[bytes]() for split in pixels}
    all_digests = [*map(iter, gather_objects(rank_digests))]
    for (split, _), run_digests in zip(runs, itertools.cycle(all_digests), strict=False):
        split_digests[split] += next(run_digests)
    return split_digests


def _rows(table: NDArray[Any]) -> dict[bytes, int]:
    return {digest.tobytes(): row for row, digest in enumerate(table["digest"])}


def _compute(
    session: Session,
    module: Classifier,
    images: Mapping[bytes, tuple[Pixels, int]],
    table: NDArray[Any],
    requested: Callable[[], int],
) -> tuple[int, int]:
    """Compute the records of images into a `table`, up to a request to stop.

    Returns the number of records and the request. Every rank must call it. In a round each rank
    computes a chunk. The table is empty on a rank that neither writes nor serves its records.
    """
    sources, size = [*images.values()], CHUNK * session.world_size
    chunks = [sources[start : start + CHUNK] for start in range(0, len(sources), CHUNK)]
    table["digest"] = np.frombuffer(b"".join(images), "V16")[: len(table)]
    width = table.dtype["values"].shape[0]

    def read(chunk: list[tuple[Pixels, int]]) -> Tensor:
        return torch.cat([pixels[torch.tensor([row])] for pixels, row in chunk])

    progress, request, start = Progress("Computing features", "images"), 0, 0
    image_chunks = read_ahead(chunks[session.rank :: session.world_size], NUM_AHEAD, read)
    for start, inputs in itertools.zip_longest(range(0, len(sources), size), image_chunks):
        block = module.mean.new_zeros(CHUNK, width)
        if inputs is not None:
            block[: len(inputs)] = _head_inputs(module, inputs)
        row = torch.cat([block.flatten(), block.new_tensor([requested()])])
        all_rows = collectives.all_gather(row) if session.is_distributed else row[None]
        rows, request = table["values"][start : start + size], int(all_rows[:, -1].max())
        rows[:] = all_rows[:, :-1].reshape(-1, width)[: len(rows)].cpu().numpy()
        if session.is_shown:
            progress.show(min(start + size, len(sources)), len(sources))
        if request:
            break
    return start + size, request
