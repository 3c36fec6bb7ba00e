"""Loss, gradient and logged means of any split against torch and scikit-learn on all samples."""

import functools
from itertools import groupby
from types import SimpleNamespace
from typing import Any, cast

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers.logger import DummyLogger
from sklearn.metrics import accuracy_score
from torch import Tensor, nn
from torch.nn import functional as F

from lockstep.data.loader import ShardDataset, ShardLoader
from lockstep.distributed import collectives
from lockstep.models.classifier import Classifier, ImageFormat
from tests.support import modules
from tests.support.plans import Plan

IMAGE_FORMAT = ImageFormat(("ape", "bee", "cat", "dog"), (2, 3, 3), (0.25, 0.5), (0.125, 0.75))
SMOOTHING = 0.1
NUM_TRAIN, NUM_VAL = 50, 23
# nine micro-batches, so that every epoch has other samples: five steps, the last one half full
TRAINING = Plan(NUM_TRAIN, micro_batch_size=4, accumulate_grad_batches=2, num_batches=9)

# Lightning 2.6 wants worker processes for every loader, and uses what torch 2.15 has renamed,
# 2026-11-21
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:.*LeafSpec.* is deprecated"
)


def classifier(*, smoothing: float = SMOOTHING, autocast: torch.dtype | None = None) -> Classifier:
    """A small network with a norm and a bias, that a learning rate of 0 keeps as it is."""
    torch.manual_seed(0)
    return modules.classifier(
        nn.Sequential(nn.Flatten(), nn.Linear(18, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 4)),
        modules.classification(smoothing),
        image_format=IMAGE_FORMAT,
        optimizer=functools.partial(torch.optim.SGD, lr=0.0, weight_decay=0.01),
        total_steps=10,
        accumulate_grad_batches=2,
        autocast=autocast,
        log_every_n_steps=3,
    ).double()


def images(num_samples: int) -> ShardDataset:
    source = torch.Generator().manual_seed(num_samples)
    pixels = torch.randint(0, 256, (num_samples, 2, 3, 3), dtype=torch.uint8, generator=source)
    return ShardDataset(pixels, torch.randint(4, (num_samples,), generator=source))


def loader(
    num_samples: int,
    rank: int = 0,
    worker_weights: list[int] | None = None,
    *,
    accumulate_grad_batches: int = 1,
) -> ShardLoader:
    plan = Plan(num_samples, 4, accumulate_grad_batches, shuffle_seed=None)
    return ShardLoader(images(num_samples), plan.of(rank, worker_weights))


def logits_of(module: Classifier, pixels: Tensor) -> Tensor:
    """Normalized and computed by hand."""
    mean, std = (
        torch.tensor(values, dtype=torch.float64).view(2, 1, 1) for values in IMAGE_FORMAT[2:4]
    )
    return module.net((pixels.double() / 255 - mean) / std)


# -- the loss --------------------------------------------------------------------------------------


@pytest.mark.parametrize("worker_weights", [[1], [1, 1], [3, 1], [1, 0], [1, 1, 1], [2, 0, 1]])
@pytest.mark.parametrize("num_micro_batches", [1, 3])
@pytest.mark.parametrize("smoothing", [0.0, SMOOTHING])
def test_loss_gradient_any_shards(
    worker_weights: list[int], num_micro_batches: int, smoothing: float
) -> None:
    """The last group is incomplete; its last micro-batch leaves ranks without samples."""
    module, world_size = classifier(smoothing=smoothing), len(worker_weights)
    a_rank = cast(collectives.VirtualRank, SimpleNamespace(world_size=world_size))
    per_rank = [
        list(loader(26, rank, worker_weights, accumulate_grad_batches=num_micro_batches))
        for rank in range(world_size)
    ]
    micro_steps = list(zip(*per_rank, strict=True))
    for _, group in groupby(
        micro_steps, lambda shards: shards[0].shard.micro_step // num_micro_batches
    ):
        module.zero_grad()
        shards = [shard for micro_step in group for shard in micro_step]
        for shard in shards:
            with collectives.acting_as(a_rank):
                loss = module.scaled_loss(shard)
            (loss / world_size).backward()  # DDP takes the mean
        found = [parameter.grad for parameter in module.parameters()]

        module.zero_grad()
        logits = logits_of(module, torch.cat([shard.inputs for shard in shards]))
        labels = torch.cat([shard.targets for shard in shards])
        nn.CrossEntropyLoss(label_smoothing=smoothing)(logits, labels).backward()
        for gradient, parameter in zip(found, module.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=1e-12)


