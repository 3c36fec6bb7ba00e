"""docs/own-module.md does what it says: its files in a fresh clone, its trainings, and each of them verified."""

from pathlib import Path

import pytest

from tests.support.guides import Guide, guides, project_of, run, trained
from tests.support.harness import ROOT

pytestmark = [pytest.mark.full, pytest.mark.processes]
PAGE = ROOT / "docs" / "own-module.md"
GUIDES = guides(PAGE)
SMALL = (
    *("trainer.max_epochs=2", "trainer.limit_train_batches=4", "strategy=cpu", "trainer.devices=2"),
    *("trainer.loads=[2,1]", "model.width=2"),
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project_of(PAGE, tmp_path_factory.mktemp("project"))


@pytest.mark.parametrize("guide", GUIDES.values(), ids=lambda guide: guide.title)
def test_its_trainings_end_and_are_exact(project: Path, guide: Guide) -> None:
    train, verify = guide.commands
    checks = "not verified: run lockstep verify with these settings"
    assert trained(project, *train, *SMALL).read_summary()["exact"] == checks
    assert "Exact: nothing differs by more than " in run(project, *verify, "model.width=2")
    assert "verified on 20" in trained(project, *train, *SMALL).read_summary()["exact"]
    for name in guide.files:  # another file, another module
        path = project / name
        path.write_text(path.read_text() + "\n# changed\n")
    assert trained(project, *train, *SMALL).read_summary()["exact"] == checks
