"""The solved head of a frozen network against scikit-learn, and on any number of ranks."""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional as F

from lockstep.data.loader import ShardDataset, ShardLoader
from lockstep.distributed.batch import Batch
from lockstep.distributed.virtual_shards import VirtualShards
from lockstep.models.classifier import ImageFormat
from lockstep.models.frozen import freeze_below, take_features
from lockstep.models.probe import Newton, Probe, fit_head
from lockstep.tasks import Multilabel, Regression, Task
from tests.support import modules
from tests.support.plans import Plan

NUM_TRAIN = 200
L2 = [10.0, 1e-4]


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    """Return pixels of digits as features, and their classes.

    Some features are constant, one of them not 0.
    """
    features, classes = load_digits(return_X_y=True)
    features[:, 0] = 0.1
    return torch.tensor(features), torch.tensor(classes)


def batch_of(targets: Tensor, rank: int = 0, worker_weights: tuple[int, ...] = (1,)) -> Batch:
    batches = Plan(NUM_TRAIN, micro_batch_size=10**6).of(rank, [*worker_weights])
    (batch,) = ShardLoader(ShardDataset(digits()[0][:NUM_TRAIN], targets), batches)
    return batch


def fitted(
    task: Task, targets: Tensor, num_outputs: int, l2: float, *shard: Any
) -> tuple[Tensor, Tensor]:
    """Weights and bias of a head of digits."""
    head = nn.Linear(64, num_outputs).double()
    newton = Newton(
        head.parameters(), first_l2=10.0, l2_factor=0.1, tolerance=1e-13, max_iterations=5000
    )
    norm, is_converged = fit_head(head, task, batch_of(targets, *shard), newton, l2)
    assert is_converged
    assert norm < 1e-6
    return head.weight.detach(), head.bias.detach()


def standardized() -> tuple[np.ndarray[Any, Any], StandardScaler]:
    scaler = StandardScaler()
    return scaler.fit_transform(digits()[0][:NUM_TRAIN].numpy()), scaler


def objective(loss: Tensor, weight: Tensor, l2: float) -> float:
    """The loss and the penalty of the weights of standardized features."""
    _, scaler = standardized()
    return (loss + l2 / 2 * (weight * torch.tensor(scaler.scale_)).square().sum()).item()


@pytest.mark.parametrize(("l2", "class_weights"), [(10.0, None), (1e-4, [3.0, *[1.0] * 8, 0.5])])
def test_head_classes(l2: float, class_weights: list[float] | None) -> None:
    classes = digits()[1]
    weight, bias = fitted(modules.classification(0.0, class_weights), classes[:NUM_TRAIN], 10, l2)
    features, scaler = standardized()
    counts = torch.tensor(class_weights or [1.0] * 10, dtype=torch.float64)
    total = counts[classes[:NUM_TRAIN]].sum().item()
    by_class = dict(enumerate(counts.tolist()))
    reference = LogisticRegression(
        C=1 / (total * l2), tol=1e-10, max_iter=100_000, class_weight=by_class
    )
    reference.fit(features, classes[:NUM_TRAIN].numpy())

    its_weight = torch.tensor(reference.coef_ / scaler.scale_)
    its_bias = torch.tensor(reference.intercept_) - its_weight @ torch.tensor(scaler.mean_)
    own, its = (
        objective(
            F.cross_entropy(digits()[0][:NUM_TRAIN] @ w.T + b, classes[:NUM_TRAIN], weight=counts),
            w,
            l2,
        )
        for w, b in ((weight, bias), (its_weight, its_bias))
    )
    assert own == pytest.approx(its, abs=1e-6)
    assert own <= its + 1e-12
    others = digits()[0][NUM_TRAIN:]
    expected = reference.predict(scaler.transform(others.numpy()))
    assert torch.equal((others @ weight.T + bias).argmax(1), torch.tensor(expected))


@pytest.mark.parametrize("l2", L2)
def test_head_labels(l2: float) -> None:
    classes = digits()[1][:NUM_TRAIN]
    labels = torch.stack([classes % 2, classes > 4, classes % 3 == 0], 1).long()
    task = Multilabel(loss=functools.partial(F.binary_cross_entropy_with_logits, reduction="none"))
    weight, bias = fitted(task, labels, 3, l2)
    features, scaler = standardized()
    for number in range(3):  # the loss of an image is the mean over its labels
        reference = LogisticRegression(
            C=1 / (3 * NUM_TRAIN * l2), tol=1e-12, solver="newton-cholesky"
        )
        reference.fit(features, labels[:, number].numpy())
        own = digits()[0] @ weight[number] + bias[number]
        expected = reference.decision_function(scaler.transform(digits()[0].numpy()))
        torch.testing.assert_close(own, torch.tensor(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("l2", L2)
def test_head_number(l2: float) -> None:
    targets = 1000 + digits()[1][:NUM_TRAIN].double()
    task = Regression(loss=functools.partial(F.mse_loss, reduction="none"))
    weight, bias = fitted(task, targets, 1, l2)
    features, scaler = standardized()
    reference = Ridge(alpha=NUM_TRAIN * l2 / 2, solver="cholesky").fit(features, targets.numpy())
    expected = reference.predict(scaler.transform(digits()[0].numpy()))
    torch.testing.assert_close(
        (digits()[0] @ weight.T + bias).squeeze(1), torch.tensor(expected), rtol=0, atol=1e-6
    )


def test_head_any_ranks() -> None:
    task, classes, worker_weights = (
        modules.classification(0.0, [3.0, *[1.0] * 8, 0.5]),
        digits()[1][:NUM_TRAIN],
        (2, 0, 1),
    )
    weight, bias = fitted(task, classes, 10, 0.1)
    with VirtualShards(len(worker_weights), [1], 1) as ranks:
        found = ranks.run(lambda rank: fitted(task, classes, 10, 0.1, rank, worker_weights))
    for its_weight, its_bias in found:
        torch.testing.assert_close(its_weight, weight, rtol=0, atol=1e-10)
        torch.testing.assert_close(its_bias, bias, rtol=0, atol=1e-9)
        assert torch.equal(its_weight, found[0][0])


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*no `val_dataloader`")
@pytest.mark.filterwarnings(
    "ignore:.*LeafSpec.* is deprecated", "ignore:Found . module.* in eval mode"
)
def test_not_converged_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    net = nn.Sequential(nn.Identity(), nn.Linear(64, 10))
    freeze_below(net, ("1",))
    take_features(net, ("1",))
    module = modules.classifier(
        net,
        kind=Probe,
        image_format=ImageFormat(tuple("0123456789"), (1, 8, 8), (0.5,), (0.25,)),
        optimizer=functools.partial(
            Newton, first_l2=0.1, l2_factor=0.1, tolerance=1e-13, max_iterations=3
        ),
        total_steps=2,
    ).double()
    features, classes = (part[:NUM_TRAIN] for part in digits())
    loader = ShardLoader(
        ShardDataset(features, classes), Plan(NUM_TRAIN, micro_batch_size=NUM_TRAIN).of()
    )
    modules.bare_trainer(max_epochs=2, precision="64-true").fit(module, loader)
    assert capsys.readouterr().err.count("The head has not converged") == 1


def test_head_without_bias_refused() -> None:
    with pytest.raises(ValueError, match="needs a linear last layer with a bias"):
        take_features(nn.Sequential(nn.Identity(), nn.Linear(64, 10, bias=False)), ("1",))
