"""Features of images as an array: the inputs of the last layer of a network.

The bytes are the same with any number of workers.
"""

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.assembly.session import open_session
from lockstep.config.errors import config_error
from lockstep.inference import predict
from lockstep.inference.options import EmbedOptions, TrainedRun
from lockstep.inference.row_chunks import RowFile, write_rows
from lockstep.models.classifier import Classifier
from lockstep.models.ensemble import Ensemble
from lockstep.models.frozen import head_inputs
from lockstep.models.pretrained_metadata import attach_ends
from lockstep.runs.files import atomic_file, csv_text
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World
from lockstep.system.text import plural


def embed(
    folder: RunFolder, world: World | None, trained: TrainedRun, options: EmbedOptions
) -> int:
    """Write the features of every image of a source to an array, and the names next to it.

    The rest is as in `predict.predict`.
    """
    config = trained.config.model_copy(update={"compile": False})
    predict.refuse_custom_module(config, "lockstep embed")
    with open_session(folder, config, world) as session:
        module = predict.load_network(session, trained)
        images = predict.images_of(session, trained, options.source, module.image_format)
        dtype = str(module.mean.dtype).removeprefix("torch.")

        def rows_of(positions: Tensor, pixels: Tensor, targets: Tensor) -> list[list[str]]:
            rows = zip(positions.tolist(), features(module, pixels).cpu().numpy(), strict=True)
            return [[str(position), row.tobytes().hex()] for position, row in rows]

        write = partial(write_array, options.output, images.names, dtype)
        file = RowFile(options.output, write, options.is_strict)
        errors = write_rows(session, module.image_format, images, rows_of, file)
        result = {"images": len(images) - len(errors), "unreadable": len(errors)}
        return predict.report(session, "image", options.output, result, errors)


def features(module: Classifier, inputs: Tensor) -> Tensor:
    """Return the inputs of the last layer, (B, D), for inputs (B, C, H, W) of the `Classifier`.

    The result is on the device of the module. Feature maps and tokens are averaged over positions.
    Raises ConfigError for an average, and for a network without such a layer.
    """
    net, count = module.net, len(module.image_format.class_names)
    if isinstance(net, Ensemble):
        raise config_error(
            "unsupported",
            "features",
            "are those of one network, not of an average",
            "load one run, without flip",
        )
    head = "".join(attach_ends(net, count).head[:1])
    if not head:
        raise config_error(
            "unsupported",
            type(net).__name__,
            f"has no last layer of {plural(count, 'output')}",
            "name it as the `head` of its lockstep.models.Origin",
        )
    with torch.inference_mode(), module.eager_mode(), head_inputs(net, head) as layer_inputs:
        module(inputs.to(module.device))
        if not layer_inputs or layer_inputs[0].dim() < 2 or len(layer_inputs[0]) != len(inputs):
            raise config_error(
                "unsupported",
                type(net).__name__,
                f"does not call its layer {head} with features of each image",
            )
        values = layer_inputs[0].to(module.mean.dtype)
        if isinstance(net.get_submodule(head), nn.Conv2d):
            return values.flatten(2).mean(2)
        return values.flatten(1, -2).mean(1) if values.dim() > 2 else values


def write_array(
    output: Path, image_names: Sequence[object], dtype: str, rows: Iterable[str]
) -> None:
    """Write rows to an array (n, D) of NumPy's format.

    Each row is a position and its numbers as hexadecimal bytes. The names of the positions are
    written to a CSV file next to the array. The CSV file appears first, because features.csv may be
    a prediction. Meanwhile the array is in memory, where its reader will load it, too.
    """
    values, name_rows = bytearray(), [["file"]]
    for line in itertools.chain.from_iterable(map(str.splitlines, rows)):
        position, _, digits = line.partition(",")
        values += bytes.fromhex(digits)
        name_rows.append([str(image_names[int(position)])])
    with atomic_file(output) as array, atomic_file(Path(f"{output}.csv")) as table:
        np.save(array, np.frombuffer(values, dtype).reshape(len(name_rows) - 1, -1))
        table.write(csv_text(name_rows).encode(errors="surrogateescape"))
