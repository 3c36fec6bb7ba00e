"""`lockstep model`: the layers of the network of a configuration, with their shapes, parameters and FLOPs."""

from collections.abc import Sequence
from functools import partial

from lockstep.config import build, overrides
from lockstep.config.checks import data_presence
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError, Error, one_line
from lockstep.launch.worker import import_training
from lockstep.runs.files import print_json
from lockstep.system.terminal import new_table, print_table, say, terminal
from lockstep.system.tracebacks import located

HEADS = ("layer", "type", "output", "parameters", "MFLOPs")


def show_model(typed: Sequence[str], source: compose.Source, *, depth: int, is_json: bool) -> int:
    """Print the layers of the network for the images of these overrides. Returns the exit code. Raises ConfigError."""
    config = build.settle_config(overrides.check(typed, source).configs[0])
    if config.has_own_module:
        raise ConfigError(Error(f"module._target_={config.module.target}", "may build another network", "remove it"))
    data_presence.check(config.data)
    import_training()
    from lockstep.assembly.listed_images import open_source
    from lockstep.assembly.staging import once_a_node
    from lockstep.models.layers import layers_of

    load = partial(open_source, config.seed, False)
    images, _ = once_a_node(config.data, load, rank=0, local_rank=0, is_silent=False)
    shape, num_classes = images.train.pixels.shape[1:], len(images.class_names)
    with build.section_errors(config, "model"):
        net = build.build(config.model, in_channels=shape[0], num_classes=num_classes)
    try:
        layers = layers_of(net, shape)
    except Exception as error:  # of custom code, or of images that are too small
        problem = f"fails on an image of {'x'.join(map(str, shape))} ({type(error).__name__}: {one_line(error)})"
        raise ConfigError(Error(f"model._target_={config.model.target}", located(problem, error))) from error
    if is_json:
        print_json({"layers": [layer._asdict() for layer in layers]})
        return 0
    shown = [layer for layer in layers if layer.name and layer.name.count(".") < depth]
    rows = [
        (
            "  " * layer.name.count(".") + layer.name.rpartition(".")[2] or "total",
            layer.kind,
            "x".join(map(str, layer.output or ())),
            f"{layer.parameters:,}" if layer.parameters else "",
            f"{layer.flops / 1e6:,.2f}" if layer.flops else "",
        )
        for layer in [*shown, layers[0]]
    ]
    out = terminal()
    say(out, f"{layers[0].kind}: one image of {'x'.join(map(str, shape))}, {num_classes:,} outputs")
    print_table(new_table(HEADS, rows, out, right=HEADS[3:]), out)
    say(out, "FLOPs: a multiply-add counts as two; those of convolutions, matrix products and attention.", "dim")
    return 0
