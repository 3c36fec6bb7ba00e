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

# three steps an epoch, the last one of six images, which has graphs from the third epoch on
LENGTH = (
    *("data.train_size=38", "data.val_size=10", "data.test_size=10", "trainer.max_epochs=4"),
    "+callbacks.graphs={_target_:tests.support.callbacks.NotesGraphs}",
)
# dropout, clipping
STEPS = (
    *(override for override in SMALL if override != "strategy=cpu"),
    *("model.width=2", *LENGTH),
)


def with_network(name: str, *more: str) -> list[str]:
    """STEPS with a network of tests/support/networks.py."""
    network = [text for text in own_network(name) if text != "strategy=cpu"]
    return [*network, *LENGTH, *more]


# by number of GPUs and name: settings, and how many keys have graphs at the end
RECIPES = {
    1: {
        "plain": (STEPS, 2),
        "accumulation without dropout": (
            (*STEPS, "trainer.accumulate_grad_batches=2", "model.dropout=0"),
            2,
        ),
        "bfloat16": ((*STEPS, "trainer.precision=bfloat16", "trainer.deterministic=true"), 2),
        "class weights and mixed images": (
            (*STEPS, "task.class_weights=[1,2,3,4,5,0,1,2,3,4]", "augment.mixup=0.4"),
            2,
        ),
        "custom network": (with_network("Plain"), 2),
    },
    2: {
        "everything": (
            (
                *(*STEPS, *ACCUMULATE_AUGMENT, *PHOTOGRAPH_AUGMENT, "trainer.worker_weights=[2,1]"),
                *("augment.rand_augment.num_ops=0", "optimizer=adamw", "callbacks=ema"),
                *("data.train_size=43", "data.memory=host", "trainer.deterministic=true"),
            ),
            4,
        ),
        "float16": ((*STEPS, "trainer.precision=float16", "trainer.worker_weights=[2,1]"), 2),
        "frozen epochs": (
            (
                *(*STEPS, "trainer.max_epochs=5", "callbacks=ema", "trainer.worker_weights=[2,1]"),
                "+parameters.stem={pattern:'^(conv1|bn1|layer1)',frozen_epochs:2}",
                "+parameters.second={pattern:'^layer2',frozen_epochs:null}",
            ),
            2,
        ),
        # the second worker has one of the remainder of six images
        "single image": (with_network("Plain", "trainer.worker_weights=[5,1]"), 1),
        "refused on one rank": (with_network("WaitsOnRank1"), 0),
    },
}
CASES = [(count, name) for count, recipes in RECIPES.items() for name in recipes]
NAN_LOSS = with_network("HasADomain", "scheduler=constant", "optimizer.lr=0.1", "trainer.devices=1")
STOPPED_AFTER = 7  # steps, in the third epoch
Pairs = dict[str, list[RunFolder]]


def pair(path: Path, *overrides: str) -> list[RunFolder]:
    return [
        write_run(path / graph, [*overrides, f"trainer.graph={graph}"])
        for graph in ("true", "false")
    ]


def graphs(folder: RunFolder) -> list[int]:
    """How many keys had graphs after each batch of rank 0."""
    return [int(line) for line in (folder.path / "graphs").read_text().split()]


@pytest.fixture(scope="module")
def pairs(gpus: PretendedGpus, tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Every training, graphed and eager. The last one of some processes ends early."""
    root = tmp_path_factory.mktemp("graphs")
    found = {"NaN loss": pair(root / "NaN loss", *NAN_LOSS)}
    for count, name in CASES:
        settings, _ = RECIPES[count][name]
        found[name] = pair(root / name, *settings, f"trainer.devices={count}")
    two = (*STEPS, "trainer.devices=2")
    found["resumed"] = [
        write_run(root / "stopped", [*two, ends_after(STOPPED_AFTER, "SIGTERM")]),
        write_run(root / "eager", [*two, "trainer.graph=false"]),
    ]
    network = with_network("OutOfMemoryAfterACapture", "trainer.graph=true", "trainer.devices=2")
    found["out of memory"] = [write_run(root / "out of memory", network)]
    one_gpu, two_gpus = (
        [folder for name in recipes for folder in found[name]] for recipes in RECIPES.values()
    )
    train_all([*one_gpu, found["NaN loss"][0]], 1, EXIT_FAILED, **gpus.environ(1))
    train_all([found["NaN loss"][1]], 1, EXIT_FAILED, **gpus.environ(1))
    resumed = found["resumed"]
    train_all([*two_gpus, resumed[0]], 2, EXIT_STOPPED, **gpus.environ(2))
    train_all([*resumed, *found["out of memory"]], 2, EXIT_FAILED, **gpus.environ(2))
    return found


@pytest.mark.full
@pytest.mark.parametrize(("count", "name"), CASES)
def test_option_as_eager(pairs: Pairs, count: int, name: str) -> None:
    graphed, eager = pairs[name]
    _, num_keys = RECIPES[count][name]
    assert (graphs(graphed)[-1], difference(graphed, eager)) == (num_keys, 0)


@pytest.mark.full
def test_captured_steps(pairs: Pairs) -> None:
    steps = graphs(pairs["plain"][0])
    assert steps == [0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2]
    assert set(graphs(pairs["refused on one rank"][0])) == {0}


@pytest.mark.full
def test_resume_after_capture(pairs: Pairs) -> None:
    resumed, eager = pairs["resumed"]
    assert graphs(resumed)[STOPPED_AFTER - 1] == 1
    assert difference(resumed, eager) == 0


@pytest.mark.full
def test_nan_loss_replayed_graph(pairs: Pairs) -> None:
    runs = pairs["NaN loss"]
    graphed, eager = (folder.failure.read_text() for folder in runs)
    assert "The loss is not finite in optimizer step" in graphed
    assert graphs(runs[0])[-1] > 0
    assert graphed == eager
    saved, expected = map(state, runs)
    assert all(
        value.isfinite().all() and value.equal(expected[name]) for name, value in saved.items()
    )


@pytest.mark.full
def test_out_of_memory_after_capture(pairs: Pairs) -> None:
    assert "rank 1 of 2 ran out of memory" in pairs["out of memory"][0].failure.read_text()
