"""Loss and hits of mixed labels against soft targets."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lockstep.distributed.batch import Mix
from lockstep.models.loss import num_hits, summed_loss

NUM_CLASSES = 5


def example(size: int) -> tuple[Tensor, Tensor, Mix]:
    source = torch.Generator().manual_seed(size)
    logits = torch.randn(size, NUM_CLASSES, dtype=torch.float64, generator=source).requires_grad_()
    labels, partners = torch.randint(NUM_CLASSES, (2, size), generator=source)
    return logits, labels, Mix(partners, torch.rand(size, generator=source))


def soft_targets(labels: Tensor, mix: Mix) -> Tensor:
    weights = mix.weights.double().unsqueeze(1)
    own, partner = F.one_hot(labels, NUM_CLASSES), F.one_hot(mix.labels, NUM_CLASSES)
    return weights * own + (1 - weights) * partner


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_mixed_labels_is_that_of_soft_targets(smoothing: float) -> None:
    logits, labels, mix = example(40)
    loss = summed_loss(logits, labels, mix, smoothing)
    oracle = nn.CrossEntropyLoss(reduction="sum", label_smoothing=smoothing)(logits, soft_targets(labels, mix))
    assert loss.item() == pytest.approx(oracle.item(), rel=1e-7)  # weights are float32
    found, expected = (torch.autograd.grad(value, logits)[0] for value in (loss, oracle))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weights_of_one_are_plain_labels(smoothing: float) -> None:
    logits, labels, mix = example(40)
    plain = summed_loss(logits, labels, None, smoothing)
    oracle = nn.CrossEntropyLoss(reduction="sum", label_smoothing=smoothing)(logits, labels)
    assert plain.item() == pytest.approx(oracle.item(), rel=1e-12)
    own = mix._replace(weights=torch.ones(40))
    assert summed_loss(logits, labels, own, smoothing).item() == pytest.approx(plain.item(), rel=1e-12)
    assert num_hits(logits, labels, own) == num_hits(logits, labels, None)


def test_hits_count_by_the_weight_of_the_label_that_was_found() -> None:
    logits, labels, mix = example(40)
    found = num_hits(logits, labels, mix)
    weights = soft_targets(labels, mix)[torch.arange(40), logits.argmax(1)]
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(weights.sum().item(), rel=1e-12)
    assert num_hits(logits, labels, None) == (logits.argmax(1) == labels).sum()


@pytest.mark.parametrize("is_mixed", [False, True])
def test_an_empty_share_has_a_loss_of_zero_with_a_gradient(is_mixed: bool) -> None:
    weight = torch.ones(3, NUM_CLASSES, requires_grad=True)
    _, labels, mix = example(0)
    loss = summed_loss(torch.ones(0, 3) @ weight, labels, mix if is_mixed else None, 0.1)
    loss.backward()
    assert loss == 0
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.zeros_like(weight))
    assert num_hits(torch.ones(0, NUM_CLASSES), labels, mix if is_mixed else None) == 0
