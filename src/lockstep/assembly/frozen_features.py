"""Features of a frozen network: computed once for each image, by all workers, and kept in the cache of the images.

A network, with its weights and precision, has a file `<cache>/features-<name>-<hash>.npy` with a record for each image:
the digest of its pixels as the network sees them, and the input of the head. Images that it lacks are added to it.
"""

import contextlib
import hashlib
import itertools
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from lockstep.assembly.session import Session
from lockstep.assembly.staging import together
from lockstep.callbacks.stop import StopTogether
from lockstep.config.errors import ConfigError, Error
from lockstep.data.images.decoded_splits import is_trusted
from lockstep.data.images.ragged_table import Rows
from lockstep.data.loader import NUM_AHEAD, read_ahead
from lockstep.data.module import ImageData
from lockstep.data.splits import Pixels, makes_targets
from lockstep.data.transfer.file_lock import Progress, wait_for_lock
from lockstep.distributed import collectives
from lockstep.distributed.collectives import gather_objects
from lockstep.models.classifier import Classifier
from lockstep.models.frozen import TakesFeatures, head_inputs
from lockstep.runs.files import atomic_file
from lockstep.system.terminal import say, terminal
from lockstep.system.wording import plural, size_text

FORMAT = 1  # increased when the same network gives other features
CHUNK = 64  # images of a pass, on any number of workers
FREE_KEYS = ("pretrained", "head_only", "frozen_norms")  # change no feature of the same weights
TOLERANCE = 1e-2  # relative, of outputs in bfloat16

EACH_EPOCH = "use model.head_only=each_epoch"

Digests = dict[str, list[bytes]]  # of the images of each split


class FrozenFeatures(L.Callback):
    """Serves features in place of images from the start of a fit, when the weights are loaded."""

    def __init__(self, here: Session) -> None:
        self._here = here

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        data: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        assert isinstance(data, ImageData)
        assert isinstance(pl_module, Classifier)
        if any(makes_targets(images.pixels) for images in data.splits.parts.values()):
            problem = f"computes features once, and {self._here.config.data.target} may draw each sample at random"
            raise ConfigError(Error("model.head_only=true", problem, EACH_EPOCH))
        pixels = {name: images.pixels for name, images in data.splits.parts.items()}
        stop = next(each for each in trainer.callbacks if isinstance(each, StopTogether))  # pyright: ignore[reportAttributeAccessIssue]
        with torch.no_grad():
            served, request = features(self._here, pl_module, pixels, lambda: stop.request(trainer))
        if request:  # without a checkpoint: that of a resumed run is not loaded completely
            raise stop.stopped(request)
        data.serve(served)


def features(
    here: Session, module: Classifier, pixels: Mapping[str, Pixels], requested: Callable[[], int]
) -> tuple[dict[str, Pixels], int]:
    """Return the features (N, D) of the N images of each split, and a request to stop if one came first.

    Those that were computed before are then in the cache. Every rank must call it. Raises ConfigError on all ranks for
    a network whose outputs are not those of its head, and if the disk is too small.
    """
    if here.is_distributed:
        collectives.broadcast([*module.parameters(), *module.buffers()])
    _check_head(here, module, pixels["train"][torch.arange(min(2, len(pixels["train"])))])
    digests = _digests(here, pixels)
    store = _Store.of(here, module)
    with contextlib.ExitStack() as held:
        together(lambda: held.enter_context(store.lock()) if here.rank == 0 else None)
        table = together(store.read)
        known = _rows(table)
        lacking = sorted({digest for part in digests.values() for digest in part if digest not in known})
        missing = sorted(set().union(*gather_objects(lacking)))
        if missing:
            together(lambda: store.refuse_full_disk(len(missing)))
            fresh, request = _compute(here, module, pixels, digests, missing, store, requested)
            together(lambda: store.write(np.concatenate([table, fresh])) if here.local_rank == 0 else None)
            if request:
                return {}, request
            table = fresh if store.path is None else together(store.read)
    known, values = _rows(table), torch.from_numpy(table["values"])
    rows = {name: torch.tensor([known[digest] for digest in part]) for name, part in digests.items()}
    if here.device.type == "cuda":
        return {name: values[part].to(here.device) for name, part in rows.items()}, 0
    return {name: Rows(values, part, "features") for name, part in rows.items()}, 0


