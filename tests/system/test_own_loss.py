"""docs/own-loss.md does what it says: its files in a fresh clone, its trainings, and each of them verified."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.guides import Guide, guides, project_of, run, trained
from tests.support.harness import PATIENCE_S, ROOT, environ

pytestmark = [pytest.mark.full, pytest.mark.processes]
PAGE = ROOT / "docs" / "own-loss.md"
GUIDES = guides(PAGE)
SMALL = (
    *("trainer.max_epochs=2", "trainer.limit_train_batches=4", "strategy=cpu", "trainer.devices=2"),
    *("trainer.loads=[2,1]", "callbacks.curves=null"),
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project_of(PAGE, tmp_path_factory.mktemp("project"))


@pytest.mark.parametrize("guide", [guide for guide in GUIDES.values() if guide.commands], ids=lambda guide: guide.title)
def test_its_trainings_end_and_are_exact(project: Path, guide: Guide) -> None:
    width = () if "model=segments" in guide.commands[0] else ("model.width=2",)
    for words in guide.commands:
        if words[1] == "verify":
            assert "Exact: nothing differs by more than " in run(project, *words, *width)
            continue
        summary = trained(project, *words, *SMALL, *width).read_summary()
        tested = [value for name, value in summary.items() if name.startswith("test_") and name != "test_images"]
        assert len(tested) >= 2
        assert all(isinstance(value, float) for value in tested)


def test_its_test_passes(project: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_exact.py"]
    variables = {**environ(), "PYTHONPATH": f"{project / 'src'}:{project}"}
    done = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout
