"""`lockstep verify` finds planted mistakes that one worker never shows.

It names the first part that differs.
"""

import re
from collections.abc import Sequence

import pytest

from lockstep.verify import command
from tests.support import calls
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


TWO, SHARDS, RESUMED = "2 workers", "3 workers, shards 3:1:2", "2 workers to step 2, then 3"
ONE_THREAD = command.OF_ONE_THREAD
PROBE = (
    "experiment=probe",
    "data=synthetic",
    "data.train_size=24",
    "data.image_size=32",
    "model=timm",
    "model.name=test_resnet",
    "model.pretrained=false",
)


@pytest.mark.parametrize(
    ("words", "variants", "code", "expected"),
    [
        pytest.param(
            [*SMALL, *NET, f"model._target_={PLANTED}.WithShardNorm"],
            [TWO],
            1,
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
            [TWO],
            1,
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
            [SHARDS],
            1,
            r"3 workers, shards 3:1:2: (val|test)/odd differs by \S+: "
            r"the training is the same, so",
            id="a mean of means",
        ),
        pytest.param(
            [*SMALL, *NET, f"model._target_={PLANTED}.ViewsByLength"],
            [TWO],
            1,
            r"2 workers: config error: model\._target_=\S+ViewsByLength "
            r"cannot take an empty batch, which the shard of",
            id="a view of an empty shard",
        ),
        pytest.param(
            [*SAMPLES],
            [TWO],
            1,
            r"2 workers: first difference: inputs, sample \d+, in step 1, "
            r"by \S+: a sample depends on",
            id="random numbers of its own",
        ),
        pytest.param(
            [*SMALL, "model.width=2", "data.train_size=10"],
            [RESUMED],
            1,
            r"2 workers to step 2, then 3: config error: "
            r"lockstep verify stops a training after step 2, and",
            id="too few steps to cut",
        ),
        pytest.param(
            [*SMALL, *NET, f"model._target_={PLANTED}.FailsInTheSecondEpoch"],
            [],
            1,
            r"^lockstep: 1 worker: KeyError: 'lost', in .*planted\.py:\d+ \(forward\): ",
            id="a failure after the start",
        ),
        pytest.param([*PROBE], [RESUMED], 0, "Exact", id="a probe"),
        pytest.param(
            ["--bits", *SMALL, *NET, f"model._target_={PLANTED}.WithShardNorm"],
            [SHARDS, ONE_THREAD],
            0,
            "Exact: every bit of weights, statistics and metrics is the same.",
            id="bits of a norm of the shard",
        ),
        pytest.param(
            ["--bits", *SMALL, *NET, f"model._target_={PLANTED}.AddsItsRank"],
            [TWO],
            1,
            r"2 workers: first difference: layer net\.norm \(RankNorm\), sample \d+, "
            r"in step 1, by \S+: it depends",
            id="bits of a layer that depends on its rank",
        ),
        pytest.param(
            [*SMALL, *NET, f"model._target_={PLANTED}.Untracked"],
            [],
            2,
            "^config error: .*has track_running_stats=False",
            id="a norm without statistics",
        ),
        pytest.param(
            [
                *SMALL,
                "model.width=2",
                f"+task.metrics.odd={{_target_:{PLANTED}.AveragesBatches,how:mean}}",
            ],
            [],
            2,
            r"^config error: .*task\.metrics\.odd: AveragesBatches averages its state 'total' over "
            "the workers",
            id="a metric that is averaged",
        ),
        pytest.param(
            ["resume=outputs/x"], [], 2, "^config error: .*resume=outputs/x", id="a resume"
        ),
    ],
)
def test_verdict(
    monkeypatch: pytest.MonkeyPatch,
    words: Sequence[str],
    variants: Sequence[str],
    code: int,
    expected: str,
) -> None:
    """Of one worker and few `variants`; all of them: test_json.py."""
    chosen = {name: command.VARIANTS[name] for name in (command.ALONE, *variants)}
    monkeypatch.setattr(command, "VARIANTS", chosen)
    done = calls.lockstep(ROOT, "verify", *words)
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    assert re.search(expected, text, re.MULTILINE), text
