"""Train an image classifier with loss and metrics of the global batch, however it is split."""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, dtype, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics.metric import Metric
from typing_extensions import override

from lockstep.distributed.batch import Batch
from lockstep.distributed.batch_norm import refuse_inexact_norms
from lockstep.distributed.collectives import sum_over_ranks, world_size
from lockstep.distributed.rng import ExactDropout, replace_dropout
from lockstep.distributed.virtual_shards import VirtualShards
from lockstep.models.counts import EpochCounts, Metrics
from lockstep.models.layout import CompiledNetwork, Layout
from lockstep.models.loss_scale import LossScale
from lockstep.models.parameter_groups import ParameterGroups, ParameterRule
from lockstep.models.schedules import Schedule, replay
from lockstep.models.step import LossGuard, OptimizerStep
from lockstep.models.virtual import VirtualParts
from lockstep.tasks.scores import Scores
from lockstep.tasks.task import Task, checked_losses

if TYPE_CHECKING:
    from lockstep.models.graphs import GraphedModule

T = TypeVar("T")
Checkpoint = dict[str, Any]  # with plain values and tensors


class ImageFormat(NamedTuple):
    """The format of the images, saved in every checkpoint for prediction.

    If `is_float`, the source returned floats, which reach the network unchanged. Older checkpoints
    do not have this field.
    """

    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    is_float: bool = False


@dataclass(frozen=True)
class Recipe:
    """The settings of an optimization with `total_steps` optimizer steps.

    Each step has `accumulate_grad_batches` micro-batches. `optimizer` takes the parameter groups
    that `rules` define. The gradient is clipped to `gradient_clip_norm`, if that is not None.
    `seed` determines the dropout masks. Means are logged every `log_every_n_steps` steps.
    """

    optimizer: functools.partial[Optimizer]
    scheduler: Schedule
    rules: Sequence[ParameterRule]
    total_steps: int
    accumulate_grad_batches: int
    gradient_clip_norm: float | None
    seed: int
    log_every_n_steps: int


@dataclass(frozen=True)
class Execution:
    """The way in which the network is computed.

    `autocast` is the dtype of its computation, or None for the dtype of its weights. In float16,
    the loss is scaled. `compiler` calls the network, and `grapher` replays its training passes. If
    these are None, calls are eager. `shards` are the virtual shards, each of which computes its
    part of a batch.
    """

    layout: Layout
    autocast: dtype | None = None
    compiler: type[CompiledNetwork] | None = None
    grapher: "type[GraphedModule] | None" = None
    shards: VirtualShards | None = None


