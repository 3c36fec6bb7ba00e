"""`lockstep verify` finds planted mistakes that one worker never shows.

It names the first part that differs.
"""

import re
import sys

import pytest

from tests.support.commands import run
from tests.support.harness import ROOT

pytestmark = [pytest.mark.full, pytest.mark.processes]
PLANTED = "tests.support.planted"
DATASETS = {"train": 48, "val": 12, "test": 12}
SMALL = (
    "data=synthetic",
    "data.image_size=8",
    "data.train_size=200",
    "global_batch_size=12",
    "eval_batch_size=60",
)
SAMPLES = (
    *("data=dataset", "data.num_workers=1", "global_batch_size=12", "model.width=2"),
    *(
        f"+data.{split}={{_target_:{PLANTED}.DrawsByItself,count:{count}}}"
        for split, count in DATASETS.items()
    ),
)
NET = ("+model.hidden=3",)


def verified(*overrides: str) -> tuple[int, str]:
    done = run([sys.executable, "-m", "lockstep", "verify", *overrides], ROOT)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        pytest.param(
            [*SMALL, *NET, f"model._target_={PLANTED}.WithShardNorm"],
            r"2 workers: first difference: layer net\.norm \(NormalizesShards\), sample \d+, "
            r"in step 1, by \S+: its",
            id="a norm of the shard",
        ),
        pytest.param(
            [
                *SMALL,
                "model.width=2",
                f"task._target_={PLANTED}.MeanLoss",
                *("task.loss=null", "task.label_smoothing=0.1", "task.class_weights=null"),
            ],
            r"2 workers: first difference: losses, sample \d+, in step 1, "
            r"by \S+: the loss of a sample",
            id="a mean over the shard",
        ),
        pytest.param(
            [
                *SMALL,
                "model.width=2",
                f"+task.metrics.odd={{_target_:{PLANTED}.AveragesBatches,how:sum}}",
            ],
            r"3 workers, shards 3:1:2: (val|test)/odd differs by \S+: "
            r"no step of the training differs",
            id="a mean of means",
        ),
        pytest.param(
            [*SMALL, *NET, f"model._target_={PLANTED}.ViewsByLength"],
            r"2 workers: config error: model\._target_=\S+ViewsByLength "
            r"cannot take an empty batch, which the shard of",
            id="a view of an empty shard",
        ),
        pytest.param(
            [*SAMPLES],
            r"2 workers: first difference: inputs, sample \d+, in step 1, "
            r"by \S+: a sample depends on",
            id="random numbers of its own",
        ),
        pytest.param(
            [*SMALL, "model.width=2", "data.train_size=10"],
            r"2 workers to step 2, then 3: config error: "
            r"lockstep verify stops a training after step 2, and",
            id="too few steps to cut",
        ),
        pytest.param(
            [*SMALL, *NET, f"model._target_={PLANTED}.FailsInTheSecondEpoch"],
            r"^lockstep: 1 worker: KeyError: 'lost', in .*planted\.py:\d+ \(forward\): ",
            id="a failure after the start",
        ),
    ],
)
def test_planted_mistake(overrides: list[str], expected: str) -> None:
    code, text = verified(*overrides)
    assert code == 1, text
    assert re.search(expected, text, re.MULTILINE), text


PROBE = (
    "experiment=probe",
    "data=synthetic",
    "data.train_size=24",
    "model=timm",
    "model.name=test_resnet",
)


@pytest.mark.parametrize(
    "overrides",
    [
        # 2 steps: cut after the last one of an epoch
        [*SMALL, "model.width=2", "data.train_size=24"],
        [*PROBE, "model.pretrained=false", "data.image_size=32"],
    ],
)
def test_exact(overrides: list[str]) -> None:
    code, text = verified(*overrides)
    assert code == 0, text


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        ("WithShardNorm", 0, "Exact: every bit of weights, statistics and metrics is the same."),
        (
            "AddsItsRank",
            1,
            r"2 workers: first difference: layer net\.norm \(RankNorm\), sample \d+, "
            r"in step 1, by \S+: it depends",
        ),
    ],
)
def test_bits_rank_dependent_layer(name: str, code: int, expected: str) -> None:
    """`--bits` accepts a layer that depends on its shard, but not one that depends on its rank."""
    found, text = verified("--bits", *SMALL, *NET, f"model._target_={PLANTED}.{name}")
    assert found == code, text
    assert re.search(expected, text), text


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ([*SMALL, *NET, f"model._target_={PLANTED}.Untracked"], "has track_running_stats=False"),
        (
            [
                *SMALL,
                "model.width=2",
                f"+task.metrics.odd={{_target_:{PLANTED}.AveragesBatches,how:mean}}",
            ],
            "task.metrics.odd: AveragesBatches averages its state 'total' over the workers",
        ),
        (["resume=outputs/x"], "resume=outputs/x"),
    ],
)
def test_unverifiable_settings_refused(overrides: list[str], error: str) -> None:
    code, text = verified(*overrides)
    assert code == 2, text
    assert re.search(f"^config error: .*{re.escape(error)}", text, re.MULTILINE), text
