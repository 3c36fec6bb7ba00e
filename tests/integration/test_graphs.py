"""Trainings replayed as CUDA graphs on pretended GPUs have the bits of eager ones in any option."""

from pathlib import Path

import pytest

from lockstep.runs.folder import EXIT_FAILED, EXIT_STOPPED, RunFolder
from tests.support.callbacks import ends_after
from tests.support.gpus import PretendedGpus
from tests.support.harness import (
    ACCUMULATE_AUGMENT,
    PHOTOGRAPH_AUGMENT,
    SMALL,
    difference,
    own_network,
    state,
    train_all,
    write_run,
)

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("four_gpus_here")]

# five steps an epoch, the last one of six images, which has graphs from the third epoch on;
# dropout, clipping
STEPS = (
    *(override for override in SMALL if override != "strategy=cpu"),
    "model.width=2",
    "trainer.max_epochs=4",
    "+callbacks.graphs={_target_:tests.support.callbacks.NotesGraphs}",
)
OWN = (*(text for text in own_network("Plain") if text != "strategy=cpu"), *STEPS[-2:])
# by name: settings, and how many keys have graphs at the end
RECIPES = {
    "plain": STEPS,
    "everything": (
        *(*STEPS, *ACCUMULATE_AUGMENT, *PHOTOGRAPH_AUGMENT, "augment.rand_augment.num_ops=0"),
        *("optimizer=adamw", "callbacks=ema", "data.memory=host", "trainer.deterministic=true"),
    ),
    "accumulation without dropout": (
        *STEPS,
        "trainer.accumulate_grad_batches=2",
        "model.dropout=0",
    ),
    "bfloat16": (*STEPS, "trainer.precision=bfloat16", "trainer.deterministic=true"),
    "float16": (*STEPS, "trainer.precision=float16"),
    "frozen epochs": (
        *(*STEPS, "trainer.max_epochs=5", "callbacks=ema"),
        "+parameters.stem={pattern:'^(conv1|bn1|layer1)',frozen_epochs:2}",
        "+parameters.second={pattern:'^layer2',frozen_epochs:null}",
    ),
    "class weights and mixed images": (
        *STEPS,
        "task.class_weights=[1,2,3,4,5,0,1,2,3,4]",
        "augment.mixup=0.4",
    ),
    "custom network": OWN,
}


def pair(path: Path, *overrides: str) -> list[RunFolder]:
    return [
        write_run(path / graph, [*overrides, f"trainer.graph={graph}"])
        for graph in ("true", "false")
    ]


def graphs(folder: RunFolder) -> list[int]:
    """How many keys had graphs after each batch of rank 0."""
    return [int(line) for line in (folder.path / "graphs").read_text().split()]


# numbers of GPUs: settings of their workers, recipes, and how many keys have graphs at the end: of
# the remainder of six images, [2,1,1] gives one to the last worker
MATRIX = {
    1: (("trainer.devices=1",), dict.fromkeys(RECIPES, 2) | {"everything": 4}),
    2: (
        ("trainer.devices=2", "trainer.worker_weights=[2,1]"),
        {"everything": 4, "float16": 2, "frozen epochs": 2},
    ),
    3: (("trainer.devices=3", "trainer.worker_weights=[2,1,1]"), {"custom network": 1}),
}


@pytest.mark.full
@pytest.mark.parametrize("count", MATRIX)
def test_options_as_eager(gpus: PretendedGpus, tmp_path: Path, count: int) -> None:
    workers, recipes = MATRIX[count]
    pairs = {name: pair(tmp_path / name, *RECIPES[name], *workers) for name in recipes}
    train_all([run for runs in pairs.values() for run in runs], count, **gpus.environ(3))
    found = {
        name: (graphs(graphed)[-1], difference(graphed, eager))
        for name, (graphed, eager) in pairs.items()
    }
    assert found == {name: (num_keys, 0) for name, num_keys in recipes.items()}
    if "plain" in pairs:
        steps = graphs(pairs["plain"][0])
        assert steps == [0, 0, 1, 1, 1] + [1] * 5 + [1, 1, 1, 1, 2] + [2] * 5


@pytest.mark.full
def test_resume_after_capture(gpus: PretendedGpus, tmp_path: Path) -> None:
    recipe = [*STEPS, "trainer.devices=2"]
    cut = write_run(tmp_path / "cut", [*recipe, ends_after(13, "SIGTERM"), "trainer.graph=true"])
    eager = write_run(tmp_path / "eager", [*recipe, "trainer.graph=false"])
    train_all([cut], 2, EXIT_STOPPED, **gpus.environ(2))
    assert graphs(cut)[-1] == 1
    train_all([cut, eager], 2, **gpus.environ(2))
    assert difference(cut, eager) == 0


@pytest.mark.full
def test_nan_loss_replayed_graph(gpus: PretendedGpus, tmp_path: Path) -> None:
    network = [
        *(text for text in own_network("HasADomain") if text != "strategy=cpu"),
        "scheduler=constant",
    ]
    runs = pair(tmp_path, *network, *STEPS[-2:], "optimizer.lr=0.1", "trainer.devices=1")
    for folder in runs:
        train_all([folder], 1, EXIT_FAILED, **gpus.environ(1))
    graphed, eager = (folder.failure.read_text() for folder in runs)
    assert "The loss is not finite in optimizer step" in graphed
    assert graphs(runs[0])[-1] > 0
    assert graphed == eager
    saved, expected = map(state, runs)
    assert all(
        value.isfinite().all() and value.equal(expected[name]) for name, value in saved.items()
    )


@pytest.mark.full
def test_capture_refused_on_one_rank(gpus: PretendedGpus, tmp_path: Path) -> None:
    network = [text for text in own_network("WaitsOnRank1") if text != "strategy=cpu"]
    graphed, eager = pair(tmp_path, *network, *STEPS[-2:], "trainer.devices=2")
    train_all([graphed, eager], 2, **gpus.environ(2))
    assert set(graphs(graphed)) == {0}
    assert difference(graphed, eager) == 0


@pytest.mark.full
def test_out_of_memory_after_capture(gpus: PretendedGpus, tmp_path: Path) -> None:
    network = [text for text in own_network("OutOfMemoryAfterACapture") if text != "strategy=cpu"]
    folder = write_run(
        tmp_path / "run", [*network, *STEPS[-2:], "trainer.graph=true", "trainer.devices=2"]
    )
    train_all([folder], 2, EXIT_FAILED, **gpus.environ(2))
    assert "rank 1 of 2 ran out of memory" in folder.failure.read_text()
