"""The configuration alone tells the metrics of a run and the direction in which each improves."""

import pytest
from hydra.utils import get_object

from lockstep.config.checks import metric_names
from tests.support.composed import config_of, errors_of

F1 = "+task.metrics.f1._target_=torchmetrics.classification.MulticlassF1Score"
ECE = "+task.metrics.ece._target_=torchmetrics.classification.MulticlassCalibrationError"
MONITOR, MODE = "callbacks.checkpoint.monitor", "callbacks.checkpoint.mode"
OWN = "+callbacks.mine._target_=tests.support.callbacks.Impatient"
LOSS = "task.loss={_target_:torch.nn.MultiMarginLoss,reduction:none}"


@pytest.mark.parametrize("target", metric_names.HIGHER_IS_BETTER)
def test_known_directions(target: str) -> None:
    assert metric_names.HIGHER_IS_BETTER[target] == get_object(target).higher_is_better


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ((), ("val/accuracy", "max")),
        (("task=multilabel",), ("val/average_precision", "max")),
        (("task=regression",), ("val/mae", "min")),
        (("task=regression", "~task.metrics.mae", "~task.metrics.rmse"), ("val/loss", "min")),
        ((F1, f"{MONITOR}=val/f1"), ("val/f1", "max")),
        ((ECE, f"{MONITOR}=val/ece"), ("val/ece", "min")),
        ((f"{MONITOR}=val/loss",), ("val/loss", "min")),
        ((f"{MONITOR}=train/accuracy",), ("train/accuracy", "max")),
        ((f"{MONITOR}=val/loss", f"{MODE}=min"), ("val/loss", "min")),
        ((OWN, f"{MONITOR}=val/mine", f"{MODE}=min"), ("val/mine", "min")),
    ],
)
def test_best_direction(texts: tuple[str, ...], expected: tuple[str, str]) -> None:
    config = config_of(*texts)
    checkpoint = config.callbacks["checkpoint"]
    assert checkpoint is not None
    arguments = checkpoint.arguments()
    assert (arguments["monitor"], arguments["mode"]) == expected
    if not texts or texts[0].startswith("task="):
        assert metric_names.default(config) == (expected[0], expected[1] == "max")


def test_names_custom_metric() -> None:
    assert metric_names.names(config_of(F1)) == (
        "train/loss",
        "train/accuracy",
        "val/loss",
        "val/accuracy",
        "val/f1",
    )


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        (
            ["task.label_smoothin=0"],
            "task.label_smoothin is not a setting: did you mean task.label_smoothing?",
        ),
        (
            ["label_smoothing=0.2"],
            "label_smoothing is not a setting: did you mean task.label_smoothing=0.2?",
        ),
        (["task.metrics.accuracy._target_=torchmetrics.F1Scor"], "F1Score"),
        (["+task.metrics.f1.average=macro"], "task.metrics.f1._target_ is missing"),
        (
            ["+task.metrics.loss._target_=torchmetrics.MeanMetric"],
            "task.metrics.loss cannot have this name",
        ),
        (
            ["task.class_weights=[0.0,0.0]"],
            "task.class_weights=[0.0,0.0] counts no sample: give a class more than 0",
        ),
        (
            ["task.class_weights=[1,nan]"],
            "] must be [float >= 0, ...] or balanced or null, as Classification has it",
        ),
        (
            ["task.class_weights=[1,-1]"],
            "task.class_weights=[1,-1] must be [float >= 0, ...] or balanced or null",
        ),
        (["task=regression", "task.loss=null"], "task.loss=null must be a section with _target_"),
        (["task.loss=mse"], "task.loss=mse must be a section with _target_"),
        ([f"{MONITOR}=val/f1"], f"{MONITOR}=val/f1 is not measured: choose from train/loss, "),
        ([OWN, f"{MONITOR}=val/mine"], "callbacks.checkpoint.mode=auto"),
        ([ECE, f"{MONITOR}=val/ece", f"{MODE}=max"], f"set {MODE}=min"),
        (
            [LOSS, "task.class_weights=[1.0,2.0]"],
            "task.label_smoothing=0.1 is a setting of cross-entropy",
        ),
        (
            [LOSS, "task.class_weights=[1.0,2.0]"],
            "task.class_weights=[1.0,2.0] is a setting of cross-entropy",
        ),
    ],
)
def test_task_refused(texts: list[str], error: str) -> None:
    found = errors_of(*texts)
    assert [line for line in found if error in line], found


@pytest.mark.parametrize(
    "texts",
    [
        [LOSS, "task.label_smoothing=0"],
        ["+task.metrics.f1._target_=torchmetrics.F1Score"],  # gets the number of classes
        [F1, "+task.metrics.f1.num_classes=3"],
    ],
)
def test_task_passes(texts: list[str]) -> None:
    config_of(*texts)