# -- a fit -----------------------------------------------------------------------------------------


Rows = list[tuple[int | None, dict[str, float]]]


class Written(DummyLogger):
    """Keeps the logged rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Rows = []

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))


@pytest.fixture(scope="module")
def fit() -> tuple[Classifier, Rows]:
    """Two epochs of five optimizer steps that change no weight, and the logged rows."""
    module, logger = classifier(), Written()
    trainer = modules.bare_trainer(
        max_epochs=2, precision="64-true", logger=logger, log_every_n_steps=1
    )
    trainer.fit(module, ShardLoader(images(NUM_TRAIN), TRAINING.of()), loader(NUM_VAL))
    return module, logger.rows


def order_of_epoch(epoch: int) -> list[int]:
    return [index for batch in TRAINING.of(epoch=epoch) for index in batch.indices.tolist()]


def train_means(module: Classifier, indices: list[int]) -> dict[str, float]:
    """Mean smoothed loss and accuracy of training samples."""
    whole = images(NUM_TRAIN)
    with torch.no_grad():
        logits = logits_of(module, whole.pixels[torch.tensor(indices)])
    labels = whole.targets[indices]
    loss = F.cross_entropy(logits, labels, label_smoothing=SMOOTHING).item()
    return {"loss": loss, "accuracy": accuracy_score(labels.numpy(), logits.argmax(1).numpy())}


def test_logged_means(fit: tuple[Classifier, Rows]) -> None:
    module, rows = fit
    found = [(step, row) for step, row in rows if "train_step/loss" in row]
    assert [step for step, _ in found] == [3, 6, 9]
    # 8 samples a step: steps 1 to 3 of the first epoch; the first step of the second, which
    # restarts; its next three
    first, second = order_of_epoch(0), order_of_epoch(1)
    for (_, row), indices in zip(found, [first[:24], second[:8], second[8:32]], strict=True):
        expected = {
            f"train_step/{name}": value for name, value in train_means(module, indices).items()
        }
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-12)


def test_epoch_means(fit: tuple[Classifier, Rows]) -> None:
    module, rows = fit
    found = [(step, row) for step, row in rows if "train/loss" in row]
    assert [step for step, _ in found] == [5, 10]
    for epoch, (_, row) in enumerate(found):
        means = train_means(module, order_of_epoch(epoch))
        assert row == pytest.approx(
            {f"train/{name}": value for name, value in means.items()}, rel=1e-12
        )


def test_counts_resume_other_world_size() -> None:
    """Rank 0 loads the sums of all ranks; another rank that loaded them would count them twice."""
    half = classifier()
    half.trainer = cast(L.Trainer, SimpleNamespace(world_size=1, global_rank=0))
    batches = list(loader(NUM_TRAIN))
    for batch in batches[:6]:
        half.scaled_loss(batch)
    checkpoint: dict[str, Any] = {}
    half.on_save_checkpoint(checkpoint)

    total = torch.zeros(4, dtype=torch.float64)
    for rank in range(3):
        module = classifier()
        module.trainer = cast(L.Trainer, SimpleNamespace(world_size=3, global_rank=rank))
        module.on_load_checkpoint(checkpoint)
        for batch in list(loader(NUM_TRAIN, rank, [1, 1, 1]))[6:]:
            module.scaled_loss(batch)
        total += module.counts.local_sums
    expected = train_means(half, list(range(NUM_TRAIN)))
    loss_sum, weight_sum, num_samples, hits = total.tolist()
    assert loss_sum / weight_sum == pytest.approx(expected["loss"], rel=1e-12)
    assert hits / num_samples == pytest.approx(expected["accuracy"], rel=1e-12)
    assert weight_sum == num_samples == NUM_TRAIN
