"""The time left is shown only while it is known."""

from types import SimpleNamespace
from typing import Any

from lockstep.callbacks.console import Console
from lockstep.callbacks.pace import Pace, Phase


def test_late_batch_has_no_time_left() -> None:
    pace = Pace(num_warm_up=1)
    pace.start(3)
    for number in (1, 2):
        pace.count_batch(float(number), number, 10)
    record: Any = SimpleNamespace(phase=Phase("training", 0.0), pace=pace, left_s=lambda trainer: 0.0)
    trainer: Any = SimpleNamespace(current_epoch=0, max_epochs=1)
    console = Console(record, ())
    assert console._progress(trainer, 2.5)[1] == ["step 2/3", "0.5 s left", "10 images/s"]
    assert console._progress(trainer, 9.0)[1] == ["step 2/3", "10 images/s"]