class Classifier(LightningModule):
    """Trains any network that maps inputs (B, ...) to the outputs that the losses of its task take.

    `metrics` are the metrics of an evaluation by name, and each split has copies of them. The
    network must accept an empty batch, because the shard of a rank can be empty.

    The step uses Lightning's manual optimization. The automatic one has no global count of an
    accumulated step, and costs another 0.3 ms (one CPU thread, 2026-11-21, benchmarks/step.py).
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        net: nn.Module,
        task: Task,
        *,
        metrics: Mapping[str, Metric],
        image_format: ImageFormat,
        recipe: Recipe,
        execution: Execution,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.image_format = image_format
        self.recipe = recipe
        self.autocast: dtype | None = execution.autocast
        self.loss_scale: LossScale | None = LossScale() if self.autocast == torch.float16 else None
        refuse_inexact_norms(net)
        self.dropouts: list[ExactDropout] = replace_dropout(net, recipe.seed)
        self._groups = ParameterGroups(net, task, recipe.rules)
        self.layout = execution.layout
        self.net: nn.Module = net.to(memory_format=self.layout.memory_format)  # pyright: ignore[reportCallIssue]
        self.task = task
        # A trained network can have a calibration, which maps its outputs to those of predictions.
        self.calibration: nn.Module = nn.Identity()
        channels = (1, len(image_format.mean), 1, 1)
        self.register_buffer("mean", 255 * torch.tensor(image_format.mean).view(channels))
        self.register_buffer("std", 255 * torch.tensor(image_format.std).view(channels))
        self.metric_names: tuple[str, ...] = (*metrics, "loss")
        self.scores: nn.ModuleDict = nn.ModuleDict(
            {split: Scores(metrics) for split in ("val", "test")}
        )
        self._compiled = execution.compiler and execution.compiler(net, self.dropouts, self.layout)
        self.grapher = execution.grapher
        self._graphed: GraphedModule | None = None
        self.counts: EpochCounts = EpochCounts(task.scored)
        # This is the sum over this rank's samples of the global batch, if they have weights.
        self._weight_sum: Tensor | None = None
        self.training_log = TrainingLog(self)
        self.virtual: VirtualParts[Classifier] | None = None
        if execution.shards is not None:
            self.virtual = VirtualParts(self, execution.shards, self._copy_for_shard)
        # These are the counts of all virtual shards from a checkpoint.
        self._loaded_counts: dict[str, Any] | None = None
        self._step: OptimizerStep | None = None
        self._guard: LossGuard | None = None

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs (B, ...) in float32 or wider.

        The inputs are uint8 pixels (B, C, H, W), or floats (B, ...).
        """
        values = inputs.to(self.mean.dtype)
        if not inputs.is_floating_point():
            values = values.sub_(self.mean).div_(self.std)
        if values.dim() == 4:
            values = values.contiguous(memory_format=self.layout.memory_format)
        # Only the network runs in autocast, because the task must not change. The cache of autocast
        # is shared by all threads, so that a weight would be cast once or twice by chance.
        cast = self.autocast and torch.autocast(
            inputs.device.type, self.autocast, cache_enabled=self.virtual is None
        )
        with cast or nullcontext():
            outputs = self.net(values) if self._compiled is None else self._compiled(values)
        return outputs.float() if outputs.dtype == self.autocast else outputs

    def eager_mode(self) -> AbstractContextManager[None]:
        """Disable compilation inside the block, and forget the batch sizes used in it."""
        return nullcontext() if self._compiled is None else self._compiled.eager_mode()

    def _each(self, work: Callable[["Classifier"], T]) -> list[T]:
        """Return the results of `work` with this module.

        With virtual shards, `work` is called with the module of each of them, in its thread.
        """
        return [work(self)] if self.virtual is None else self.virtual.each(work)

    def _copy_for_shard(self) -> "Classifier":
        """Return a copy with counts, gradients, buffers and metrics of its own.

        Weights and the state of the fit are shared.
        """
        shared_objects = (self.virtual, self.trainer, self._step, self._guard)
        memo: dict[int, Any] = {
            id(shared_object): shared_object for shared_object in shared_objects
        }
        for parameter in self.parameters():
            memo[id(parameter)] = nn.Parameter(
                parameter.detach(), requires_grad=parameter.requires_grad
            )
        module = copy.deepcopy(self, memo)
        module.counts.local_sums.zero_()
        return module

    @override
    def on_fit_start(self) -> None:
        if self.virtual is None:
            return
        self.virtual.start()
        if self._loaded_counts is not None:
            shards = self.virtual.shards
            for module, number in zip(self.virtual.modules, shards.local_shards, strict=False):
                module.counts.load_state_dict(
                    self._loaded_counts, rank=number, world_size=shards.count
                )

    @override
    def on_train_start(self) -> None:
        for module in [self] if self.virtual is None else self.virtual.modules:
            module.counts.to(self.device)
        scale, clip_norm = self.loss_scale, self.recipe.gradient_clip_norm
        if scale is not None:
            scale.to(self.device)
        make_step = OptimizerStep if self.virtual is None else self.virtual.optimizer_step
        self._step = make_step(self, self._groups, clip_norm=clip_norm, loss_scale=scale)
        if self.grapher is not None:
            self._graphed = self.grapher(
                self, self.dropouts, accumulates=self.recipe.accumulate_grad_batches > 1
            )
        self._guard = LossGuard(
            self.trainer.optimizers[0], self.device, rank=self.global_rank, loss_scale=scale
        )

    @override
    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Run forward and backward, and the optimizer step after the last micro-batch.

        The last micro-batch is that of a global batch.
        """
        assert self._step
        assert self._guard
        loss = self.scaled_loss(batch)
        step = self.global_step + 1
        self._guard.check(loss, batch, step)
        num_micro_batches = self.recipe.accumulate_grad_batches
        is_first = batch_idx % num_micro_batches == 0
        is_last = (batch_idx + 1) % num_micro_batches == 0 or self.trainer.is_last_batch
        self._step.backward(loss, is_first=is_first, is_last=is_last)
        if is_last:
            self._step.finish_gradient(self.gradient_factor(batch.shard.group_size))
            self._guard.protect(step)
            self._step.step(is_measured=step % self.recipe.log_every_n_steps == 0)

    def scaled_loss(self, batch: Batch) -> Tensor:
        """Return the loss of this rank's shard, and add it to the counts of the epoch."""
        if self.virtual is None:
            return self._shard_loss(batch)
        return self.virtual.loss(Classifier._shard_loss, batch)

    def _shard_loss(self, batch: Batch) -> Tensor:
        """Return the loss of one shard, and add it to the counts of the epoch.

        Its gradient, averaged over the ranks by DDP and summed over micro-batches, is that of the
        global mean. If samples have weights, it must still be divided by their mean, which is known
        after the last micro-batch.
        """
        self._groups.start_epoch(batch.shard.epoch)
        for dropout in self.dropouts:
            dropout.shard = batch.shard
        outputs = (
            self(batch.inputs)
            if self._graphed is None
            else self._graphed(batch.inputs, batch.shard)
        )
        values, weights = checked_losses(self.task, outputs, batch)
        loss = values.sum()
        with torch.no_grad():
            self.counts.add(
                loss, weights, self.task.scores(outputs, batch), num_samples=len(values)
            )
        if weights is not None:
            before = 0.0 if self._weight_sum is None else self._weight_sum
            self._weight_sum = before + weights.detach().sum(dtype=torch.float64)
        return loss * (world_size() / batch.shard.group_size)

    def gradient_factor(self, num_samples: int) -> Tensor | None:
        """Return 1 / the mean weight of a global batch, or None without weights.

        The factor is 0 if all weights are 0, so that nothing is learned.
        """
        if self._weight_sum is None:
            return None
        total = self._each(Classifier._global_weight)[0]
        return torch.where(total > 0, num_samples / total, 0.0)

    def _global_weight(self) -> Tensor:
        """Return the sum of the weights of a global batch over all ranks."""
        weight_sum, self._weight_sum = self._weight_sum, None
        assert weight_sum is not None
        return sum_over_ranks(weight_sum)

    def configure_callbacks(self) -> list[Callback]:
        """End a batch before any callback can write a checkpoint.

        The hook of the module itself would run after the callbacks.
        """
        return [self.training_log]

    def drop_graphs(self) -> None:
        """Free the memory of CUDA graphs after a fit, and end their use of NCCL.

        NCCL waits for them when it ends.
        """
        self._graphed = None
        if self.virtual is not None:
            self.virtual.drop()

    @property
    def metrics(self) -> dict[str, float]:
        """Return the newest global value of each metric, by `<split>/<name>`."""
        return self.training_log.metrics

    @property
    def gradient_norm(self) -> Tensor | None:
        """Return the gradient norm of the global mean loss in the last logging step.

        It is the norm before clipping, and is equal on all ranks.
        """
        return self._step and self._step.gradient_norm

    def epoch_sums(self, *, is_end: bool) -> tuple[Tensor, Tensor]:
        return self._each(lambda module: module.counts.global_sums(is_end=is_end))[0]

    def defer(self, step: int, values: Tensor, use: Callable[[list[float]], None]) -> None:
        """Call `use` with the values of a step, once they are on the host.

        It is called only after the loss of the step is known to be finite.
        """
        assert self._guard
        self._guard.defer(step, values, use)

    def wait(self) -> None:
        """Check and log the steps whose values are not on the host yet. Every rank must call it."""
        if self._guard is not None:
            self._guard.wait()

    @override
    def on_train_epoch_end(self) -> None:
        """Log the means of the epoch, which are global already, for callbacks that monitor them."""
        self.log_dict(
            {name: value for name, value in self.metrics.items() if name.startswith("train/")},
            logger=False,
        )

    @override
    def on_validation_epoch_start(self) -> None:
        split = self._split
        self._each(lambda module: module._scores(split).start(self.device))

    @override
    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """Count this rank's shard, and return its outputs for callbacks.

        Returns None for an empty shard.
        """
        split = self._split
        if self.virtual is None:
            return self._evaluate_shard(split, batch)
        outputs = self.virtual.each_part(
            lambda module, shard_batch: module._evaluate_shard(split, shard_batch), batch
        )
        with_samples = [rows for rows in outputs if rows is not None]
        return torch.cat(with_samples) if with_samples else None

    @override
    def on_validation_epoch_end(self) -> None:
        """Publish loss and metrics of the complete split, as <split>/<name>."""
        trainer, split = self.trainer, self._split
        loader: Any = trainer.test_dataloaders if trainer.testing else trainer.val_dataloaders
        num_samples = loader.batch_sampler.num_epoch_samples
        scores = self._each(lambda module: module._scores(split).compute(split, num_samples))[0]
        self.metrics.update(scores)
        self.log_dict(scores, logger=False)
        self.training_log.send(scores)
        if self._step is not None and trainer.state.fn == TrainerFn.FITTING:
            metrics = {**trainer.callback_metrics, **self.metrics}
            self._step.step_plateau(self.recipe.scheduler.monitor, metrics)

    # A test does the same with scores of its own.
    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    @override
    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer, scheduler = self._optimizer_and_schedule()
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": self.recipe.scheduler.interval},
        }

    def _optimizer_and_schedule(self) -> tuple[Optimizer, LRScheduler]:
        make = self.recipe.optimizer
        optimizer = make(self._groups.optimizer_groups(make.keywords.get("weight_decay", 0.0)))
        # trainer.estimated_stepping_batches is not used, because it builds the loader before a
        # resume has restored its position.
        return optimizer, self.recipe.scheduler.build(optimizer, self.recipe.total_steps)

    @override
    def on_save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Add the image format, the counts of an unfinished epoch and the loss scale.

        Every rank must call it.
        """
        self.wait()
        checkpoint["image_format"] = self.image_format._asdict()
        checkpoint["train_counts"] = self._each(lambda module: module.counts.state_dict())[0]
        checkpoint["total_steps"] = self.recipe.total_steps
        if self.loss_scale is not None:
            checkpoint["loss_scale"] = self.loss_scale.state_dict()

    @override
    def on_load_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Load the counts of an unfinished epoch, and the schedule if it has the same length.

        The layout of the weights may differ from that of the saved run, and momentum gets the
        layout of the weights. Fused updates go through memory in order, and would otherwise use the
        momentum of another weight.
        """
        self.counts.load_state_dict(
            checkpoint["train_counts"], self.global_rank, self.trainer.world_size
        )
        if self.virtual is not None:
            self._loaded_counts = checkpoint["train_counts"]
        if self.loss_scale is not None:
            self.loss_scale.load_state_dict(checkpoint["loss_scale"])
        for optimizer_state in checkpoint.get("optimizer_states", ()):
            for slot in optimizer_state["state"].values():
                for name, value in slot.items():
                    if isinstance(value, Tensor) and value.dim() == 4:
                        slot[name] = value.contiguous(memory_format=self.layout.memory_format)
        if (
            checkpoint.get("total_steps") != self.recipe.total_steps
            and self.trainer.state.fn == TrainerFn.FITTING
        ):
            replay(checkpoint, *self._optimizer_and_schedule())

    @property
    def _split(self) -> str:
        return "test" if self.trainer.testing else "val"

    def _evaluate_shard(self, split: str, batch: Batch) -> Tensor | None:
        if not len(batch.indices):
            return None
        outputs = self(batch.inputs)
        self._scores(split).update(self.task, outputs, batch)
        return outputs

    def _scores(self, split: str) -> Scores:
        scores = self.scores[split]
        assert isinstance(scores, Scores)
        return scores


