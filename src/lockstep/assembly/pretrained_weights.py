"""Pretrained weights of the network of a new run, from its library or a file."""

from collections.abc import Callable

import torch
from torch import nn

from lockstep.assembly.session import Session
from lockstep.config import build
from lockstep.config.errors import literal, one_line
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import is_ours
from lockstep.distributed.collectives import gather_objects
from lockstep.models.pretrained_metadata import origin_of
from lockstep.system.terminal import print_line, terminal


def load_pretrained(session: Session, net: nn.Module) -> None:
    """Load the pretrained weights of a network, if any, on rank 0. Every rank must call it.

    DDP broadcasts the parameters. Raises ConfigError on all ranks if the weights are not available.
    """
    load_weights = origin_of(net).load
    if load_weights is not None:
        report = session.on_rank_0(lambda: _load_weights(session.config, load_weights))
        messages = [*filter(None, (report, _normalization(session.config)))]
        if messages and session.is_shown:
            print_line(terminal(), f"model.{_setting(session.config)}: {'; '.join(messages)}")
        statistics = gather_objects(dict(net.named_buffers()) if session.rank == 0 else {})[0]
        # These are the statistics of batch norms, because DDP broadcasts no buffers here.
        net.load_state_dict(statistics, strict=False)


def fetch_weights(config: Config, in_channels: int, num_classes: int) -> bool:
    """Load the pretrained weights of the network into the cache of its library.

    Returns False if there are none.
    """
    with build.section_errors(config, "model"):
        load = origin_of(
            build.build(config.model, in_channels=in_channels, num_classes=num_classes)
        ).load
    if load is not None:
        _load_weights(config, load)
    return load is not None


def download(session: Session) -> None:
    """Download the weights of a library before images are decoded. Every rank must call it.

    Raises ConfigError on all ranks if they are not available.
    """
    # The random state is restored, so that the network of the training draws the same numbers as
    # without a download.
    with torch.random.fork_rng(devices=[]):
        session.on_rank_0(lambda: fetch_weights(session.config, 3, 1000))


def _load_weights(config: Config, load: Callable[[], str | None]) -> str | None:
    try:
        with torch.random.fork_rng(devices=[]):
            return load()
    except Exception as error:  # A library or custom code can raise any error.
        raise ValueError(
            f"model.{_setting(config)}: cannot load the weights ({type(error).__name__}: "
            f"{one_line(error)}): run `lockstep data fetch` where there is a network, or set "
            "model.pretrained=FILE"
        ) from error


def _setting(config: Config) -> str:
    pretrained = config.model.arguments().get("pretrained")
    if pretrained is None:
        return f"_target_={config.model.target}"
    return f"pretrained={literal(pretrained)}"


def _normalization(config: Config) -> str | None:
    """Describe how images are normalized for weights of a file.

    The weights may have been trained with another normalization.
    """
    model = config.model.arguments()
    if not (is_ours(config.model.target) and isinstance(model.get("pretrained"), str)):
        return None
    library = config.model.target.rpartition(".")[2]
    return f"images are normalized as for {library}'s own weights of {model['name']}"
