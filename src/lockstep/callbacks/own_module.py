"""Facts that other parts need from Lockstep's module or from a custom LightningModule."""

from typing import Any

import lightning as L

from lockstep.models.classifier import Classifier


def metrics_of(trainer: L.Trainer, module: L.LightningModule) -> dict[str, float]:
    """Return the newest global value of every metric, by name."""
    if isinstance(module, Classifier):
        return module.metrics
    callbacks: Any = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    # its companion comes first
    return next(each.metrics for each in callbacks if hasattr(each, "metrics"))


def micro_batches(module: L.LightningModule) -> int:
    """Return the number of micro-batches of an optimizer step; a custom module has one."""
    return module.recipe.accumulate_grad_batches if isinstance(module, Classifier) else 1


def steps_done(trainer: L.Trainer, module: L.LightningModule) -> int:
    """Return the number of steps so far; each batch is one, for any number of optimizers of a custom module."""
    return (
        trainer.global_step
        if isinstance(module, Classifier)
        else trainer.fit_loop.total_batch_idx + 1
    )


def skipped_steps(module: L.LightningModule) -> dict[str, int]:
    """Return the number of steps so far that updated nothing, as `skipped_steps`; nothing unless in float16."""
    scale = module.loss_scale if isinstance(module, Classifier) else None
    return {} if scale is None else {"skipped_steps": scale.num_skipped}


def hash_of(module: L.LightningModule) -> str:
    """Return the hash of the weights of the network, or of a whole custom module."""
    from lockstep.models.weights_hash import weights_hash  # once, at the end

    return weights_hash((module.net if isinstance(module, Classifier) else module).state_dict())
