"""Metrics of a run and the direction in which each is better, known from its configuration alone."""

import pytest
from hydra.utils import get_object

from lockstep.config.checks import metric_names
from lockstep.config.schema.configuration import Config
from tests.support.composed import config_of, errors_of

F1 = "+task.metrics.f1._target_=torchmetrics.classification.MulticlassF1Score"
ECE = "+task.metrics.ece._target_=torchmetrics.classification.MulticlassCalibrationError"
MONITOR = "callbacks.checkpoint.monitor"


def watched(config: Config) -> tuple[object, object]:
    checkpoint = config.callbacks["checkpoint"]
    assert checkpoint is not None
    arguments = checkpoint.arguments()
    return arguments["monitor"], arguments["mode"]


@pytest.mark.parametrize("target", metric_names.HIGHER_IS_BETTER)
def test_a_known_direction_is_that_of_the_metric_itself(target: str) -> None:
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
        ((f"{MONITOR}=val/loss", "callbacks.checkpoint.mode=min"), ("val/loss", "min")),
    ],
)
def test_best_is_the_direction_of_the_metric(texts: tuple[str, ...], expected: tuple[str, str]) -> None:
    config = config_of(*texts)
    assert watched(config) == expected
    if not texts or texts[0].startswith("task="):
        assert metric_names.default(config) == (expected[0], expected[1] == "max")


def test_a_metric_of_the_configuration_is_measured_of_validation() -> None:
    assert metric_names.names(config_of(F1)) == ("train/loss", "train/accuracy", "val/loss", "val/accuracy", "val/f1")


def test_an_unknown_metric_is_reported_with_the_known_ones() -> None:
    (error,) = errors_of(f"{MONITOR}=val/f1")
    assert error.startswith(f"{MONITOR}=val/f1 is not measured: choose from train/loss, train/accuracy, val/loss, ")


def test_a_metric_of_a_custom_callback_needs_its_direction() -> None:
    own = "+callbacks.mine._target_=tests.support.callbacks.Impatient"
    (error,) = errors_of(own, f"{MONITOR}=val/mine")
    assert error == (
        "callbacks.checkpoint.mode=auto: the direction of val/mine is not known: set "
        "callbacks.checkpoint.mode=min or max"
    )
    assert watched(config_of(own, f"{MONITOR}=val/mine", "callbacks.checkpoint.mode=min")) == ("val/mine", "min")


def test_the_worst_is_not_the_best() -> None:
    (error,) = errors_of(ECE, f"{MONITOR}=val/ece", "callbacks.checkpoint.mode=max")
    assert error.endswith("selects the worst val/ece as the best: set callbacks.checkpoint.mode=min")


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        (["task.label_smoothin=0"], "task.label_smoothin is not a setting: did you mean task.label_smoothing?"),
        (["label_smoothing=0.2"], "label_smoothing is not a setting: did you mean task.label_smoothing=0.2?"),
        (["task.metrics.accuracy._target_=torchmetrics.F1Scor"], "F1Score"),
        (["+task.metrics.f1.average=macro"], "task.metrics.f1._target_ is missing"),
        (["+task.metrics.loss._target_=torchmetrics.MeanMetric"], "task.metrics.loss cannot have this name"),
        (["task.class_weights=[0.0,0.0]"], "task.class_weights=[0.0,0.0] counts no sample: give a class more than 0"),
        (["task.class_weights=[1,nan]"], "] must be [float >= 0, ...] or balanced or null, as Classification has it"),
        (["task.class_weights=[1,-1]"], "task.class_weights=[1,-1] must be [float >= 0, ...] or balanced or null"),
        (["task=regression", "task.loss=null"], "task.loss=null must be a section with _target_"),
        (["task.loss=mse"], "task.loss=mse must be a section with _target_"),
    ],
)
def test_an_error_of_a_task_names_its_key_and_a_fix(texts: list[str], error: str) -> None:
    assert any(error in found for found in errors_of(*texts)), errors_of(*texts)


def test_a_loss_of_ones_own_and_what_belongs_to_cross_entropy_exclude_each_other() -> None:
    loss = "task.loss={_target_:torch.nn.MultiMarginLoss,reduction:none}"
    hint = "is of cross-entropy, which task.loss=torch.nn.MultiMarginLoss replaces"
    assert errors_of(loss, "task.class_weights=[1.0,2.0]") == [
        f"task.label_smoothing=0.1 {hint}: set task.label_smoothing=0",
        f"task.class_weights=[1.0,2.0] {hint}: set task.class_weights=null",
    ]
    config_of(loss, "task.label_smoothing=0")


def test_metrics_receive_the_number_of_classes_unless_it_is_set() -> None:
    config_of("+task.metrics.f1._target_=torchmetrics.F1Score")
    config_of(F1, "+task.metrics.f1.num_classes=3")
