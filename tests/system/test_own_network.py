"""docs/own-network.md does what it says: its files in a fresh clone, its commands with one worker and with two."""

from pathlib import Path

import pytest

from lockstep.runs.folder import RunFolder
from tests.support.guides import Guide, guides, long_blocks, run, write_project
from tests.support.harness import ROOT, difference

pytestmark = pytest.mark.processes
PAGE = ROOT / "docs" / "own-network.md"
GUIDES = guides(PAGE)
SMALL = (
    *("trainer.max_epochs=2", "trainer.limit_train_batches=4", "trainer.precision=float64", "strategy=cpu"),
    *("callbacks.pictures=null", "callbacks.curves=null"),
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_project(tmp_path_factory.mktemp("project"))
    for guide in GUIDES.values():
        guide.write(folder)
    return folder


def test_no_block_is_longer_than_a_reader_likes_to_copy() -> None:
    assert long_blocks(PAGE) == []
    assert len(GUIDES) == 5


@pytest.mark.parametrize("guide", GUIDES.values(), ids=lambda guide: guide.title)
def test_its_commands_run_and_two_workers_train_what_one_does(project: Path, guide: Guide) -> None:
    for words in guide.commands:
        width = () if any(word.startswith("model=") for word in words) else ("model.width=4",)
        trained = []
        for num_workers in (1, 2):
            said = run(project, *words, *SMALL, *width, f"trainer.devices={num_workers}")
            assert "Finished 2 epochs" in said
            trained.append(RunFolder((project / "outputs" / "latest").resolve()))
        assert difference(*trained) <= 1e-12
