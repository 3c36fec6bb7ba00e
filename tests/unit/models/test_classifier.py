"""Loss, gradient and metrics of any split against torch and scikit-learn on the whole."""

import functools
import math
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers.logger import Logger
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LRScheduler

from lockstep.data.loader import ShardDataset, ShardLoader
from lockstep.data.sampler import GlobalBatches
from lockstep.distributed import collectives
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.models.schedules import Schedule, constant
from lockstep.tasks.scores import Scores
from tests.support import modules
from tests.support.plans import Plan

IMAGE_FORMAT = ImageFormat(("ape", "bee", "cat", "dog"), (2, 3, 3), (0.25, 0.5), (0.125, 0.75))
SMOOTHING = 0.1
NUM_TRAIN, NUM_VAL = 50, 23
SPLITS = [[1], [1, 1], [3, 1], [1, 0], [1, 1, 1], [2, 0, 1]]

# Lightning 2.6 wants worker processes for every loader, and uses what torch 2.15 has renamed, 2026-11-21
pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec.* is deprecated")


def classifier(
    *,
    smoothing: float = SMOOTHING,
    scheduler: Callable[..., LRScheduler] = constant,
    autocast: torch.dtype | None = None,
) -> Classifier:
    """A small network with a norm and a bias, that a learning rate of 0 keeps as it is."""
    torch.manual_seed(0)
    return modules.classifier(
        nn.Sequential(nn.Flatten(), nn.Linear(18, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 4)),
        modules.classification(smoothing),
        image_format=IMAGE_FORMAT,
        optimizer=functools.partial(torch.optim.SGD, lr=0.0, weight_decay=0.01),
        scheduler=Schedule(scheduler),
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
    num_samples: int, rank: int = 0, loads: list[int] | None = None, *, accumulate_grad_batches: int = 1
) -> ShardLoader:
    plan = Plan(num_samples, 4, accumulate_grad_batches, shuffle_seed=None)
    return ShardLoader(images(num_samples), plan.of(rank, loads))


def training_batches() -> GlobalBatches:
    """Nine micro-batches of 4, so that every epoch sees other samples; five optimizer steps, the last is half full."""
    return GlobalBatches(
        NUM_TRAIN, global_batch_size=8, accumulate_grad_batches=2, shuffle_seed=3, rank=0, loads=[1], num_batches=9
    )


def trainer_of(world_size: int, rank: int = 0) -> L.Trainer:
    """The parts of a trainer that a module reads outside a fit."""
    facts = {"world_size": world_size, "global_rank": rank}
    return cast(L.Trainer, SimpleNamespace(**facts))


def logits_of(module: Classifier, pixels: Tensor) -> Tensor:
    """Normalised and computed by hand."""
    mean, std = (torch.tensor(values, dtype=torch.float64).view(2, 1, 1) for values in IMAGE_FORMAT[2:4])
    return module.net((pixels.double() / 255 - mean) / std)


def expected_scores(module: Classifier, num_samples: int) -> tuple[float, float]:
    """Mean loss and accuracy by scikit-learn."""
    whole = images(num_samples)
    with torch.no_grad():
        probabilities = logits_of(module, whole.pixels[torch.arange(num_samples)]).softmax(1).numpy()
    labels = whole.targets.numpy()
    return log_loss(labels, probabilities, labels=range(4)), accuracy_score(labels, probabilities.argmax(1))


