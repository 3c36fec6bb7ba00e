"""Losses sample by sample, against torch's means over the whole batch."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from lockstep.distributed.batch import Batch, Mix
from lockstep.distributed.partition import Shard
from lockstep.tasks import Classification, Multilabel, Regression, SupervisedTask, Task
from lockstep.tasks.task import checked_losses
from tests.support.modules import classification

NUM_CLASSES = 5


def batch_of(targets: Tensor, mix: Mix | None = None) -> Batch:
    count = len(targets)
    return Batch(
        torch.empty(count, 0),
        targets,
        torch.arange(count),
        Shard(0, 0, 0, count, 0, count, count),
        mix,
    )


def example(size: int) -> tuple[Tensor, Tensor, Mix]:
    source = torch.Generator().manual_seed(size)
    logits = torch.randn(size, NUM_CLASSES, dtype=torch.float64, generator=source).requires_grad_()
    labels, partners = torch.randint(NUM_CLASSES, (2, size), generator=source)
    return logits, labels, Mix(partners, torch.rand(size, generator=source))


def mean_loss(task: Task, outputs: Tensor, batch: Batch) -> Tensor:
    values, weights = checked_losses(task, outputs, batch)
    return values.sum() / (len(values) if weights is None else weights.sum())


def soft_targets(labels: Tensor, mix: Mix) -> Tensor:
    weights = mix.weights.double().unsqueeze(1)
    own, partner = F.one_hot(labels, NUM_CLASSES), F.one_hot(mix.targets, NUM_CLASSES)
    return weights * own + (1 - weights) * partner


# -- one class of several --------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_mixed_labels(smoothing: float) -> None:
    logits, labels, mix = example(40)
    loss = mean_loss(classification(smoothing), logits, batch_of(labels, mix))
    oracle = nn.CrossEntropyLoss(label_smoothing=smoothing)(logits, soft_targets(labels, mix))
    assert loss.item() == pytest.approx(oracle.item(), rel=1e-7)  # weights are float32
    found, expected = (torch.autograd.grad(value, logits)[0] for value in (loss, oracle))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


def weighted_mean(
    logits: Tensor, labels: Tensor, smoothing: float, class_weights: list[float] | None
) -> Tensor:
    """A sample, or a pixel, has the weight of its class.

    The weight also applies to the smoothed part of its loss.
    """
    values = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    weights = torch.tensor(class_weights or [1.0] * NUM_CLASSES, dtype=torch.float64)[labels]
    return (weights * values).sum() / weights.sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("class_weights", [None, [0.5, 2.0, 0.0, 1.0, 3.0]])
def test_class_weights(smoothing: float, class_weights: list[float] | None) -> None:
    logits, labels, mix = example(40)
    task = classification(smoothing, class_weights)
    oracle = weighted_mean(logits, labels, smoothing, class_weights)
    assert mean_loss(task, logits, batch_of(labels)).item() == pytest.approx(
        oracle.item(), rel=1e-12
    )
    own = batch_of(labels, mix._replace(weights=torch.ones(40)))
    assert mean_loss(task, logits, own).item() == pytest.approx(oracle.item(), rel=1e-12)
    weight = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float64)
    plain = F.cross_entropy(logits, labels, weight)  # torch's own weights, without a smoothed part
    assert mean_loss(task.eval(), logits, batch_of(labels)).item() == pytest.approx(
        plain.item(), rel=1e-12
    )


@pytest.mark.parametrize("class_weights", [None, [0.5, 2.0, 0.0, 1.0, 3.0]])
def test_pixels(class_weights: list[float] | None) -> None:
    source = torch.Generator().manual_seed(1)
    logits = torch.randn(6, NUM_CLASSES, 4, 3, dtype=torch.float64, generator=source)
    masks = torch.randint(NUM_CLASSES, (6, 4, 3), generator=source)
    task = classification(0.1, class_weights)
    oracle = weighted_mean(logits, masks, 0.1, class_weights)
    assert mean_loss(task, logits, batch_of(masks)).item() == pytest.approx(
        oracle.item(), rel=1e-12
    )
    (hits,) = task.scores(logits, batch_of(masks))
    assert hits.tolist() == pytest.approx(
        (logits.argmax(1) == masks).double().mean((1, 2)).tolist()
    )


def test_mixed_hits() -> None:
    logits, labels, mix = example(40)
    task = classification()
    (hits,) = task.scores(logits, batch_of(labels, mix))
    weights = soft_targets(labels, mix)[torch.arange(40), logits.argmax(1)]
    torch.testing.assert_close(hits, weights)
    (plain,) = task.scores(logits, batch_of(labels))
    assert torch.equal(plain, (logits.argmax(1) == labels).double())


# -- custom losses ---------------------------------------------------------------------------------


def focal(outputs: Tensor, targets: Tensor, gamma: float = 2.0) -> Tensor:
    likelihood = -F.cross_entropy(outputs, targets, reduction="none")
    return -((1 - likelihood.exp()) ** gamma) * likelihood


def test_custom_loss() -> None:
    logits, labels, mix = example(40)
    task = Classification(loss=focal, label_smoothing=0.0, class_weights=None)
    assert mean_loss(task, logits, batch_of(labels)).item() == pytest.approx(
        focal(logits, labels).mean().item()
    )
    mixed = mix.weights * focal(logits, labels) + (1 - mix.weights) * focal(logits, mix.targets)
    assert mean_loss(task, logits, batch_of(labels, mix)).item() == pytest.approx(
        mixed.mean().item()
    )


@pytest.mark.parametrize(
    ("task", "outputs", "targets", "error"),
    [
        (
            SupervisedTask(loss=nn.CrossEntropyLoss()),
            (40, 5),
            torch.zeros(40, dtype=torch.long),
            "for 40 samples",
        ),
        (
            Regression(loss=nn.MSELoss(reduction="none")),
            (4, 3),
            torch.zeros(4, 2),
            r"gives \(3,\) numbers",
        ),
    ],
    ids=["one number for the batch", "other shape"],
)
def test_wrong_shapes_refused(
    task: Task, outputs: tuple[int, ...], targets: Tensor, error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        checked_losses(task, torch.zeros(outputs), batch_of(targets))


def test_several_labels() -> None:
    logits, _, _ = example(40)
    targets = (torch.rand(40, NUM_CLASSES) < 0.3).to(torch.uint8)
    loss = mean_loss(
        Multilabel(loss=nn.BCEWithLogitsLoss(reduction="none")), logits, batch_of(targets)
    )
    assert loss.item() == pytest.approx(
        F.binary_cross_entropy_with_logits(logits, targets.double()).item(), rel=1e-12
    )


@pytest.mark.parametrize("shape", [(40,), (40, 1)])
def test_number_shapes(shape: tuple[int, ...]) -> None:
    """Torch would spread (40,) over (40, 1) to (40, 40), with no more than a warning."""
    outputs, targets = torch.randn(40, 1, dtype=torch.float64), torch.randn(shape)
    loss = mean_loss(Regression(loss=nn.MSELoss(reduction="none")), outputs, batch_of(targets))
    assert loss.item() == pytest.approx(
        F.mse_loss(outputs[:, 0], targets.double().view(-1)).item(), rel=1e-12
    )


# -- standardized numbers --------------------------------------------------------------------------


class Weighted(Regression):
    """Compares outputs with unchanged targets."""

    @override
    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        return (outputs[:, 0] - batch.targets).square()


def regression(kind: type[Regression] = Regression) -> Regression:
    return kind(loss=nn.MSELoss(reduction="none"))


def numbers(*shape: int) -> Tensor:
    return 30 + 70 * torch.rand(40, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("shape", "dims"), [((), 0), ((3,), 0), ((4, 5), (0, 1, 2)), ((2, 4, 5), (0, 1, 2, 3))]
)
def test_regression_standardized_targets(
    shape: tuple[int, ...], dims: int | tuple[int, ...]
) -> None:
    task, targets = regression(), numbers(*shape)
    task.standardize(targets)
    outputs = torch.randn(40, *(shape or (1,)), dtype=torch.float64)
    mean, std = targets.double().mean(dims), targets.double().std(dims, correction=0)
    expected = F.mse_loss(outputs, ((targets.double() - mean) / std).view_as(outputs))
    assert mean_loss(task, outputs, batch_of(targets)).item() == pytest.approx(
        expected.item(), rel=1e-5
    )
    torch.testing.assert_close(
        task.predictions(outputs), outputs * std + mean, rtol=1e-5, atol=1e-5
    )
    predicted, true = task.metric_inputs(outputs, batch_of(targets))
    torch.testing.assert_close(predicted, task.predictions(outputs).view_as(predicted))
    torch.testing.assert_close(true, targets.double())


def test_regression_constant_and_huge_targets() -> None:
    task = regression()
    task.standardize(
        torch.stack([torch.full((4,), 7.0), torch.tensor([1e30, 3e30, torch.inf, 1e30])], 1)
    )
    assert task.mean.tolist() == pytest.approx([7, 5e30 / 3])
    assert task.std.tolist() == pytest.approx([1, 2**1.5 / 3 * 1e30])


def test_regression_keeps_large_offsets() -> None:
    """float32 has no number between 1,700,000,000 and 1,700,000,128."""
    task, targets = regression(), 1_700_000_000 + torch.arange(100)
    task.standardize(targets)
    standardized = task.targets(torch.zeros(100, 1), targets)
    predicted, _ = task.metric_inputs(standardized, batch_of(targets))
    torch.testing.assert_close(predicted, targets.double(), rtol=0, atol=1e-3)


def test_regression_custom_losses_not_standardized() -> None:
    task = regression(Weighted)
    task.standardize(numbers())
    assert (task.mean.item(), task.std.item()) == (0, 1)


@pytest.mark.parametrize("is_standardized", [True, False])
def test_regression_loads_any_checkpoint(is_standardized: bool) -> None:
    saved, task = regression(), regression()
    saved.standardize(numbers(3))
    task.standardize(numbers(2))
    task.load_state_dict(saved.state_dict() if is_standardized else {})
    expected = (
        (saved.mean, saved.std)
        if is_standardized
        else (torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]))
    )
    torch.testing.assert_close((task.mean, task.std), expected, rtol=0, atol=0)
