"""What Hydra composes of the conf/ of this tree, once for all tests of a process: it takes 60 ms each time."""

import functools
from collections.abc import Sequence

from omegaconf import DictConfig

from lockstep.config.compose import DEFAULT, Source, composed


def composed_once(texts: Sequence[str], source: Source = DEFAULT, *, with_hydra: bool = False) -> DictConfig:
    """What `composed` gives; of another source anew. Whoever takes it leaves it as it is."""
    if source != DEFAULT:
        return composed(texts, source, with_hydra=with_hydra)
    return _kept(tuple(texts), with_hydra)


@functools.cache
def _kept(texts: tuple[str, ...], with_hydra: bool) -> DictConfig:
    return composed(texts, with_hydra=with_hydra)
