"""Rules for model.head_only and for optimizer=newton.

The first freezes all layers except the last one. The second solves the last layer.
"""

from collections.abc import Iterator

from lockstep.config.errors import Error, literal
from lockstep.config.schema.configuration import Config


def errors(config: Config) -> Iterator[Error]:
    trainer, arguments, schedule = config.trainer, config.model.arguments(), config.scheduler.target
    head_only, is_newton = arguments.get("head_only"), config.optimizer.is_newton
    drops = {f"model.{name}": arguments.get(name) for name in ("dropout", "drop_path")}
    images = {f"augment.{name}": value for name, value in config.augment.used.items()} | {
        "compile": config.compile
    }
    steps = {
        "module": config.has_custom_module,
        "parameters": ",".join(config.parameters or ()),
        "callbacks": ",".join(
            key
            for key, callback in config.callbacks.items()
            if callback and "Averag" in callback.target
        ),
        "trainer.accumulate_grad_batches": trainer.accumulate_grad_batches > 1
        and trainer.accumulate_grad_batches,
        "trainer.gradient_clip_norm": trainer.gradient_clip_norm,
        "trainer.graph": trainer.graph is True,
        "trainer.virtual_shards": trainer.virtual_shards,
    }
    epoch_hint = "remove it, or use model.head_only=each_epoch"
    newton_problem = "does not work with optimizer=newton"
    schedule_setting = {"scheduler._target_": schedule != "lockstep.models.constant" and schedule}
    optimizer_setting = {"optimizer": head_only is not True and "newton"}
    for is_used, settings, problem, hint in (
        (
            head_only,
            drops,
            "has no effect below the last layer with model.head_only",
            "remove one of them",
        ),
        (
            head_only is True,
            images,
            "needs images, and model.head_only=true serves features",
            epoch_hint,
        ),
        (
            is_newton,
            optimizer_setting,
            "solves the last layer of a frozen network",
            "set model.head_only=true",
        ),
        (is_newton, schedule_setting, newton_problem, "use scheduler=constant"),
        (is_newton, steps, newton_problem, "remove it"),
    ):
        for name, value in settings.items():
            if is_used and value:
                yield Error("conflict", f"{name}={literal(value)}", problem, hint)
