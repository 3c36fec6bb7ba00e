"""The header of a run names its optimizer."""

import pytest

from lockstep.training.summary import optimizer_text
from tests.support.composed import config_of


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), "SGD, learning rate 0.1 (one_cycle_linear)"),
        (("optimizer=adamw", "scheduler=constant"), "AdamW, learning rate 0.001 (constant)"),
        (("experiment=probe", "data.root=photos"), "Newton"),
    ],
)
def test_optimizer_in_header(overrides: tuple[str, ...], expected: str) -> None:
    assert optimizer_text(config_of(*overrides)) == expected
