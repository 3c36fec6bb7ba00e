"""Schedules of every kind and parts of a network with rules of their own: what they do.

The arithmetic is that of tests/unit/models/test_parameter_groups.py, a resume that of
test_exactness.py.
"""

from pathlib import Path

import pytest

from tests.support.exact import trained
from tests.support.recipes import OPTIMIZATION

pytestmark = pytest.mark.full


@pytest.mark.processes
def test_rates_of_schedules(tmp_path: Path) -> None:
    rates: dict[str, list[float]] = {}
    for name in ("schedule of epochs", "plateau", "warm restarts"):
        run = trained(tmp_path / name, OPTIMIZATION[name])
        rates[name] = [float(row["learning_rate"]) for row in run.read_metrics()]
    assert rates["schedule of epochs"] == [0.05, 0.025, 0.0125]
    assert rates["plateau"] == [0.1, 0.05, 0.025], "no accuracy is twice the first"
    assert len(set(rates["warm restarts"])) > 1