class TrainingLog(Callback):
    """Sends the global means of a training to the loggers.

    `metrics` has the newest value of each metric.
    """

    def __init__(self, module: Classifier) -> None:
        self._module = module
        self.metrics: Metrics = {}

    @override
    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Log the means over all samples since the last logging step.

        After the last batch, the means of the epoch are logged. On a GPU, the values of a step
        reach the host, and so the loggers, some steps later.
        """
        module, recipe, step = self._module, self._module.recipe, self._module.global_step
        is_step_end = (batch_idx + 1) % recipe.accumulate_grad_batches == 0
        is_logging_step = is_step_end and step % recipe.log_every_n_steps == 0
        if not is_logging_step and not trainer.is_last_batch:
            return
        since, epoch = module.epoch_sums(is_end=trainer.is_last_batch)
        if is_logging_step:
            assert module.gradient_norm is not None
            values = torch.cat([since, module.gradient_norm.detach().to(since)[None]])
            rate = trainer.optimizers[0].param_groups[0]["lr"]
            module.defer(step, values, functools.partial(self._log_step, step, rate))
        if trainer.is_last_batch:
            module.wait()
            for name in [name for name in self.metrics if name.startswith("val/")]:
                # The value is that of an earlier epoch, and this one may have no validation.
                del self.metrics[name]
            means = module.counts.means("train", epoch.tolist())
            self.metrics |= means
            self.send(means)

    def _log_step(self, step: int, learning_rate: float, values: list[float]) -> None:
        """Log the means since the last logging step, and the gradient norm of this step."""
        *sums, gradient_norm = values
        step_values = self._module.counts.means("train_step", sums)
        step_values |= {"learning_rate": learning_rate, "gradient_norm": gradient_norm}
        if self._module.loss_scale is not None:
            step_values["loss_scale"] = self._module.loss_scale.value
        self.send(step_values, step)

    def send(self, values: Metrics, step: int | None = None) -> None:
        """Send values to all loggers, at this optimizer step or an earlier `step`."""
        for logger in self._module.trainer.loggers:
            logger.log_metrics(values, self._module.global_step if step is None else step)
