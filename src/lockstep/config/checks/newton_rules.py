"""Rules of optimizer=newton, which solves the head of a frozen network."""

from collections.abc import Iterator

from lockstep.config.errors import Error, literal
from lockstep.config.schema.configuration import Config


def errors(config: Config) -> Iterator[Error]:
    """Yield what does not work with an optimizer that solves the head for one L2 value in each epoch."""
    if config.model.arguments().get("head_only") is not True:
        yield Error("optimizer=newton", "solves only the head of a frozen network", "add model.head_only=true")
    trainer = config.trainer
    averages = [name for name, each in config.callbacks.items() if each and "Averag" in each.target]
    settings = (
        ("module", config.has_own_module, False),
        ("parameters", bool(config.parameters), False),
        ("scheduler._target_", config.scheduler.target, "lockstep.models.constant"),
        ("trainer.accumulate_grad_batches", trainer.accumulate_grad_batches, 1),
        ("trainer.gradient_clip_norm", trainer.gradient_clip_norm, None),
        ("trainer.graph", trainer.graph is True, False),
        ("trainer.loads", trainer.loads == "auto", False),
        ("trainer.virtual_shards", trainer.virtual_shards, None),
        ("augment.mixup", config.augment.mixup, 0.0),
        ("augment.cutmix", config.augment.cutmix, 0.0),
        *((f"callbacks.{name}", True, False) for name in averages),
    )
    for name, value, default in settings:
        if value != default:
            yield Error(
                name if isinstance(value, bool) else f"{name}={literal(value)}",
                "does not work with optimizer=newton",
                "remove it",
            )
