"""With virtual shards any number of workers ends with the bits of one, in the precision of the run."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.assembly import checkpoints
from lockstep.runs.folder import RunFolder
from tests.integration.test_exactness import ALONE, FILES, ROWS, Split, write_weights
from tests.support.exact import train
from tests.support.harness import difference, train_all, write_run
from tests.support.image_files import write_folder, write_listed
from tests.support.recipes import INITIAL

import os
NAMES = os.environ.get("BITS_ROWS", "").split(";") if os.environ.get("BITS_ROWS") else [n for n in ROWS if "module" not in n and "in parts" not in n]
PRECISION = os.environ.get("BITS_PRECISION", "float32")
SPLITS = (Split(2), Split(3, "[2,0,1]"))
Runs = dict[tuple[str, Split], RunFolder]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root: Path = tmp_path_factory.mktemp("bits")
    files = root / "files"
    write_folder(files / "images", count=35)
    write_folder(files / "unequal", count=35)
    for image in sorted((files / "unequal" / "red fox").rglob("*.png"))[:25]:
        image.unlink()
    for suffix in (".csv", ".parquet"):
        write_listed(files / "listed", count=70, suffix=suffix)
    write_weights(files / "weights.pth")
    source = write_run(files / "source", INITIAL)
    assert train(source) == 0
    found: Runs = {}
    for name in NAMES:
        row = ROWS[name]
        for split in (ALONE, *SPLITS):
            overrides = [text.replace(FILES, str(files)) for text in (*row.overrides, *row.alone.more, *split.overrides)]
            found[name, split] = write_run(root / str(len(found)), [*overrides, "trainer.virtual_shards=4", f"trainer.precision={PRECISION}"])
            if any(text.startswith("init_from=") for text in overrides):
                checkpoints.keep_initial(found[name, split], str(source.path))
    return found


@pytest.mark.processes
@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_workers_has_the_bits_of_one(runs: Runs, name: str, figure: Any) -> None:
    for split in (ALONE, *SPLITS):
        train_all([runs[name, split]], split.num_workers)
    for split in SPLITS:
        assert difference(runs[name, ALONE], runs[name, split]) == 0
