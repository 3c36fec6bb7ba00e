"""`lockstep model`: prints the layers of a configured network, with Lightning's summary."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from lockstep.config import build, overrides
from lockstep.config.checks import data_presence
from lockstep.config.composing import compose
from lockstep.config.errors import config_error, one_line
from lockstep.launch.worker import import_training
from lockstep.system.tracebacks import located

if TYPE_CHECKING:
    from lightning.pytorch.utilities.model_summary.model_summary import ModelSummary
    from torch import nn


def show_model(override_lines: Sequence[str], source: compose.Source, *, depth: int) -> int:
    """Print the layers of the network for the images that these overrides select.

    Returns the exit code. Raises ConfigError.
    """
    config = build.resolve_config(overrides.check(override_lines, source).configs[0])
    if config.has_custom_module:
        raise config_error(
            "unsupported",
            f"module._target_={config.module.target}",
            "may build another network",
            "remove it",
        )
    data_presence.check(config.data)
    import_training()
    from lockstep.assembly.run_parts import once_a_node, open_source

    images, _ = once_a_node(
        config.data, partial(open_source, config.seed), rank=0, local_rank=0, is_silent=False
    )
    shape, num_classes = images.train.pixels.shape[1:], len(images.class_names)
    with build.section_errors(config, "model"):
        net = build.build(config.model, in_channels=shape[0], num_classes=num_classes)
    try:
        print(summary_of(net, shape, depth))
    except Exception as error:
        # Custom code may raise any error, and so may images that are too small.
        problem = (
            f"fails on an image of {'x'.join(map(str, shape))} ({type(error).__name__}: "
            f"{one_line(error)})"
        )
        raise config_error(
            "failed", f"model._target_={config.model.target}", located(problem, error)
        ) from error
    return 0


def summary_of(net: "nn.Module", image_shape: Sequence[int], depth: int) -> "ModelSummary":
    """Return the summary of a network for one image of zeros, to `depth` levels of layers.

    `image_shape` is (C, H, W).
    """
    import lightning as L
    import torch
    from lightning.pytorch.utilities.model_summary.model_summary import ModelSummary

    module = L.LightningModule()
    module.net = net
    module.forward = net.__call__
    module.example_input_array = torch.zeros(1, *image_shape)
    # The fast path of attention is one operation, whose FLOPs torch does not count.
    torch.backends.mha.set_fastpath_enabled(False)
    return ModelSummary(module, depth + 1)
