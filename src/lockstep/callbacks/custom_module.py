"""Read facts from Lockstep's module or from a custom LightningModule."""

from typing import Any

from lightning import LightningModule, Trainer

from lockstep.models.classifier import Classifier
from lockstep.models.counts import Metrics


def metrics_of(trainer: Trainer, module: LightningModule) -> Metrics:
    """Return the newest global value of every metric, by name."""
    if isinstance(module, Classifier):
        return module.metrics
    callbacks: Any = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    # The companion of a custom module comes first.
    return next(callback.metrics for callback in callbacks if hasattr(callback, "metrics"))


def micro_batches(module: LightningModule) -> int:
    """Return the number of micro-batches of an optimizer step, which is 1 for a custom module."""
    return module.recipe.accumulate_grad_batches if isinstance(module, Classifier) else 1


def steps_done(trainer: Trainer, module: LightningModule) -> int:
    """Return the number of steps so far.

    For a custom module, each batch is one step, for any number of optimizers.
    """
    return (
        trainer.global_step
        if isinstance(module, Classifier)
        else trainer.fit_loop.total_batch_idx + 1
    )


def skipped_steps(module: LightningModule) -> dict[str, int]:
    """Return the number of steps so far that updated nothing, as `skipped_steps`.

    The result is empty unless the training uses float16.
    """
    scale = module.loss_scale if isinstance(module, Classifier) else None
    return {} if scale is None else {"skipped_steps": scale.num_skipped}


def hash_of(module: LightningModule) -> str:
    """Return the hash of the weights of the network, or of a complete custom module."""
    # This is imported only once, at the end.
    from lockstep.models.weights_hash import weights_hash

    return weights_hash((module.net if isinstance(module, Classifier) else module).state_dict())
