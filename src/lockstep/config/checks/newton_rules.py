"""Rules of optimizer=newton, which solves the last layer of a frozen network."""

from collections.abc import Iterator

from lockstep.config.errors import Error
from lockstep.config.schema.configuration import Config


def errors(config: Config) -> Iterator[Error]:
    """Yield what a solver of the last layer, with a step for each epoch, has no use for."""
    trainer, schedule = config.trainer, config.scheduler.target
    if config.model.arguments().get("head_only") is not True:
        yield Error("optimizer=newton", "solves the last layer of a frozen network", "set model.head_only=true")
    if schedule != "lockstep.models.constant":
        yield Error(f"scheduler._target_={schedule}", "does not work with optimizer=newton", "use scheduler=constant")
    settings = {
        "module": config.has_own_module,
        "parameters": bool(config.parameters),
        f"trainer.accumulate_grad_batches={trainer.accumulate_grad_batches}": trainer.accumulate_grad_batches > 1,
        f"trainer.gradient_clip_norm={trainer.gradient_clip_norm}": trainer.gradient_clip_norm is not None,
        "trainer.graph=true": trainer.graph is True,
        "trainer.loads=auto": trainer.loads == "auto",
        f"trainer.virtual_shards={trainer.virtual_shards}": trainer.virtual_shards is not None,
    }
    settings |= {f"callbacks.{name}": bool(each and "Averag" in each.target) for name, each in config.callbacks.items()}
    for key, is_used in settings.items():
        if is_used:
            yield Error(key, "does not work with optimizer=newton", "remove it")
