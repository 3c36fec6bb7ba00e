"""With virtual shards any number of workers, any loads and any number of threads end with the bits of one worker."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from lockstep.assembly import checkpoints
from lockstep.config.saved import config_file
from lockstep.runs.folder import RunFolder
from tests.support.exact import cut_after, train
from tests.support.harness import ROOT, difference, train_all, write_run
from tests.support.matrix import ALONE, FILES, ROWS, Split, write_sources

GOLDEN = ROOT / "tests" / "support" / "golden_bits.json"
SHARDS = "trainer.virtual_shards=4"


class Way(NamedTuple):
    """A split, and the threads of each worker."""

    split: Split
    num_threads: int = 1

    def __str__(self) -> str:
        return f"{self.split}, {self.num_threads} threads"


ONE = Way(ALONE)
WAYS = (Way(ALONE, 2), Way(Split(2, "[3,1]")), Way(Split(3, "[2,0,1]"), 2))
# trainings of test_exactness, in a precision in which people train
TRAINED = {
    "micro-batches, every augmentation": "bfloat16",
    "one more, averaged weights": "float32",
    "partly used network": "float32",
    "tied layers": "bfloat16",
    "augmentations of photographs": "float32",
    "AdamW": "float32",
    "plateau": "float32",
    "parameter groups": "float32",
    "class weights, own metric": "bfloat16",
    "balanced classes": "float32",
    "numbers, another loss": "float64",
    "Dataset": "float32",
    "folder, random crops": "float32",
    "timm test_efficientnet": "float32",
    "timm test_vit": "bfloat16",
}
QUICK = ("micro-batches, every augmentation", "one more, averaged weights", "partly used network")
CASES = [pytest.param(name, id=name, marks=() if name in QUICK else pytest.mark.full) for name in TRAINED]
Runs = dict[tuple[str, Way], RunFolder]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The selected trainings in every way; those of as many workers and threads share their processes."""
    specs = (getattr(item, "callspec", None) for item in request.session.items)
    selected = {spec.params.get("name") for spec in specs if spec is not None}
    root: Path = tmp_path_factory.mktemp("bits")
    source = write_sources(root / "files")
    found: Runs = {}
    for name in (name for name in TRAINED if name in selected):
        row = ROWS[name]
        for way in (ONE, *WAYS):
            overrides = [*row.overrides, *row.alone.more, *way.split.overrides, SHARDS]
            texts = [text.replace(FILES, str(root / "files")) for text in overrides]
            found[name, way] = write_run(root / str(len(found)), [*texts, f"trainer.precision={TRAINED[name]}"])
            if any(text.startswith("init_from=") for text in texts):
                checkpoints.keep_initial(found[name, way], str(source.path))
    for way in (ONE, *WAYS):
        folders = [folder for (_, other), folder in found.items() if other == way]
        threads = {} if way.num_threads == 1 else {"OMP_NUM_THREADS": str(way.num_threads)}
        train_all(folders, way.split.num_workers, **threads)
    return found


@pytest.mark.processes
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_any_workers_end_with_the_bits_of_one(runs: Runs, name: str, way: Way) -> None:
    one, other = runs[name, ONE], runs[name, way]
    assert difference(one, other) == 0
    expected, found = (
        {key: value for key, value in folder.read_summary().items() if key.startswith(("test_", "weights_"))}
        for folder in (one, other)
    )
    assert found == expected


@pytest.mark.processes
def test_a_stop_in_an_epoch_and_other_workers_change_no_bit(tmp_path: Path) -> None:
    # in float64 even the sums of losses, which are always of float64, are rounded
    overrides = [*ROWS["micro-batches, every augmentation"].overrides, SHARDS, "trainer.precision=float64"]
    whole, cut = (write_run(tmp_path / name, overrides) for name in ("whole", "cut"))
    train_all([whole], 1)
    cut_after(cut, 1)  # stops after step 2 of 3
    split = Split(3, "[2,0,1]")
    config_file.save(config_file.load(write_run(tmp_path / "three", [*overrides, *split.overrides]).config), cut.config)
    train_all([cut], 3)
    assert difference(whole, cut) == 0


@pytest.mark.full
def test_a_training_has_the_bits_that_it_had_before(tmp_path: Path, figure: Any) -> None:
    """The digits of the default for 50 steps. A hash that changes is a line of the CHANGELOG."""
    cpu = dict(re.findall(r"^(.+?)\s*: (.*)$", Path("/proc/cpuinfo").read_text().partition("\n\n")[0], re.MULTILINE))
    # kernels are chosen by instruction set, their blocks by caches
    facts = [cpu.get(key) for key in ("model name", "cpu family", "model", "cache size")]
    kind = f"{facts}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
    steps = ("trainer.max_epochs=5", "trainer.limit_train_batches=10", "trainer.precision=float32", "strategy=cpu")
    run = write_run(tmp_path / "run", (*steps, SHARDS))
    assert train(run) == 0
    found = run.read_summary()["weights_sha256"]
    figure(f"on {kind}: {found}")
    known = json.loads(GOLDEN.read_text())
    if kind not in known:
        pytest.skip(f"{GOLDEN.name} has no hash for {kind}; this one is {found}")
    assert found == known[kind]
