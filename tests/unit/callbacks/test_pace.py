"""The speed of a training and the time to its end, from the times at which batches end."""

import pytest

from lockstep.callbacks.pace import Pace


def after(num_done: int, *, num_warm_up: int = 1, batch_s: float = 2.0, compiling_s: float = 100.0) -> Pace:
    """In the first epoch, of 50 batches of 16 images, whose first takes so much longer; the clock begins at 10 s."""
    pace = Pace(num_warm_up=num_warm_up)
    pace.start(50)
    for number in range(1, num_done + 1):
        pace.count_batch(10 + compiling_s + batch_s * number, number, 16)
    return pace


def test_unknown_before_second_batch() -> None:
    for num_done in (0, 1):
        pace = after(num_done)
        assert pace.images_per_s is None
        assert pace.epoch_left_s(200) is pace.left_s(200, 9) is None


def test_first_batch_left_out() -> None:
    pace = after(11)
    now = 10 + 100 + 2 * 11
    assert pace.images_per_s == pytest.approx(8)
    assert pace.epoch_left_s(now) == pytest.approx(2 * 39)
    assert pace.left_s(now, 9) == pytest.approx(2 * 39 + 9 * 2 * 50)


def test_warm_up_left_out() -> None:
    """A GPU: nine batches are launched immediately, then the host waits for each."""
    pace = Pace(num_warm_up=9)
    pace.start(50)
    for number in range(1, 10):
        pace.count_batch(1 + 0.001 * number, number, 16)
    for number in range(10, 20):
        pace.count_batch(1.009 + 2 * (number - 9), number, 16)
    assert pace.images_per_s == pytest.approx(8)


def test_epochs_of_one_batch() -> None:
    pace = Pace(num_warm_up=1)
    for start, batch_s in ((0, 100), (101, 2), (104, 3)):
        pace.start(1)
        pace.count_batch(start + batch_s, 1, 16)
        pace.end_epoch(start + batch_s + 1)
    assert pace.left_s(108, 5) == pytest.approx(5 * (3 + 1))


def test_validation_counts() -> None:
    pace = after(50)
    pace.end_epoch(10 + 100 + 2 * 50 + 30)
    now = 10 + 100 + 2 * 50 + 30
    assert pace.left_s(now, 2) == pytest.approx(2 * (100 + 30))


def test_resume_inside_epoch() -> None:
    pace = Pace(num_warm_up=1)
    pace.start(50)
    pace.count_batch(7, 41, 16)
    pace.count_batch(9, 42, 16)
    assert pace.images_per_s == pytest.approx(8)
    assert pace.epoch_left_s(9) == pytest.approx(16)
