"""N workers compute what one worker would: weights, statistics, momentum, metrics.

They agree to 1e-12 in float64.

One matrix: each row is a small training, each split of a row ends with the numbers of one worker,
also one that is interrupted and resumed by other workers. With virtual shards it ends with the
bits. Each mechanism was broken once on purpose, and these tests failed; the list is
tests/mutants.toml. Errors of a kind of data, network or module are tested in the file of its name.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.assembly import checkpoints
from lockstep.runs.folder import RunFolder
from tests.support.exact import cut_after, trained
from tests.support.harness import ROOT, difference, train_all, write_run
from tests.support.matrix import ALONE, FILES, ROWS, Split, write_sources

GOLDEN = ROOT / "tests" / "support" / "golden_bits.json"
AT_ONCE = 20  # trainings of one group of processes, whose end is awaited for PATIENCE_S
# one of each kind, for `make test`
QUICK = (
    *("remainder", "micro-batches, every augmentation", "balanced classes"),
    *(
        "tied layers",
        "own module, partly used",
        "Dataset, custom transforms",
        "folder, random crops, custom transforms",
    ),
    *(
        "micro-batches, every augmentation, virtual shards in float64",
        "partly used network, virtual shards in float32",
    ),
    "one more, averaged weights, virtual shards in float32",
)


def marks_of(name: str, split: Split) -> tuple[pytest.MarkDecorator, ...]:
    """`make test` has workers of one thread, which are forks."""
    is_quick = name in QUICK and split.num_threads == 1
    return () if is_quick else (pytest.mark.full,)


CASES = [
    pytest.param(name, split, id=f"{name}-{split}", marks=marks_of(name, split))
    for name, row in ROWS.items()
    for split in row.splits
]
Runs = dict[tuple[str, Split], RunFolder]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Train the rows of the selected tests, by the selected splits.

    Runs of as many workers share their processes.
    """
    items = [item for item in request.session.items if item.path == request.path]
    specs = (getattr(item, "callspec", None) for item in items)
    selected = [(spec.params["name"], spec.params["split"]) for spec in specs if spec is not None]
    alone = [(name, ROWS[name].alone) for name, _ in selected]
    root: Path = tmp_path_factory.mktemp("exactness")
    files = root / "files"
    source = write_sources(files)
    found: Runs = {}
    for name, split in dict.fromkeys([*alone, *selected]):
        texts = (*ROWS[name].overrides, *split.overrides)
        overrides = [text.replace(FILES, str(files)) for text in texts]
        run = found[name, split] = write_run(root / str(len(found)), overrides)
        if any(text.startswith("init_from=") for text in overrides):
            checkpoints.copy_initial_checkpoint(
                run, checkpoints.initial_checkpoint(str(source.path))
            )
        if split.stop_after:
            cut_after(run, split.stop_after)
            run.initial_weights.unlink(missing_ok=True)  # a resume needs them no longer
            text = run.config.read_text().replace("devices: 1\n", f"devices: {split.num_workers}\n")
            weights = f"worker_weights: {split.worker_weights}\n"
            run.config.write_text(text.replace("worker_weights: null\n", weights))
    for size, num_threads in ((1, 1), (2, 1), (3, 1), (1, 2), (3, 2)):
        places = [(split.num_workers, split.num_threads) for _, split in found]
        folders = [
            run
            for run, place in zip(found.values(), places, strict=True)
            if place == (size, num_threads)
        ]
        threads = {} if num_threads == 1 else {"OMP_NUM_THREADS": str(num_threads)}
        for first in range(0, len(folders), AT_ONCE):
            train_all(folders[first : first + AT_ONCE], size, **threads)
    return found


def results(run: RunFolder) -> dict[str, Any]:
    """Results of the test of a run."""
    summary = run.read_summary()
    return {
        key: value
        for key, value in summary.items()
        if key.startswith("test_") and value is not None
    }


@pytest.mark.processes
@pytest.mark.parametrize(("name", "split"), CASES)
def test_equals_one_process(runs: Runs, name: str, split: Split, figure: Any) -> None:
    row = ROWS[name]
    alone, other = runs[name, row.alone], runs[name, split]
    worst = difference(alone, other)
    figure(f"largest difference to one process {worst:.1e}")
    assert worst <= row.bound
    assert results(other) == pytest.approx(results(alone), rel=row.bound, abs=row.bound)
    if row.bound == 0:
        assert other.read_summary()["weights_sha256"] == alone.read_summary()["weights_sha256"]


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("split", [ALONE])
@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("schedule of epochs", [0.05, 0.025, 0.0125]),
        ("plateau", [0.1, 0.05, 0.025]),  # no accuracy is twice the first
        ("warm restarts", [0.025, 0.075, 0.1]),
    ],
)
def test_rates_of_schedule(runs: Runs, name: str, split: Split, rates: list[float]) -> None:
    rows = runs[name, split].read_metrics()
    assert [float(row["learning_rate"]) for row in rows] == pytest.approx(rates)


@pytest.mark.full
def test_golden_bits(tmp_path: Path, figure: Any) -> None:
    """The digits of the default for 50 steps. A hash that changes is a line of the CHANGELOG."""
    cpu = dict(
        re.findall(
            r"^(.+?)\s*: (.*)$",
            Path("/proc/cpuinfo").read_text().partition("\n\n")[0],
            re.MULTILINE,
        )
    )
    # kernels are chosen by instruction set, their blocks by caches
    facts = [cpu.get(key) for key in ("model name", "cpu family", "model", "cache size")]
    kind = f"{facts}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
    steps = (
        "trainer.max_epochs=5",
        "trainer.limit_train_batches=10",
        "trainer.precision=float32",
        "strategy=cpu",
    )
    run = trained(tmp_path / "run", (*steps, "trainer.virtual_shards=4"))
    found = run.read_summary()["weights_sha256"]
    figure(f"on {kind}: {found}")
    known = json.loads(GOLDEN.read_text())
    if kind not in known:
        pytest.skip(f"{GOLDEN.name} has no hash for {kind}; this one is {found}")
    assert found == known[kind]
