"""N workers compute what one worker would, in float64 to 1e-12: weights, statistics, momentum, metrics.

One matrix: each row is a small training, each split of a row ends with the numbers of one worker. Each mechanism was
broken once on purpose, and these tests failed; the list is tests/mutants.toml. Stops, resumes and errors of a kind of
data, network or module are tested in the file of its name.
"""

from pathlib import Path
from typing import Any

import pytest

from lockstep.assembly import checkpoints
from lockstep.runs.folder import RunFolder
from tests.support.harness import difference, train_all, write_run
from tests.support.matrix import FILES, ROWS, Split, write_sources

AT_ONCE = 20  # trainings of one group of processes, whose end is awaited for PATIENCE_S
# one of each kind, for `make test`
QUICK = (
    *("remainder", "micro-batches, every augmentation", "augmentations of photographs"),
    *("67 samples in parts", "AdamW", "parameter groups", "balanced classes"),
    *("own network", "partly used network", "several labels", "own module", "Dataset", "folder, random crops"),
)
CASES = [
    pytest.param(name, split, id=f"{name}-{split}", marks=() if name in QUICK else pytest.mark.full)
    for name, row in ROWS.items()
    for split in row.splits
]
Runs = dict[tuple[str, Split], RunFolder]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The rows of the selected tests, by every split; runs of as many workers share their processes."""
    specs = (getattr(item, "callspec", None) for item in request.session.items)
    selected = {"remainder", *(spec.params.get("name") for spec in specs if spec is not None)}
    rows = {name: row for name, row in ROWS.items() if name in selected}
    root: Path = tmp_path_factory.mktemp("exactness")
    files = root / "files"
    source = write_sources(files)
    found: Runs = {}
    for name, row in rows.items():
        for split in (row.alone, *row.splits):
            overrides = [text.replace(FILES, str(files)) for text in (*row.overrides, *split.overrides)]
            found[name, split] = write_run(root / str(len(found)), overrides)
            if any(text.startswith("init_from=") for text in overrides):
                checkpoints.keep_initial(found[name, split], str(source.path))
    for size in (1, 2, 3):
        folders = [folder for (_, split), folder in found.items() if split.num_workers == size]
        for first in range(0, len(folders), AT_ONCE):
            train_all(folders[first : first + AT_ONCE], size)
    return found


@pytest.mark.processes
@pytest.mark.parametrize(("name", "split"), CASES)
def test_any_split_ends_with_the_weights_of_one_process(runs: Runs, name: str, split: Split, figure: Any) -> None:
    alone, other = runs[name, ROWS[name].alone], runs[name, split]
    worst = difference(alone, other)
    figure(f"largest difference to one process {worst:.1e}")
    assert worst <= 1e-12
    expected, found = (
        {key: value for key, value in folder.read_summary().items() if key.startswith("test_") and value is not None}
        for folder in (alone, other)
    )
    assert found == pytest.approx(expected, rel=1e-12)
