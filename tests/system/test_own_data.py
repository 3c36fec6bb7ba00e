"""docs/own-data.md does what it says: its files in a fresh clone, its commands with one worker and with two."""

from pathlib import Path

import pytest

from lockstep.runs.folder import RunFolder
from tests.support.guides import Guide, guides, long_blocks, run, write_project
from tests.support.harness import ROOT, difference

pytestmark = pytest.mark.processes
PAGE = ROOT / "docs" / "own-data.md"
GUIDES = guides(PAGE)
SMALL = (
    *("model.width=2", "trainer.max_epochs=2", "trainer.precision=float64", "global_batch_size=64", "strategy=cpu"),
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
    assert len(GUIDES) == 4


@pytest.mark.parametrize("guide", GUIDES.values(), ids=lambda guide: guide.title)
def test_its_commands_run_and_two_workers_train_what_one_does(project: Path, guide: Guide) -> None:
    trained = []
    for words in guide.commands:
        if words[1] != "train.py":
            run(project, *words)
            continue
        for num_workers in (1, 2):
            said = run(project, *words, *SMALL, f"trainer.devices={num_workers}", "++data.num_workers=1")
            assert "Finished 2 epochs" in said
            trained.append(RunFolder((project / "outputs" / "latest").resolve()))
    alone, other = trained
    assert difference(alone, other) <= 1e-12
