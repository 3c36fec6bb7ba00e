"""Composed configurations of conf/, cached for all tests of a process: Hydra takes 60 ms for each."""

import functools
from collections.abc import Sequence

from omegaconf import DictConfig

from lockstep.config.composing.compose import DEFAULT, Source, compose_config


def composed_once(texts: Sequence[str], source: Source = DEFAULT, *, with_hydra: bool = False) -> DictConfig:
    """`composed` with a cache, whose results must not be changed; without one for another source."""
    if source != DEFAULT:
        return compose_config(texts, source, with_hydra=with_hydra)
    return _kept(tuple(texts), with_hydra)


@functools.cache
def _kept(texts: tuple[str, ...], with_hydra: bool) -> DictConfig:
    return compose_config(texts, with_hydra=with_hydra)
