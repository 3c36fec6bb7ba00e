"""The training of a classification network: the loss and the metrics of the global batch, from any split of it."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from typing_extensions import override

from lockstep.distributed.batch import Batch
from lockstep.distributed.batch_norm import refuse_untracked
from lockstep.distributed.collectives import sum_over_ranks
from lockstep.distributed.rng import replace_dropout
from lockstep.models.layout import Layout, compile_network
from lockstep.models.loss import num_hits, summed_loss
from lockstep.models.parameter_groups import parameter_groups
from lockstep.models.scores import Scores
from lockstep.models.step import LossGuard, OptimizerStep, cures_of_bad_losses
from lockstep.system import internals


class ImageFormat(NamedTuple):
    """What a prediction needs to know of the images: travels in every checkpoint."""

    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]


class Classifier(L.LightningModule):
    """Trains any network that maps float images (B, C, H, W) to logits (B, num_classes).

    `metrics` holds the newest global value of every metric, for callbacks that show them.
    `optimizer` takes parameter groups; `scheduler` takes (optimizer, total_steps) and is stepped every optimizer step.
    The network must accept an empty batch: a rank's share can be empty. `compile_mode` is one of torch.compile's; None:
    eager.

    The step is Lightning's manual optimization: its automatic one costs another 0.3 ms a step in hooks and closures
    (one CPU thread, 2026-11-21, benchmarks/step.py), and it knows no global count of an accumulated step.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        net: nn.Module,
        *,
        image_format: ImageFormat,
        optimizer: functools.partial[Optimizer],
        scheduler: Callable[..., LRScheduler],
        total_steps: int,
        accumulate_grad_batches: int,
        gradient_clip_norm: float | None,
        label_smoothing: float,
        uses_bfloat16: bool,
        layout: Layout,
        compile_mode: str | None,
        has_flip_test: bool,
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
        self._label_smoothing = label_smoothing
        self._uses_bfloat16 = uses_bfloat16
        self._log_every_n_steps = log_every_n_steps
        refuse_untracked(net)
        self._dropouts = replace_dropout(net, seed)
        self.layout = layout
        self.net = net.to(memory_format=layout.memory_format)  # pyright: ignore[reportCallIssue]
        channels = (1, len(image_format.mean), 1, 1)
        self.register_buffer("mean", 255 * torch.tensor(image_format.mean).view(channels))
        self.register_buffer("std", 255 * torch.tensor(image_format.std).view(channels))
        num_classes = len(image_format.class_names)
        splits = ("val", "test", "test_flip") if has_flip_test else ("val", "test")
        self.scores = nn.ModuleDict({split: Scores(num_classes) for split in splits})
        self._is_compiled = compile_mode is not None
        if compile_mode is not None:
            compile_network(self.net, self._dropouts, layout, compile_mode)
        self._compiled_sizes: dict[bool, int] = {}
        # loss sum, hits, samples of this epoch: this rank's counts, and the global counts when they were last logged
        # (no buffers: DDP would give every rank those of rank 0)
        self._counts = torch.zeros(3, dtype=torch.float64)
        self._logged_counts = torch.zeros(3, dtype=torch.float64)
        self.metrics: dict[str, float] = {}
        self._step: OptimizerStep | None = None
        self._guard: LossGuard | None = None

    @override
    def forward(self, pixels: Tensor) -> Tensor:
        """Logits (B, num_classes) in float32 or wider, of uint8 pixels (B, C, H, W)."""
        images = pixels.to(self.mean.dtype).sub_(self.mean).div_(self.std)
        images = images.contiguous(memory_format=self.layout.memory_format)
        # around the network alone: what autocast does not know, it should not see
        with torch.autocast(pixels.device.type, torch.bfloat16) if self._uses_bfloat16 else nullcontext():
            logits = self._logits(images) if self._is_compiled else self.net(images)
        return logits.float() if logits.dtype == torch.bfloat16 else logits

    def _logits(self, images: Tensor) -> Tensor:
        """Logits of the compiled network; of the eager one for empty and ragged batches, else each compiled anew."""
        size = len(images)
        if size and size == self._compiled_sizes.setdefault(self.training, size):
            return self.net(images)
        with torch.compiler.set_stance("force_eager"):
            return self.net(images)

    def norm_of_single_values(self) -> str | None:
        """The name of a batch norm for which an image by itself is one value per channel; None where there is none."""
        modes = {module: module.training for module in self.net.modules()}
        single: list[nn.Module] = []

        def look_at(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if inputs[0].numel() == inputs[0].shape[1]:
                single.append(layer)

        norms: dict[nn.Module, str] = {}
        norms |= {layer: name for name, layer in self.net.named_modules() if isinstance(layer, internals.BatchNorm)}
        hooks = [layer.register_forward_pre_hook(look_at) for layer in norms if modes[layer]]
        eager = torch.compiler.set_stance("force_eager") if self._is_compiled else nullcontext()
        self.net.eval()
        with torch.no_grad(), eager:
            self(torch.zeros(1, *self.image_format.image_shape, dtype=torch.uint8, device=self.device))
        self._compiled_sizes.clear()
        for module, is_training in modes.items():
            module.training = is_training
        for hook in hooks:
            hook.remove()
        return norms[single[0]] if single else None

    @override
    def on_train_start(self) -> None:
        self._counts = self._counts.to(self.device)
        self._logged_counts = self._logged_counts.to(self.device)
        self._step = OptimizerStep(self, clip_norm=self._gradient_clip_norm)
        cures = cures_of_bad_losses(self._gradient_clip_norm, uses_bfloat16=self._uses_bfloat16)
        self._guard = LossGuard(self.trainer.optimizers[0], self.device, rank=self.global_rank, cures=cures)

    @override
    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Forward, backward and, after the last micro-batch of a global batch, the step of the optimizer."""
        assert self._step is not None
        assert self._guard is not None
        loss = self.scaled_loss(batch)
        step = self.global_step + 1
        self._guard.look_at(loss, batch, step)
        is_first = batch_idx % self.accumulate_grad_batches == 0
        is_last = (batch_idx + 1) % self.accumulate_grad_batches == 0 or self.trainer.is_last_batch
        self._step.backward(loss, is_first=is_first, is_last=is_last)
        if is_last:
            self._guard.protect(step)
            self._step.step(is_measured=step % self._log_every_n_steps == 0)

    def scaled_loss(self, batch: Batch) -> Tensor:
        """The loss of a share; takes it into the counts of the epoch.

        Its gradient, averaged over the ranks (by DDP) and summed over micro-batches, is that of the global mean.
        """
        for dropout in self._dropouts:
            dropout.share = batch.share
        logits = self(batch.pixels)
        loss = summed_loss(logits, batch.labels, batch.mix, self._label_smoothing)
        with torch.no_grad():
            loss_sum, hits, num_samples = self._counts
            loss_sum += loss
            hits += num_hits(logits, batch.labels, batch.mix)
            num_samples += len(batch.labels)
        return loss * (self.trainer.world_size / batch.share.group_size)

    def configure_callbacks(self) -> list[Callback]:
        """The end of a batch, before any callback can write a checkpoint there: the module's own hook comes after."""
        return [_BatchEnd()]

    @property
    def gradient_norm(self) -> Tensor | None:
        """The gradient norm of the global mean loss in the last logging step, before clipping; equal on all ranks."""
        return self._step.gradient_norm if self._step is not None else None

    def end_batch(self, batch_idx: int) -> None:
        """Log the mean over all samples since the last logging step; after the last batch, that of the epoch."""
        is_step_end = (batch_idx + 1) % self.accumulate_grad_batches == 0
        is_logging_step = is_step_end and self.global_step % self._log_every_n_steps == 0
        if not is_logging_step and not self.trainer.is_last_batch:
            return
        assert self._guard is not None
        self._guard.wait()  # the values below wait for the device anyway
        counts = sum_over_ranks(self._counts)
        if is_logging_step:
            means = _means("train_step", counts - self._logged_counts)
            assert self.gradient_norm is not None
            others = {
                "learning_rate": self.trainer.optimizers[0].param_groups[0]["lr"],
                "gradient_norm": self.gradient_norm.item(),
            }
            self._send_to_loggers({name: value.item() for name, value in means.items()} | others)
            self._logged_counts.copy_(counts)
        if self.trainer.is_last_batch:
            for name in ("val/loss", "val/accuracy"):
                self.metrics.pop(name, None)  # of an earlier epoch; this one may go without validation
            self._send_to_loggers(self._remember(_means("train", counts)))
            self._counts.zero_()
            self._logged_counts.zero_()

    @override
    def on_train_epoch_end(self) -> None:
        """Show the means of the epoch, global already, to callbacks that watch a metric."""
        self.log_dict({name: value for name, value in self.metrics.items() if name.startswith("train/")}, logger=False)

    @override
    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """Count this rank's share. Its logits, for callbacks; None of an empty share."""
        return self._evaluate("val", batch)

    @override
    def test_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """Count this rank's share; where asked for, also with logits averaged over the image and its mirror image.

        Its logits, for callbacks; None of an empty share.
        """
        logits = self._evaluate("test", batch)
        if "test_flip" in self.scores and logits is not None:
            logits = logits.clone()  # a CUDA graph computes the next ones in their place
            mirrored = self(batch.pixels.flip(3))
            self._scores("test_flip").update((logits + mirrored) / 2, batch.labels)
        return logits

    @override
    def on_validation_epoch_start(self) -> None:
        self._scores("val").start()

    @override
    def on_test_epoch_start(self) -> None:
        for split in self._test_scores():
            self._scores(split).start()

    @override
    def on_validation_epoch_end(self) -> None:
        """Publish val/loss and val/accuracy of the whole split."""
        self._publish_scores("val", self.trainer.val_dataloaders)

    @override
    def on_test_epoch_end(self) -> None:
        """Publish test/loss and test/accuracy of the whole split, and test_flip/* where asked for."""
        for split in self._test_scores():
            self._publish_scores(split, self.trainer.test_dataloaders)

    @override
    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Weight decay acts on weights only, not on norms and biases."""
        weight_decay = self._optimizer.keywords.get("weight_decay", 0.0)
        optimizer = self._optimizer(parameter_groups(self.net, weight_decay))
        # not trainer.estimated_stepping_batches: it builds the loader before a resume has restored its position
        scheduler = self._scheduler(optimizer, total_steps=self._total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what prediction needs, and the counts of an epoch cut in the middle. Every rank must call it."""
        if self._guard is not None:
            self._guard.wait()
        checkpoint["image_format"] = self.image_format._asdict()
        checkpoint["train_counts"] = {
            "counts": sum_over_ranks(self._counts).tolist(),
            "logged_counts": self._logged_counts.tolist(),
        }

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Rank 0 takes over the counts of all ranks there were, so that another number of ranks can go on.

        Momentum gets the layout of the weights, which may be another one than that of the saved run: fused updates go
        through memory in order, and would take the momentum of another weight.
        """
        saved = checkpoint["train_counts"]
        counts = saved["counts"] if self.global_rank == 0 else [0.0] * 3
        self._counts = torch.tensor(counts, dtype=torch.float64)
        self._logged_counts = torch.tensor(saved["logged_counts"], dtype=torch.float64)
        slots = [slots for saved in checkpoint.get("optimizer_states", ()) for slots in saved["state"].values()]
        for slot in slots:
            for name, value in slot.items():
                if isinstance(value, Tensor) and value.dim() == 4:
                    slot[name] = value.contiguous(memory_format=self.layout.memory_format)

    def _test_scores(self) -> list[str]:
        return [split for split in self.scores if split != "val"]

    def _evaluate(self, split: str, batch: Batch) -> Tensor | None:
        if not len(batch.labels):
            return None
        logits = self(batch.pixels)
        self._scores(split).update(logits, batch.labels)
        return logits

    def _scores(self, split: str) -> Scores:
        scores = self.scores[split]
        assert isinstance(scores, Scores)
        return scores

    def _publish_scores(self, split: str, loader: Any) -> None:
        scores = self._scores(split).compute(split, loader.batch_sampler.num_epoch_samples)
        values = self._remember(scores)
        self.log_dict(values, logger=False)
        self._send_to_loggers(values)

    def _remember(self, metrics: dict[str, Tensor]) -> dict[str, float]:
        values = {name: value.item() for name, value in metrics.items()}
        self.metrics.update(values)
        return values

    def _send_to_loggers(self, values: dict[str, float]) -> None:
        for logger in self.trainer.loggers:
            logger.log_metrics(values, step=self.global_step)


internals.keep_signature(Classifier.training_step)


class _BatchEnd(Callback):
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Classifier)
        pl_module.end_batch(batch_idx)


def _means(prefix: str, counts: Tensor) -> dict[str, Tensor]:
    loss_sum, hits, count = counts
    return {f"{prefix}/loss": loss_sum / count, f"{prefix}/accuracy": hits / count}
