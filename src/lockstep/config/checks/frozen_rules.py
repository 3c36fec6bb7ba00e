"""Rules of model.head_only, which freezes a network below its last layer; true computes its features once."""

from collections.abc import Iterator

from lockstep.config.errors import Error, literal
from lockstep.config.schema.configuration import Config


def errors(config: Config) -> Iterator[Error]:
    arguments = config.model.arguments()
    if arguments["head_only"] is True:
        used = {f"augment.{name}": value for name, value in config.augment.used.items()}
        used |= {"flip_test": config.flip_test, "compile": config.compile}
        used |= {"trainer.loads": "auto" if config.trainer.loads == "auto" else None}
        for name, value in used.items():
            if value:
                hint = "remove it, or use model.head_only=each_epoch"
                yield Error(f"{name}={literal(value)}", "needs images, and model.head_only=true serves features", hint)
    for name in ("dropout", "drop_path"):
        if arguments["head_only"] and arguments.get(name) is not None:
            problem = "has no effect below the last layer with model.head_only"
            yield Error(f"model.{name}={literal(arguments[name])}", problem, "remove one of them")