# -- the loss ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loads", SPLITS)
@pytest.mark.parametrize("num_micro_batches", [1, 3])
@pytest.mark.parametrize("smoothing", [0.0, SMOOTHING])
def test_losses_of_shards_have_the_gradient_of_the_mean_over_the_global_batch(
    loads: list[int], num_micro_batches: int, smoothing: float
) -> None:
    """Also of the last group, which is incomplete, and whose last micro-batch leaves ranks without samples."""
    module, world_size = classifier(smoothing=smoothing), len(loads)
    a_rank = cast(collectives.VirtualRank, SimpleNamespace(world_size=world_size))
    per_rank = [list(loader(26, rank, loads, accumulate_grad_batches=num_micro_batches)) for rank in range(world_size)]
    micro_steps = list(zip(*per_rank, strict=True))
    num_groups = 0
    for _, group in groupby(micro_steps, lambda shards: shards[0].shard.micro_step // num_micro_batches):
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
        num_groups += 1
    assert num_groups == math.ceil(26 / 4 / num_micro_batches)


def test_bfloat16_is_for_the_network_alone_and_logits_are_float32() -> None:
    module = classifier(autocast=torch.bfloat16).float()
    seen: list[torch.dtype] = []
    module.net[1].register_forward_hook(lambda layer, inputs, output: seen.append(output.dtype))  # pyright: ignore[reportIndexIssue, reportCallIssue, reportArgumentType]
    assert module(images(3).pixels).dtype == torch.float32
    assert seen == [torch.bfloat16]
    assert all(parameter.dtype == torch.float32 for parameter in module.parameters())


# -- scores ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loads", [*SPLITS, [0, 0, 1], [1, 1, 1, 1, 1, 1, 1]])
@pytest.mark.parametrize("num_samples", [1, 5, NUM_VAL])
def test_scores_of_shards_are_those_of_scikit_learn(loads: list[int], num_samples: int) -> None:
    module = classifier()
    module.eval().on_validation_epoch_start()
    for rank in range(len(loads)):
        for batch in loader(num_samples, rank, loads):
            module.validation_step(batch, 0)
    loss, accuracy = expected_scores(module, num_samples)
    scores = cast(Scores, module.scores["val"]).compute("val", num_samples)
    assert scores["val/loss"] == pytest.approx(loss, rel=1e-12)
    assert scores["val/accuracy"] == pytest.approx(accuracy, rel=1e-6)  # torchmetrics divides in float32


# -- a fit -------------------------------------------------------------------------------------------------------------


class Written(Logger):
    """Keeps the logged rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    @property
    def name(self) -> str:
        return "written"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))


def trainer(logger: Logger | bool = False, *, max_epochs: int = 2) -> L.Trainer:
    return modules.bare_trainer(max_epochs=max_epochs, precision="64-true", logger=logger, log_every_n_steps=1)


class Fit(SimpleNamespace):
    """Two epochs of five optimizer steps that change no weight."""

    module: Classifier
    trainer: L.Trainer
    rows: list[tuple[int | None, dict[str, float]]]
    checkpoint: dict[str, Any]
    totals: list[int]


@pytest.fixture(scope="module")
def fit(tmp_path_factory: pytest.TempPathFactory) -> Fit:
    totals: list[int] = []

    def scheduler(optimizer: torch.optim.Optimizer, total_steps: int) -> LRScheduler:
        totals.append(total_steps)
        return constant(optimizer, total_steps)

    module, logger = classifier(scheduler=scheduler), Written()
    its_trainer = trainer(logger)
    its_trainer.fit(module, ShardLoader(images(NUM_TRAIN), training_batches()), loader(NUM_VAL))
    path: Path = tmp_path_factory.mktemp("fit") / "last.ckpt"
    its_trainer.save_checkpoint(path)
    checkpoint = torch.load(path, weights_only=True)
    return Fit(module=module, trainer=its_trainer, rows=logger.rows, checkpoint=checkpoint, totals=totals)


def order_of_epoch(epoch: int) -> list[int]:
    batches = training_batches()
    batches.set_epoch(epoch)
    return [index for batch in batches for index in batch.indices.tolist()]


def train_means(module: Classifier, indices: list[int]) -> dict[str, float]:
    """Mean smoothed loss and accuracy of training samples."""
    whole = images(NUM_TRAIN)
    with torch.no_grad():
        logits = logits_of(module, whole.pixels[torch.tensor(indices)])
    labels = whole.targets[indices]
    loss = F.cross_entropy(logits, labels, label_smoothing=SMOOTHING).item()
    return {"loss": loss, "accuracy": accuracy_score(labels.numpy(), logits.argmax(1).numpy())}


def test_logged_means_are_those_of_all_samples_since_the_last_logging_step(fit: Fit) -> None:
    found = [(step, row) for step, row in fit.rows if "train_step/loss" in row]
    assert [step for step, _ in found] == [3, 6, 9]
    # 8 samples a step: steps 1 to 3 of the first epoch; the first step of the second, which restarts; its next three
    first, second = order_of_epoch(0), order_of_epoch(1)
    for (_, row), indices in zip(found, [first[:24], second[:8], second[8:32]], strict=True):
        expected = {f"train_step/{name}": value for name, value in train_means(fit.module, indices).items()}
        assert row.keys() == {*expected, "learning_rate", "gradient_norm"}
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-12)
        assert row["learning_rate"] == 0


def test_the_means_of_an_epoch_are_those_of_its_samples_and_restart(fit: Fit) -> None:
    found = [(step, row) for step, row in fit.rows if "train/loss" in row]
    assert [step for step, _ in found] == [5, 10]
    for epoch, (_, row) in enumerate(found):
        means = train_means(fit.module, order_of_epoch(epoch))
        assert row == pytest.approx({f"train/{name}": value for name, value in means.items()}, rel=1e-12)


def test_validation_has_the_plain_loss_once_an_epoch(fit: Fit) -> None:
    loss, accuracy = expected_scores(fit.module, NUM_VAL)
    found = [(step, row) for step, row in fit.rows if "val/loss" in row]
    assert [step for step, _ in found] == [5, 10]
    for _, row in found:
        assert row["val/loss"] == pytest.approx(loss, rel=1e-12)
        assert row["val/accuracy"] == pytest.approx(accuracy, rel=1e-6)


def test_callbacks_can_watch_every_metric_of_an_epoch(fit: Fit) -> None:
    names = {"train/loss", "train/accuracy", "val/loss", "val/accuracy"}
    assert fit.module.metrics.keys() == names
    watched = {name: value.item() for name, value in fit.trainer.callback_metrics.items()}
    assert watched == pytest.approx(fit.module.metrics, rel=1e-6)


def test_the_schedule_gets_its_length_and_moves_with_every_optimizer_step(fit: Fit) -> None:
    assert fit.totals == [10]
    assert fit.checkpoint["lr_schedulers"][0]["last_epoch"] == fit.trainer.global_step == 10


def test_a_checkpoint_holds_plain_types_and_what_prediction_needs(fit: Fit) -> None:
    assert ImageFormat(**fit.checkpoint["image_format"]) == IMAGE_FORMAT
    assert fit.checkpoint["state_dict"].keys() == fit.module.state_dict().keys()
    assert "hyper_parameters" not in fit.checkpoint


def test_counts_of_half_an_epoch_continue_with_another_number_of_ranks() -> None:
    """Rank 0 loads the sums of all ranks; another rank that loaded them would count them twice."""
    half = classifier()
    half.trainer = trainer_of(1)
    batches = list(loader(NUM_TRAIN))
    for batch in batches[:6]:
        half.scaled_loss(batch)
    checkpoint: dict[str, Any] = {}
    half.on_save_checkpoint(checkpoint)

    total = torch.zeros(4, dtype=torch.float64)
    for rank in range(3):
        module = classifier()
        module.trainer = trainer_of(3, rank)
        module.on_load_checkpoint(checkpoint)
        for batch in list(loader(NUM_TRAIN, rank, [1, 1, 1]))[6:]:
            module.scaled_loss(batch)
        total += module.counts.own
    expected = train_means(half, list(range(NUM_TRAIN)))
    loss_sum, weight_sum, num_samples, hits = total.tolist()
    assert loss_sum / weight_sum == pytest.approx(expected["loss"], rel=1e-12)
    assert hits / num_samples == pytest.approx(expected["accuracy"], rel=1e-12)
    assert weight_sum == num_samples == NUM_TRAIN


def test_weight_decay_reaches_weights_and_not_norms_or_biases(fit: Fit) -> None:
    decayed, others = fit.trainer.optimizers[0].param_groups
    _, first, norm, _, second = cast(nn.Sequential, fit.module.net)
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.01, 0.0)
    assert [id(p) for p in decayed["params"]] == [id(first.weight), id(second.weight)]
    assert {id(p) for p in others["params"]} == {id(p) for p in (first.bias, norm.weight, norm.bias, second.bias)}
