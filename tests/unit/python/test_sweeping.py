"""Sweeps and jobs from Python."""

from pathlib import Path

import pytest

from lockstep.config.errors import ConfigError
from lockstep.python.sweeping import submit


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        (
            "cluster=local",
            r"^'cluster=local' is not a list of settings: write \['optimizer.lr=0.1'\]$",
        ),
        (["cluster=local", "seed"], "^'seed' cannot be read"),
    ],
)
@pytest.mark.usefixtures("in_tmp_path")
def test_submit_invalid_overrides(tmp_path: Path, typed: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        submit(typed)
    assert list(tmp_path.iterdir()) == []
