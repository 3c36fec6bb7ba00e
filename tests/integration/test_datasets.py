"""Torch Datasets that cannot be used."""

from pathlib import Path

import pytest

from tests.support.exact import refusal
from tests.support.recipes import turned

pytestmark = pytest.mark.full


@pytest.mark.processes
@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (turned(broken=5), "data.train: sample 5 cannot be made"),
        (turned(count=0), "data.train (Turned) has no samples"),
    ],
    ids=["broken", "empty"],
)
def test_unusable_dataset_refused(tmp_path: Path, settings: list[str], line: str) -> None:
    assert line in refusal(tmp_path / "run", settings)
