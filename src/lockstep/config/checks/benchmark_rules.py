"""Rules between the keys of a benchmark."""

from lockstep.config.errors import Error, Errors
from lockstep.config.schema.configuration import Config


def errors(config: Config) -> Errors:
    if (num_nodes := config.trainer.num_nodes) > 1 and config.cluster.name != "slurm":
        yield Error(
            "conflict",
            f"trainer.num_nodes={num_nodes}",
            "is for the job of a benchmark",
            "add cluster=slurm, or remove it",
        )
    if config.init_from is not None:
        yield Error(
            "conflict",
            f"init_from={config.init_from}",
            "is not for a benchmark, which starts new runs",
            "remove it",
        )
    if config.has_custom_module:
        yield Error(
            "conflict",
            f"module._target_={config.module.target}",
            "replaces what a benchmark measures",
            "remove it",
        )
