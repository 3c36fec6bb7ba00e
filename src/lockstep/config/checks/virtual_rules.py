"""Rules for trainer.virtual_shards."""

from lockstep.config.checks.workers import resolve_workers
from lockstep.config.errors import Error, Errors, literal
from lockstep.config.schema.configuration import BenchmarkConfig, Config
from lockstep.system.text import plural


def errors(config: Config) -> Errors:
    """Yield the errors of settings that do not work with virtual shards."""
    trainer, count = config.trainer, config.trainer.virtual_shards or 0
    key = f"trainer.virtual_shards={count}"
    size = config.global_batch_size // trainer.accumulate_grad_batches
    if size < count:
        yield Error(
            "range",
            key,
            f"leaves some empty in a micro-batch of {plural(size, 'sample')}",
            f"use at most {size}",
        )
    num_workers = 0 if isinstance(config, BenchmarkConfig) else resolve_workers(config).world_size
    if num_workers > count:
        yield Error(
            "range",
            key,
            f"is for at most {plural(count, 'worker')}, and there are {num_workers}",
            "use fewer workers",
        )
    settings = (
        ("compile", config.compile, False),
        ("trainer.graph", trainer.graph is True, False),
        ("module", config.has_custom_module, False),
    )
    for setting, value, default in settings:
        if value != default:
            yield Error(
                "conflict",
                f"{setting}={literal(value)}",
                f"does not work with {key}",
                "remove one of them",
            )
