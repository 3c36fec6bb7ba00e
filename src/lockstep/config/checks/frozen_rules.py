"""Rules of model.head_only, which freezes all layers but the last, and of optimizer=newton, which solves that one."""

from collections.abc import Iterator

from lockstep.config.errors import Error, literal
from lockstep.config.schema.configuration import Config


def errors(config: Config) -> Iterator[Error]:
    trainer, arguments = config.trainer, config.model.arguments()
    if head_only := arguments.get("head_only"):
        for name in ("dropout", "drop_path"):
            if arguments.get(name) is not None:
                problem = "has no effect below the last layer with model.head_only"
                yield Error(f"model.{name}={literal(arguments[name])}", problem, "remove one of them")
    if head_only is True:
        used = {f"augment.{name}": value for name, value in config.augment.used.items()}
        used |= {"flip_test": config.flip_test, "compile": config.compile}
        for name, value in (used | {"trainer.loads": trainer.loads == "auto" and "auto"}).items():
            if value:
                hint = "remove it, or use model.head_only=each_epoch"
                yield Error(f"{name}={literal(value)}", "needs images, and model.head_only=true serves features", hint)
    if config.optimizer.is_newton:
        if head_only is not True:
            yield Error("optimizer=newton", "solves the last layer of a frozen network", "set model.head_only=true")
        if (schedule := config.scheduler.target) != "lockstep.models.constant":
            problem = "does not work with optimizer=newton"
            yield Error(f"scheduler._target_={schedule}", problem, "use scheduler=constant")
        averages = (f"callbacks.{name}" for name, each in config.callbacks.items() if each and "Averag" in each.target)
        used = {
            "module": config.has_own_module,
            "parameters": bool(config.parameters),
            f"trainer.accumulate_grad_batches={trainer.accumulate_grad_batches}": trainer.accumulate_grad_batches > 1,
            f"trainer.gradient_clip_norm={trainer.gradient_clip_norm}": trainer.gradient_clip_norm is not None,
            "trainer.graph=true": trainer.graph is True,
            f"trainer.virtual_shards={trainer.virtual_shards}": trainer.virtual_shards is not None,
            **dict.fromkeys(averages, True),
        }
        for key in (key for key, is_used in used.items() if is_used):
            yield Error(key, "does not work with optimizer=newton", "remove it")
