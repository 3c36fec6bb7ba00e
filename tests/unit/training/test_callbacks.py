"""Callbacks of your own that derive from one of Lightning's."""

import lightning as L
import pytest
from lightning.pytorch.callbacks import EMAWeightAveraging, TQDMProgressBar

from lockstep.config import compose, validation
from lockstep.config.errors import ConfigError
from lockstep.config.schema import Config
from lockstep.training.observers import built_callbacks
from tests.support.harness import SMALL


class Bar(TQDMProgressBar):
    """Does what it is derived from."""


class Average(EMAWeightAveraging):
    """Works."""


def config_with(kind: type[L.Callback]) -> Config:
    return validation.checked(compose.composed([*SMALL, f"+callbacks.x._target_={__name__}.{kind.__name__}"]))


def test_one_that_derives_from_what_does_not_work_is_refused() -> None:
    expected = rf"^callbacks\.x\._target_={__name__}\.Bar: TQDMProgressBar does not work .*: remove it"
    with pytest.raises(ConfigError, match=expected):
        built_callbacks(config_with(Bar))


def test_one_that_derives_from_what_works_is_built() -> None:
    assert isinstance(built_callbacks(config_with(Average))[-1], Average)
