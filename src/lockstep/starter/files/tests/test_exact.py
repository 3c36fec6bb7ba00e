"""The promise of Lockstep for this project: several workers compute what one does."""

from pathlib import Path

from lockstep.testing import assert_exact


def test_several_workers_train_what_one_does() -> None:
    assert_exact("model.width=4", cwd=Path(__file__).parents[1])
