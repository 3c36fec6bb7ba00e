"""The LightningModule of an image classifier: loss and metrics of the global batch, from any split of it."""

import functools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import lightning as L
import torch
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
from lockstep.models.counts import EpochCounts
from lockstep.models.parameter_groups import ParameterGroups, ParameterRule
from lockstep.models.passes import Compiler, Graphed, Grapher, Layout
from lockstep.models.schedules import Schedule, replay
from lockstep.models.step import LossGuard, OptimizerStep
from lockstep.tasks.scores import Scores
from lockstep.tasks.task import Task, checked_losses

if TYPE_CHECKING:
    from lockstep.models.loss_scale import LossScale


class ImageFormat(NamedTuple):
    """Format of the images, saved in every checkpoint for prediction.

    `is_float`: the source returned floats, which reach the network unchanged. Older checkpoints do not have it.
    """

    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    is_float: bool = False


class Classifier(L.LightningModule):
    """Trains any network, from inputs (B, ...) to the outputs that the losses of its task take.

    `measured` are the metrics of an evaluation by name; each pass has copies. `metrics` has the newest global value of
    each. `optimizer` takes parameter groups, made by `rules`. The network must accept an empty batch: a rank's shard
    can be empty. `autocast` is the number format of the network; None: that of its weights. In float16 the loss is
    scaled. `compiler` makes what calls the network, of it, its dropouts and its layout. `grapher` makes what replays
    training passes, of this module and its dropouts. None: eager calls.

    The step uses Lightning's manual optimization: the automatic one has no global count of an accumulated step, and
    costs another 0.3 ms (one CPU thread, 2026-11-21, benchmarks/step.py).
    """

    mean: Tensor
    std: Tensor
    step_class: type[OptimizerStep] = OptimizerStep
    caches_casts = True  # of weights to the number format of autocast, in a pass

    def __init__(
        self,
        net: nn.Module,
        task: Task,
        *,
        measured: Mapping[str, Metric],
        image_format: ImageFormat,
        optimizer: functools.partial[Optimizer],
        scheduler: Schedule,
        rules: Sequence[ParameterRule],
        total_steps: int,
        accumulate_grad_batches: int,
        gradient_clip_norm: float | None,
        autocast: dtype | None,
        layout: Layout,
        compiler: Compiler | None,
        grapher: Grapher | None,
        seed: int,
        log_every_n_steps: int,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.image_format = image_format
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._total_steps = total_steps
        self.accumulate_grad_batches = accumulate_grad_batches
        self._gradient_clip_norm = gradient_clip_norm
        self.autocast: dtype | None = autocast
        self.loss_scale: LossScale | None = None
        if autocast == torch.float16:
            from lockstep.models import loss_scale

            self.loss_scale = loss_scale.LossScale()
        self._log_every_n_steps = log_every_n_steps
        refuse_inexact_norms(net)
        self.dropouts: list[ExactDropout] = replace_dropout(net, seed)
        self._groups = ParameterGroups(net, task, rules)
        self.layout = layout
        self.net: nn.Module = net.to(memory_format=layout.memory_format)  # pyright: ignore[reportCallIssue]
        self.task = task
        self.calibration: nn.Module = nn.Identity()  # from outputs to those of predictions: of a trained network
        channels = (1, len(image_format.mean), 1, 1)
        self.register_buffer("mean", 255 * torch.tensor(image_format.mean).view(channels))
        self.register_buffer("std", 255 * torch.tensor(image_format.std).view(channels))
        self.measured: tuple[str, ...] = (*measured, "loss")
        self.scores: nn.ModuleDict = nn.ModuleDict({split: Scores(measured) for split in ("val", "test")})
        self._compiled = compiler and compiler(net, self.dropouts, layout)
        self.grapher = grapher
        self._graphed: Graphed | None = None
        self.counts: EpochCounts = EpochCounts(task.scored)
        self._weight_sum: Tensor | None = None  # of this rank's samples of the global batch, if they have weights
        self.metrics: dict[str, float] = {}
        self._step: OptimizerStep | None = None
        self._guard: LossGuard | None = None

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs (B, ...) in float32 or wider, for uint8 pixels (B, C, H, W) or floats (B, ...)."""
        values = inputs.to(self.mean.dtype)
        if not inputs.is_floating_point():
            values = values.sub_(self.mean).div_(self.std)
        if values.dim() == 4:
            values = values.contiguous(memory_format=self.layout.memory_format)
        # only the network: autocast must not change the task
        cast = self.autocast and torch.autocast(inputs.device.type, self.autocast, cache_enabled=self.caches_casts)
        with cast or nullcontext():
            outputs = self.net(values) if self._compiled is None else self._compiled(values)
        return outputs.float() if outputs.dtype == self.autocast else outputs

    def eager_mode(self) -> AbstractContextManager[None]:
        """Compile nothing inside, and forget the batch sizes seen there."""
        return nullcontext() if self._compiled is None else self._compiled.eager_mode()

    @override
    def on_train_start(self) -> None:
        self.counts.to(self.device)
        if (scale := self.loss_scale) is not None:
            scale.to(self.device)
        self._step = self.step_class(self, self._groups, clip_norm=self._gradient_clip_norm, loss_scale=scale)
        if self.grapher is not None:
            self._graphed = self.grapher(self, self.dropouts, accumulates=self.accumulate_grad_batches > 1)
        self._guard = LossGuard(self.trainer.optimizers[0], self.device, rank=self.global_rank, loss_scale=scale)

    @override
    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Forward, backward and, after the last micro-batch of a global batch, the optimizer step."""
        assert self._step is not None
        assert self._guard is not None
        loss = self.scaled_loss(batch)
        step = self.global_step + 1
        self._guard.check(loss, batch, step)
        is_first = batch_idx % self.accumulate_grad_batches == 0
        is_last = (batch_idx + 1) % self.accumulate_grad_batches == 0 or self.trainer.is_last_batch
        self._step.backward(loss, is_first=is_first, is_last=is_last)
        if is_last:
            self._step.finish_gradient(self.gradient_factor(batch.shard.group_size))
            self._guard.protect(step)
            self._step.step(is_measured=step % self._log_every_n_steps == 0)

    def scaled_loss(self, batch: Batch) -> Tensor:
        """Return the loss of a shard, and add it to the counts of the epoch.

        Its gradient, averaged over the ranks by DDP and summed over micro-batches, is that of the global mean. Where
        samples have weights, it is still to be divided by their mean, which is known after the last micro-batch.
        """
        self._groups.start_epoch(batch.shard.epoch)
        for dropout in self.dropouts:
            dropout.shard = batch.shard
        outputs = self(batch.inputs) if self._graphed is None else self._graphed(batch.inputs, batch.shard)
        values, weights = checked_losses(self.task, outputs, batch)
        loss = values.sum()
        with torch.no_grad():
            self.counts.add(loss, weights, self.task.scores(outputs, batch), num_samples=len(values))
        if weights is not None:
            before = 0.0 if self._weight_sum is None else self._weight_sum
            self._weight_sum = before + weights.detach().sum(dtype=torch.float64)
        return loss * (world_size() / batch.shard.group_size)

    def gradient_factor(self, num_samples: int) -> Tensor | None:
        """Return 1 / the mean weight of a global batch; 0, which learns nothing, if all are 0; None without weights."""
        own, self._weight_sum = self._weight_sum, None
        total = None if own is None else sum_over_ranks(own)
        return None if total is None else torch.where(total > 0, num_samples / total, 0.0)

    def configure_callbacks(self) -> list[Callback]:
        """End a batch before any callback can write a checkpoint there; the module's own hook would run after them."""
        return [_BatchEnd()]

    def drop_graphs(self) -> None:
        """Free the memory of CUDA graphs after a fit, and end their use of NCCL, which waits for them at its end."""
        self._graphed = None

    @property
    def gradient_norm(self) -> Tensor | None:
        """Gradient norm of the global mean loss in the last logging step, before clipping; equal on all ranks."""
        return self._step.gradient_norm if self._step is not None else None

    def end_batch(self, batch_idx: int) -> None:
        """Log the means over all samples since the last logging step; after the last batch, those of the epoch.

        On a GPU the values of a step reach the host, and so the loggers, some steps later.
        """
        is_step_end = (batch_idx + 1) % self.accumulate_grad_batches == 0
        is_logging_step = is_step_end and self.global_step % self._log_every_n_steps == 0
        if not is_logging_step and not self.trainer.is_last_batch:
            return
        assert self._guard is not None
        since, epoch = self.epoch_sums(is_end=self.trainer.is_last_batch)
        if is_logging_step:
            assert self.gradient_norm is not None
            values = torch.cat([since, self.gradient_norm.detach().to(since)[None]])
            rate = self.trainer.optimizers[0].param_groups[0]["lr"]
            self._guard.defer(self.global_step, values, functools.partial(self._log_step, self.global_step, rate))
        if self.trainer.is_last_batch:
            self._guard.wait()
            for name in [name for name in self.metrics if name.startswith("val/")]:
                del self.metrics[name]  # of an earlier epoch; this one may have no validation
            means = {f"train/{name}": value for name, value in self.counts.means(epoch.tolist()).items()}
            self.metrics.update(means)
            self._send_to_loggers(means)

    def epoch_sums(self, *, is_end: bool) -> tuple[Tensor, Tensor]:
        return self.counts.global_sums(is_end=is_end)

    def _log_step(self, step: int, learning_rate: float, values: list[float]) -> None:
        """Log the sums since the last logging step, as means, and the norm of the gradient of this one."""
        *sums, gradient_norm = values
        means = {f"train_step/{name}": value for name, value in self.counts.means(sums).items()}
        others = {"learning_rate": learning_rate, "gradient_norm": gradient_norm}
        scale = {} if self.loss_scale is None else {"loss_scale": self.loss_scale.value}
        self._send_to_loggers(means | others | scale, step)

    def wait(self) -> None:
        """Check and log the steps whose values are not on the host yet. Every rank must call it."""
        if self._guard is not None:
            self._guard.wait()

    @override
    def on_train_epoch_end(self) -> None:
        """Log the means of the epoch, which are global already, for callbacks that monitor a metric."""
        self.log_dict({name: value for name, value in self.metrics.items() if name.startswith("train/")}, logger=False)

    @override
    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """Count this rank's shard; return its outputs for callbacks, None for an empty shard."""
        return self._evaluate("val", batch)

    @override
    def test_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """Do the same for the test."""
        return self._evaluate("test", batch)

    @override
    def on_validation_epoch_start(self) -> None:
        self._scores("val").start(self.device)

    @override
    def on_test_epoch_start(self) -> None:
        self._scores("test").start(self.device)

    @override
    def on_validation_epoch_end(self) -> None:
        self._publish_scores("val", self.trainer.val_dataloaders)
        if self._step is not None and self.trainer.state.fn == TrainerFn.FITTING:
            self._step.step_plateau(self._scheduler.monitor, {**self.trainer.callback_metrics, **self.metrics})

    @override
    def on_test_epoch_end(self) -> None:
        self._publish_scores("test", self.trainer.test_dataloaders)

    @override
    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer, scheduler = self._optimizer_and_schedule()
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": self._scheduler.interval}}

    def _optimizer_and_schedule(self) -> tuple[Optimizer, LRScheduler]:
        optimizer = self._optimizer(self._groups.optimizer_groups(self._optimizer.keywords.get("weight_decay", 0.0)))
        # not trainer.estimated_stepping_batches: it builds the loader before a resume has restored its position
        return optimizer, self._scheduler.build(optimizer, self._total_steps)

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the image format, the counts of an unfinished epoch and the loss scale. Every rank must call it."""
        self.wait()
        checkpoint["image_format"] = self.image_format._asdict()
        checkpoint["train_counts"] = self.counts.state_dict()
        checkpoint["total_steps"] = self._total_steps
        if self.loss_scale is not None:
            checkpoint["loss_scale"] = self.loss_scale.state_dict()

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load the counts of an unfinished epoch, and the schedule if it has the same length.

        Momentum gets the layout of the weights, which may differ from that of the saved run: fused updates go through
        memory in order, and would use the momentum of another weight.
        """
        self.counts.load_state_dict(checkpoint["train_counts"], self.global_rank, self.trainer.world_size)
        if self.loss_scale is not None:
            self.loss_scale.load_state_dict(checkpoint["loss_scale"])
        for slot in (slots for saved in checkpoint.get("optimizer_states", ()) for slots in saved["state"].values()):
            for name, value in slot.items():
                if isinstance(value, Tensor) and value.dim() == 4:
                    slot[name] = value.contiguous(memory_format=self.layout.memory_format)
        if checkpoint.get("total_steps") != self._total_steps and self.trainer.state.fn == TrainerFn.FITTING:
            replay(checkpoint, *self._optimizer_and_schedule())

    def _evaluate(self, split: str, batch: Batch) -> Tensor | None:
        if not len(batch.indices):
            return None
        outputs = self(batch.inputs)
        self._scores(split).update(self.task, outputs, batch)
        return outputs

    def _scores(self, split: str) -> Scores:
        scores = self.scores[split]
        assert isinstance(scores, Scores)
        return scores

    def _publish_scores(self, split: str, loader: Any) -> None:
        """Publish loss and metrics of the whole split, as <split>/<name>."""
        scores = self.global_scores(split, loader.batch_sampler.num_epoch_samples)
        self.metrics.update(scores)
        self.log_dict(scores, logger=False)
        self._send_to_loggers(scores)

    def global_scores(self, split: str, num_samples: int) -> dict[str, float]:
        return self._scores(split).compute(split, num_samples)

    def _send_to_loggers(self, values: dict[str, float], step: int | None = None) -> None:
        for logger in self.trainer.loggers:
            logger.log_metrics(values, self.global_step if step is None else step)


class _BatchEnd(Callback):
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Classifier)
        pl_module.end_batch(batch_idx)
