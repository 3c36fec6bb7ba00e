"""docs/own-data.md does what it says: its files in a fresh clone, its commands with one worker and with two."""

from pathlib import Path

import pytest

from tests.support.guides import Guide, assert_two_workers_train_what_one_does, guides, project_of, run
from tests.support.harness import ROOT

pytestmark = [pytest.mark.full, pytest.mark.processes]
PAGE = ROOT / "docs" / "own-data.md"
GUIDES = guides(PAGE)
SMALL = (
    *("model.width=2", "trainer.max_epochs=2", "trainer.precision=float64", "global_batch_size=64", "strategy=cpu"),
    *("callbacks.pictures=null", "callbacks.curves=null"),
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project_of(PAGE, tmp_path_factory.mktemp("project"))


@pytest.mark.parametrize("guide", GUIDES.values(), ids=lambda guide: guide.title)
def test_its_commands_run_and_two_workers_train_what_one_does(project: Path, guide: Guide) -> None:
    assert sum(words[1] == "train.py" for words in guide.commands) == 1
    for words in guide.commands:
        if words[1] == "train.py":
            assert_two_workers_train_what_one_does(project, *words, *SMALL, "++data.num_workers=1")
        else:
            run(project, *words)
