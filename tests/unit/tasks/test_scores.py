"""Loss and metrics of a pass, from any shards of it and over real ranks, equal scikit-learn's."""

import math
from collections.abc import Callable

import pytest
import torch
from sklearn import metrics as sklearn_metrics
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import ClasswiseWrapper, MeanAbsoluteError, Metric, PearsonCorrCoef, R2Score
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassCalibrationError,
    MulticlassF1Score,
    MultilabelAveragePrecision,
    MultilabelF1Score,
)

from lockstep.distributed.batch import Batch
from lockstep.distributed.partition import Shard, interval
from lockstep.distributed.virtual_shards import VirtualShards
from lockstep.tasks import Multilabel, Regression, Task
from lockstep.tasks.scores import MetricError, Scores
from tests.support.modules import classification

NUM_SAMPLES, NUM_CLASSES = 97, 4
CPU = torch.device("cpu")


def update(scores: Scores, task: Task, outputs: Tensor, targets: Tensor, positions: Tensor) -> None:
    if count := len(positions):
        shard = Shard(0, 0, 0, count, 0, count, count)
        batch = Batch(torch.empty(count, 0), targets[positions], positions, shard)
        scores.update(task, outputs[positions], batch)


def made_up(kind: str) -> tuple[Task, Tensor, Tensor]:
    source = torch.Generator().manual_seed(3)
    outputs = torch.randn(NUM_SAMPLES, NUM_CLASSES, dtype=torch.float64, generator=source)
    if kind == "classes":
        return (
            classification(),
            outputs,
            torch.randint(NUM_CLASSES, (NUM_SAMPLES,), generator=source),
        )
    if kind == "labels":
        targets = (torch.rand(NUM_SAMPLES, NUM_CLASSES, generator=source) < 0.4).float()
        return Multilabel(loss=torch.nn.BCEWithLogitsLoss(reduction="none")), outputs, targets
    numbers = outputs[:, :1] + torch.randn(NUM_SAMPLES, 1, generator=source)
    return Regression(loss=torch.nn.MSELoss(reduction="none")), numbers, outputs[:, 0].float()


METRICS: dict[str, dict[str, Callable[[], Metric]]] = {
    "classes": {
        "accuracy": lambda: MulticlassAccuracy(NUM_CLASSES, average="micro"),
        "f1": lambda: MulticlassF1Score(NUM_CLASSES),
        "top2": lambda: MulticlassAccuracy(NUM_CLASSES, average="micro", top_k=2),
        "auroc": lambda: MulticlassAUROC(NUM_CLASSES),
        "calibration": lambda: MulticlassCalibrationError(NUM_CLASSES),
        "of_class": lambda: ClasswiseWrapper(
            MulticlassAccuracy(NUM_CLASSES, average="none"), prefix=""
        ),
    },
    "labels": {
        "f1": lambda: MultilabelF1Score(NUM_CLASSES),
        "average_precision": lambda: MultilabelAveragePrecision(NUM_CLASSES),
    },
    "numbers": {"mae": MeanAbsoluteError, "r2": R2Score, "pearson": PearsonCorrCoef},
}


def expected(kind: str) -> dict[str, float]:
    """By scikit-learn and torch, on the whole split."""
    _, outputs, targets = made_up(kind)
    if kind == "classes":
        probabilities, labels = outputs.softmax(1).numpy(), targets.numpy()
        best = probabilities.argmax(1)
        return {
            "loss": sklearn_metrics.log_loss(labels, probabilities),
            "accuracy": float(sklearn_metrics.accuracy_score(labels, best)),
            "f1": float(sklearn_metrics.f1_score(labels, best, average="macro")),
            "top2": float(sklearn_metrics.top_k_accuracy_score(labels, probabilities, k=2)),
            "auroc": float(sklearn_metrics.roc_auc_score(labels, probabilities, multi_class="ovr")),
        }
    if kind == "labels":
        probabilities, labels = outputs.sigmoid().numpy(), targets.numpy()
        return {
            "loss": F.binary_cross_entropy_with_logits(outputs, targets.double()).item(),
            "f1": float(sklearn_metrics.f1_score(labels, probabilities > 0.5, average="macro")),
            "average_precision": float(
                sklearn_metrics.average_precision_score(labels, probabilities)
            ),
        }
    predicted, wanted = outputs[:, 0].numpy(), targets.numpy()
    return {
        "loss": float(sklearn_metrics.mean_squared_error(wanted, predicted)),
        "mae": float(sklearn_metrics.mean_absolute_error(wanted, predicted)),
        "r2": float(sklearn_metrics.r2_score(wanted, predicted)),
        "pearson": float(torch.corrcoef(torch.stack([outputs[:, 0], targets.double()]))[0, 1]),
    }


