"""The terminal: what a narrow one leaves out."""

import pytest

from lockstep.callbacks.console import COLUMNS, EPOCH_WIDTH, columns_for


@pytest.mark.parametrize("width", range(1, 141))
def test_a_line_fits_its_terminal_and_keeps_the_validation_accuracy(width: int) -> None:
    shown = columns_for(width)
    assert EPOCH_WIDTH + sum(wide for *_, wide in shown) <= max(width, EPOCH_WIDTH + 10)
    assert "val/accuracy" in [name for name, *_ in shown]
    assert [column for column in COLUMNS if column in shown] == list(shown)


def test_eighty_letters_show_everything() -> None:
    assert columns_for(80) == COLUMNS
