"""Configurations of conf/ are composed once for all tests of a process.

Hydra takes 60 ms for each.
"""

import functools
import os
from collections.abc import Sequence

import pytest
from omegaconf import DictConfig

from lockstep.config import overrides
from lockstep.config.composing.compose import DEFAULT, Source, compose_config
from lockstep.config.errors import ConfigError
from lockstep.config.schema.configuration import Config


def composed_once(
    texts: Sequence[str], source: Source = DEFAULT, *, with_hydra: bool = False
) -> DictConfig:
    """Return the result of `compose_config` from a cache, whose entries nobody changes.

    Another source has no cache.
    """
    if source != DEFAULT:
        return compose_config(texts, source, with_hydra=with_hydra)
    return _kept(tuple(texts), with_hydra, os.getcwd())


@functools.cache
def _kept(texts: tuple[str, ...], with_hydra: bool, folder: str) -> DictConfig:
    """`folder` is in the section of Hydra."""
    return compose_config(texts, with_hydra=with_hydra)


def config_of(*texts: str) -> Config:
    """The checked configuration of some overrides, which may have a search."""
    return overrides.plan(texts, is_multirun=True).configs[0]


def errors_of(*texts: str) -> list[str]:
    """The errors of a training with these overrides, which has some."""
    with pytest.raises(ConfigError) as caught:
        overrides.check(texts, is_multirun=False)
    return str(caught.value).splitlines()