def scores_of_shards(kind: str, worker_weights: list[int], rank: int = 0) -> dict[str, float]:
    """Those of all ranks, each with its shard of every batch of ten."""
    task, outputs, targets = made_up(kind)
    scores = Scores({name: make() for name, make in METRICS[kind].items()})
    task.eval()
    found: dict[str, float] = {}
    for _ in range(2):  # the second pass counts from zero
        scores.start(CPU)
        for positions in torch.arange(NUM_SAMPLES).split(10):
            lo, hi = interval(len(positions), worker_weights, rank)
            update(scores, task, outputs, targets, positions[lo:hi])
        found = scores.compute("val", NUM_SAMPLES)
    return {name.removeprefix("val/"): value for name, value in found.items()}


@pytest.mark.parametrize("kind", METRICS)
def test_metrics_as_scikit_learn(kind: str) -> None:
    found = scores_of_shards(kind, [1])
    for name, value in expected(kind).items():
        assert found[name] == pytest.approx(value, rel=1e-6), name


@pytest.mark.filterwarnings("ignore:The ``compute`` method")  # of a rank without samples
@pytest.mark.parametrize("worker_weights", [[3, 1], [2, 0, 1]])
@pytest.mark.parametrize("kind", METRICS)
def test_metrics_any_ranks(kind: str, worker_weights: list[int]) -> None:
    """Also where a rank has nothing at all."""
    alone = scores_of_shards(kind, [1])
    with VirtualShards(len(worker_weights), [1], 1) as ranks:
        results = ranks.run(lambda rank: scores_of_shards(kind, worker_weights, rank))
    for found in results:
        assert found == pytest.approx(alone, rel=1e-12 if kind == "numbers" else 1e-6, abs=1e-12)


@pytest.mark.parametrize("num_seen", [3, 5])
def test_lost_sample_refused(num_seen: int) -> None:
    scores = Scores({})
    scores.start(CPU)
    labels = torch.zeros(num_seen, dtype=torch.long)
    update(scores, classification(), torch.zeros(num_seen, 4), labels, torch.arange(num_seen))
    with pytest.raises(
        RuntimeError, match=f"test split has 4 samples, but {num_seen} were evaluated"
    ):
        scores.compute("test", 4)


class AveragesBatches(Metric):
    """The mean of the means of batches: another number for other shards."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.total: Tensor
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx=how)

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        self.total += predictions.mean()

    def compute(self) -> Tensor:
        return self.total


def test_average_over_ranks_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"task\.metrics\.odd: AveragesBatches averages its state 'total' over the w",
    ):
        Scores({"odd": AveragesBatches("mean")})
    Scores({"even": AveragesBatches("sum")})


@pytest.mark.parametrize(
    ("metric", "error"),
    [
        (
            MulticlassAccuracy(4, average="none"),
            r"task\.metrics\.mine \(MulticlassAccuracy\) does not return a single number",
        ),
        (PearsonCorrCoef(), r"task\.metrics\.mine \(PearsonCorrCoef\) cannot be updated"),
    ],
    ids=["many numbers", "cannot be updated"],
)
def test_unusable_metrics_refused(metric: Metric, error: str) -> None:
    scores = Scores({"mine": metric})
    scores.start(CPU)

    def measure() -> None:
        update(
            scores, classification(), torch.zeros(3, 4), torch.tensor([0, 1, 2]), torch.arange(3)
        )
        scores.compute("val", 3)

    with pytest.raises(MetricError, match=error):
        measure()


@pytest.mark.parametrize("bad", [0.0, math.nan])
def test_losses_summed_in_float64(bad: float) -> None:
    source = torch.Generator().manual_seed(0)
    logits, labels = (
        torch.randn(3000, 4, generator=source),
        torch.randint(4, (3000,), generator=source),
    )
    logits[5] += bad
    scores = Scores({}).to(torch.bfloat16)
    scores.start(CPU)
    for positions in torch.arange(3000).split(1):
        update(scores, classification().eval(), logits, labels, positions)
    exact = F.cross_entropy(logits, labels, reduction="none").double().mean().item()
    assert scores.compute("val", 3000)["val/loss"] == pytest.approx(exact, rel=1e-12, nan_ok=True)
