# pyright: strict
"""A user's script that trains, reads runs, predicts, sweeps and submits."""

from pathlib import Path
from typing import Any, assert_type

import numpy as np
from PIL import Image
from torch import Tensor

import lockstep
from lockstep import ConfigError, Job, Prediction, Predictions, Run, TrainingFailed
from lockstep.testing import assert_exact

SMALL = ["data=digits", "model.width=4", "strategy=cpu"]


def trains() -> Run | None:
    try:
        run = lockstep.train([*SMALL, "trainer.max_epochs=1"], trust=False)
    except TrainingFailed as failed:
        return failed.run
    except ConfigError as error:
        print([(each.key, each.problem, each.hint) for each in error.errors])
        return None
    return run


def reads(run: Run) -> float:
    assert_type(run.config, dict[str, Any])
    assert_type(run.metrics, list[dict[str, float]])
    assert_type(run.summary, dict[str, Any])
    assert_type(lockstep.runs("outputs"), list[Run])
    return max(row["val/accuracy"] for row in run.metrics)


def predicts(run: Run) -> None:
    predict = lockstep.load(run, checkpoint="last", device="cpu", max_error=0.05)
    one = predict(Image.new("L", (8, 8)))
    assert_type(one, Prediction)
    assert_type(predict(np.zeros((8, 8), np.uint8)), Prediction)
    assert_type(one.class_name, str)
    several = predict(["a.png", Path("b.png")])
    assert_type(several, Predictions)
    assert_type(several.values, Tensor)
    assert_type(several[0], Prediction)
    assert_type(several[1:], Predictions)
    of_a_file: Prediction = predict("a.png")  # a path may be a folder, so the type is Any
    assert_type(predict.features([of_a_file.file or "a.png"]), Tensor)


def sweeps_and_submits() -> None:
    sweep = lockstep.sweep([*SMALL, "seed=0,1"])
    assert_type(sweep.trials, list[Run])
    jobs = lockstep.submit([*SMALL, "cluster=local"])
    assert_type(jobs, list[Job])
    assert_type(jobs[0].result(), dict[str, Any])


def test_several_workers_train_what_one_does() -> None:
    assert_exact(*SMALL, cwd=Path(__file__).parent)
