"""docs/own-network.md does what it says: its files in a fresh clone, its commands with one worker and with two."""

from pathlib import Path

import pytest

from tests.support.guides import Guide, assert_two_workers_train_what_one_does, guides, project_of
from tests.support.harness import ROOT

pytestmark = pytest.mark.processes
PAGE = ROOT / "docs" / "own-network.md"
GUIDES = guides(PAGE)
SMALL = (
    *("trainer.max_epochs=2", "trainer.limit_train_batches=2", "trainer.precision=float64", "strategy=cpu"),
    *("callbacks.pictures=null", "callbacks.curves=null"),
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project_of(PAGE, tmp_path_factory.mktemp("project"))


@pytest.mark.parametrize("guide", GUIDES.values(), ids=lambda guide: guide.title)
def test_its_commands_run_and_two_workers_train_what_one_does(project: Path, guide: Guide) -> None:
    for words in guide.commands:
        width = () if any(word.startswith("model=") for word in words) else ("model.width=4",)
        assert_two_workers_train_what_one_does(project, *words, *SMALL, *width)
