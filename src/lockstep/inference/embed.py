"""Features of images, which the last layer of a network takes, as an array: the same bytes by any number of workers."""

import copy
import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.assembly import networks, pretrained_weights, session
from lockstep.assembly.session import Session
from lockstep.config.checks import validation
from lockstep.config.errors import ConfigError, Error, one_line
from lockstep.distributed.collectives import broadcast
from lockstep.inference import predict
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.models.frozen import head_inputs
from lockstep.models.origin import attach_ends, origin_of
from lockstep.models.weights_hash import weights_hash
from lockstep.runs.files import atomic_file, csv_text
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World
from lockstep.system.signals import SignalFlag
from lockstep.system.wording import plural

NUM_IN_PART = 4  # images that one thread computes: as fast as more (ResNet-18 at 128 pixels, AVX2, 2026-11-27)


def embed(
    folder: RunFolder,
    world: World | None,
    flag: SignalFlag,
    *,
    config: dict[str, Any],
    run: str,
    source: str,
    checkpoint: str | None,
    output: str,
    is_strict: bool,
) -> int:
    """Write the features of every image of `source` to the array `output`, and the names next to it.

    The network is that of a checkpoint, or with None the pretrained one of `config`. The rest is as in
    `predict.predict`.
    """
    settings = validation.check_tree(config).model_copy(update={"compile": False})
    predict.refuse_own_module(settings, "lockstep embed")
    with session.open_session(folder, settings, world) as here:
        module = _pretrained(here) if checkpoint is None else predict.load_network(here, Path(checkpoint))
        head_of(module)
        images, digest = predict.images_of(here, run, source, module.image_format)
        compute, dtype = _in_threads(here, module), str(module.mean.dtype).removeprefix("torch.")
        inputs = {"weights": weights_hash(module.state_dict()), "settings": predict.settings_of(here)}
        inputs |= {"images": digest, "columns": f"features {dtype}"}

        def rows_of(positions: Tensor, pixels: Tensor) -> list[list[str]]:
            rows = zip(positions.tolist(), compute(pixels).numpy(), strict=True)
            return [[str(position), row.tobytes().hex()] for position, row in rows]

        write_file = partial(write_array, Path(output), images.names, dtype)
        given: dict[str, Any] = {"inputs": inputs, "output": Path(output), "is_strict": is_strict}
        broken = predict.write(here, images, rows_of, write_file, **given)
        return predict.report(here, len(images), broken, "image", output)


def head_of(module: Classifier) -> str:
    """Return the name of the last layer. Raises ConfigError if the network has none with as many outputs."""
    count = len(module.image_format.class_names)
    head = attach_ends(module.net, count).head
    if not head:
        hint = "name it as the `head` of its lockstep.models.Origin"
        raise ConfigError(Error(type(module.net).__name__, f"has no last layer of {plural(count, 'output')}", hint))
    return head[0]


def features(module: Classifier, inputs: Tensor) -> Tensor:
    """Return what the last layer takes, (B, D), for inputs (B, C, H, W) of the `Classifier`, on its device.

    Of maps and of tokens it is the mean over positions. Raises ConfigError if the layer is not called with them.
    """
    head = head_of(module)
    with torch.inference_mode(), module.eager_mode(), head_inputs(module.net, head) as found:
        module(inputs.to(module.device))
        if not found or found[0].dim() < 2 or len(found[0]) != len(inputs):
            problem = f"does not call its layer {head} with features of each image"
            raise ConfigError(Error(type(module.net).__name__, problem))
        values = found[0].to(module.mean.dtype)
        if isinstance(module.net.get_submodule(head), nn.Conv2d):
            return values.flatten(2).mean(2)
        return values.flatten(1, -2).mean(1) if values.dim() > 2 else values


def _pretrained(here: Session) -> Classifier:
    """Build the network of the configuration with its pretrained weights. Every rank must call it."""
    arguments = here.config.data.arguments()
    size, channels = arguments.get("image_size"), arguments.get("channels", 3)
    if size is None:
        raise ConfigError(Error("data.image_size=null", "leaves images of several sizes", "use data.image_size=224"))
    height, width = (size, size) if isinstance(size, int) else size
    # the classes are of no use, and the normalization is that of the weights, if they have one
    form = ImageFormat(("0", "1"), (channels, height, width), mean=(0.0,) * channels, std=(1.0,) * channels)
    module = networks.classifier(here, form, total_steps=1).eval()
    if origin_of(module.net).load is None:
        problem = "has no pretrained weights, and random ones have no useful features"
        raise ConfigError(Error(f"model._target_={here.config.model.target}", problem, "set model.pretrained=true"))
    pretrained_weights.load_pretrained(here, module.net)
    module.to(here.device)
    if here.is_distributed:
        broadcast(module.net.parameters())
    return module


def _in_threads(here: Session, module: Classifier) -> Callable[[Tensor], Tensor]:
    """Return what computes features (n, D) of pixels (n, C, H, W), in host memory.

    On a CPU it uses threads, each with a copy of the module that shares its weights: a kernel rounds by its number of
    threads, which depends on the number of workers.
    """
    if here.device.type == "cuda":
        return lambda pixels: features(module, pixels).cpu()
    shared: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    idle = SimpleQueue[Classifier]()
    idle.put(module)
    num_threads = torch.get_num_threads()
    try:
        for _ in range(1, num_threads):
            idle.put(copy.deepcopy(module, dict(shared)))
    except Exception as error:  # of custom code
        hint = f"set OMP_NUM_THREADS=1 ({type(error).__name__}: {one_line(error)})"
        raise ConfigError(Error(type(module.net).__name__, "cannot be copied for several threads", hint)) from error
    threads = here.held.enter_context(ThreadPoolExecutor(num_threads, "features", torch.set_num_threads, (1,)))

    def compute(pixels: Tensor) -> Tensor:
        free = idle.get()
        try:
            return features(free, pixels)
        finally:
            idle.put(free)

    return lambda pixels: torch.cat(list(threads.map(compute, pixels.split(NUM_IN_PART))))


def write_array(output: Path, names: Sequence[object], dtype: str, rows: Iterable[str]) -> None:
    """Write rows, each a position and its numbers as hexadecimal bytes, to an array (n, D) of NumPy's format.

    The names of the positions are in a CSV file next to it, which appears first.
    """
    names_file = Path(f"{output}.csv")  # features.csv may be a prediction
    with atomic_file(output) as array, atomic_file(names_file) as listed:
        listed.write(csv_text([["file"]]).encode())
        count = width = 0
        for line in itertools.chain.from_iterable(text.splitlines() for text in rows):
            position, _, digits = line.partition(",")
            values = np.frombuffer(bytes.fromhex(digits), dtype)
            if not count:
                _write_header(array, values.dtype, 0, width := len(values))
            array.write(values.data)
            listed.write(csv_text([[str(names[int(position)])]]).encode(errors="surrogateescape"))
            count += 1
        array.seek(0)
        _write_header(array, np.dtype(dtype), count, width)


def _write_header(file: BinaryIO, dtype: np.dtype[Any], count: int, width: int) -> None:
    """Write a header, whose length is the same for any `count`."""
    header = {"descr": dtype.str, "fortran_order": False, "shape": (count, width)}
    np.lib.format.write_array_header_1_0(file, header)