@dataclass(frozen=True)
class _Store:
    """The features of a network: `path` is their file, None without a cache; `record` has `width` numbers."""

    path: Path | None
    width: int
    record: np.dtype[Any]
    setting: str

    @classmethod
    def of(cls, here: Session, module: Classifier) -> "_Store":
        net, section = module.net, here.config.model
        assert isinstance(net, TakesFeatures)
        head: Any = net.get_submodule(net.feature_head)
        width, kind = head.in_features, "<f8" if head.weight.dtype == torch.float64 else "<f4"
        record = np.dtype([("digest", "V16"), ("values", kind, (width,))])
        cache = together(here.config.data.resolve_paths).arguments().get("cache")
        if cache is None:
            return cls(None, width, record, "")
        given = {key: value for key, value in section.arguments().items() if key not in FREE_KEYS}
        code = hashlib.blake2b(digest_size=8)
        code.update(f"{FORMAT} {section.target} {given} {here.precision} {here.device.type} {module.layout}".encode())
        for name, value in {**net.state_dict(), "mean": module.mean, "std": module.std}.items():
            if not name.startswith(f"{net.feature_head}."):
                code.update(f"{name} {tuple(value.shape)}".encode() + value.cpu().numpy().tobytes())
        name = f"features-{given.get('name', 'network')}-{gather_objects(code.hexdigest())[0]}.npy"
        return cls(Path(cache).expanduser() / name, width, record, f"data.cache={cache}")

    def lock(self) -> contextlib.AbstractContextManager[object]:
        if self.path is None:
            return contextlib.nullcontext()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return wait_for_lock(self.path.with_suffix(".lock"), "computes features")

    def read(self) -> NDArray[Any]:
        """Map the records into memory; none if there is no file of them, or if another user could have written it."""
        if self.path is not None and is_trusted(self.path):
            with contextlib.suppress(ValueError, EOFError):  # not a file of NumPy
                found = np.load(self.path, mmap_mode="c")
                if found.dtype == self.record:
                    return found
        return np.empty(0, self.record)

    def refuse_full_disk(self, count: int) -> None:
        if self.path is not None and (free := shutil.disk_usage(self.path.parent).free) < count * self.record.itemsize:
            sizes = f"{size_text(count * self.record.itemsize)} for features, and its disk has {size_text(free)} free"
            raise ValueError(f"{self.setting} needs {sizes}: free some space, or set data.cache=null.")

    def write(self, table: NDArray[Any]) -> None:
        if self.path is not None:
            with atomic_file(self.path) as file:
                np.save(file, table)


def _check_head(here: Session, module: Classifier, images: Tensor) -> None:
    """Raise ConfigError unless the outputs are those of the head. Every rank computes the same."""
    values, outputs = _head_inputs(module, images.to(module.device))
    if values.dim() != 2 or not torch.allclose(
        module(values), outputs, rtol=TOLERANCE, atol=TOLERANCE * float(outputs.abs().max())
    ):
        problem = f": the outputs of {here.config.model.target} are not those of its last layer"
        raise ConfigError(Error("model.head_only=true", problem, EACH_EPOCH))


def _head_inputs(module: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    assert isinstance(module.net, TakesFeatures)
    with head_inputs(module.net, module.net.feature_head) as found, module.eager_mode():
        outputs = module(images)
    return found[0].to(outputs.dtype), outputs


def _digests(here: Session, pixels: Mapping[str, Pixels]) -> Digests:
    """Return the digest of the pixels of each image, of which every rank reads a part."""
    runs = [(name, run) for name, part in pixels.items() for run in torch.arange(len(part)).split(CHUNK)]

    def digests(part: Pixels, run: Tensor) -> list[bytes]:
        images = np.ascontiguousarray(part[run].cpu().numpy())
        return [hashlib.blake2b(image, digest_size=16).digest() for image in images]

    own = together(lambda: [digests(pixels[name], run) for name, run in runs[here.rank :: here.world_size]])
    found, every = {name: list[bytes]() for name in pixels}, gather_objects(own)
    for number, (name, _) in enumerate(runs):
        found[name] += every[number % here.world_size][number // here.world_size]
    return found


def _rows(table: NDArray[Any]) -> dict[bytes, int]:
    digests = np.ascontiguousarray(table["digest"]).tobytes()
    return {digests[16 * row : 16 * row + 16]: row for row in range(len(table))}


def _compute(
    here: Session,
    module: Classifier,
    pixels: Mapping[str, Pixels],
    digests: Digests,
    missing: list[bytes],
    store: _Store,
    requested: Callable[[], int],
) -> tuple[NDArray[Any], int]:
    """Compute the records of the `missing` images up to a request to stop, and return it. Every rank must call it.

    In a round each rank computes a chunk. A rank that neither writes the records nor serves them from memory has none.
    """
    places = {digest: (name, row) for name, part in digests.items() for row, digest in enumerate(part)}
    chunks = [missing[start : start + CHUNK] for start in range(0, len(missing), CHUNK)]
    size = CHUNK * here.world_size
    is_kept, is_shown = store.path is None or here.local_rank == 0, here.rank == 0 and not here.config.silent
    table = np.empty(len(missing) if is_kept else 0, store.record)
    table["digest"] = np.frombuffer(b"".join(missing), "V16")[: len(table)]
    if is_shown:
        text = (
            f"{plural(len(missing), 'image')} by {here.config.model.arguments()['name']}: {store.width:,} numbers each"
        )
        where = (
            f"memory ({size_text(table.nbytes)})" if store.path is None else f"{store.path} ({size_text(table.nbytes)})"
        )
        say(terminal(), f"Features of {text}, into {where}")

    def read(chunk: list[bytes]) -> Tensor:
        return torch.cat([pixels[name][torch.tensor([row])] for name, row in map(places.__getitem__, chunk)])

    progress, request, start = Progress("Computing features", "images"), 0, 0
    own = read_ahead(chunks[here.rank :: here.world_size], NUM_AHEAD, read)
    for start, images in itertools.zip_longest(range(0, len(missing), size), own):
        block = module.mean.new_zeros(CHUNK, store.width)
        if images is not None:
            block[: len(images)] = _head_inputs(module, images.to(module.device))[0]
        row = torch.cat([block.flatten(), block.new_tensor([requested()])])
        every = collectives.all_gather(row) if here.is_distributed else row[None]
        rows, request = table["values"][start : start + size], int(every[:, -1].max())
        rows[:] = every[:, :-1].reshape(-1, store.width)[: len(rows)].cpu().numpy()
        if is_shown:
            progress.show(min(start + size, len(missing)), len(missing))
        if request:
            break
    progress.end()
    return table[: start + size], request
