"""Rules for features that few configurations use, each in a function.

The features are benchmarks, copies of data, custom modules, virtual shards and frozen networks.
"""

from collections.abc import Mapping
from typing import Any

from lockstep.config.checks.workers import resolve_workers
from lockstep.config.errors import Error, Errors, literal
from lockstep.config.schema.configuration import BenchmarkConfig, Config
from lockstep.config.schema.target_sections import OF_FILES, Data, is_ours
from lockstep.system.text import plural

NEWTON_PROBLEM = "does not work with optimizer=newton"


def errors(config: Config) -> Errors:
    """Yield the errors of the features that a configuration uses."""
    if config.has_custom_module:
        yield from _module_errors(config)
    if isinstance(config, BenchmarkConfig):
        yield from _benchmark_errors(config)
    if config.data.names_copy:
        yield from _copy_errors(config.data)
    if config.trainer.virtual_shards:
        yield from _shard_errors(config, config.trainer.virtual_shards)
    if config.head_only:
        yield from _head_errors(config)
    if config.optimizer.is_newton:
        yield from _newton_errors(config)


def _conflicts(settings: Mapping[str, Any], problem: str, hint: str) -> Errors:
    """Yield an error for each of these settings that has a value."""
    for key, value in settings.items():
        if value:
            yield Error("conflict", f"{key}={literal(value)}", problem, hint)


def _benchmark_errors(config: Config) -> Errors:
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


def _copy_errors(data: Data) -> Errors:
    """Yield the errors of the settings of a copy and of a URL."""
    root = data.root
    if data.copy_to is not None and data.target not in OF_FILES:
        yield Error(
            "conflict",
            f"data.copy_to={data.copy_to}",
            "is for data=image_folder and data=list",
            "remove it",
        )
    if root is not None and data.is_remote and is_ours(data.target):
        from lockstep.data.transfer import copying

        for problem in copying.url_errors(root):
            yield Error("value", "", problem)
        if data.target not in OF_FILES:
            hint = "use data=image_folder or data=list, or give a folder"
            yield Error("unsupported", f"data.root={root}", "is a URL", hint)
        elif not data.is_copied:
            hint = "choose a folder for its files, data.copy_to=data/cache"
            yield Error("unsupported", f"data.root={root}", "is a URL", hint)


def _module_errors(config: Config) -> Errors:
    """Yield an error for each setting that configures what a custom module replaces."""
    trainer, num_micro_batches = config.trainer, config.trainer.accumulate_grad_batches
    has_format, is_float16 = trainer.memory_format != "auto", trainer.precision == "float16"
    settings = (
        ("compile", config.compile, "call torch.compile in it"),
        ("parameters", config.parameters, "make the groups in its configure_optimizers"),
        (
            "trainer.accumulate_grad_batches",
            num_micro_batches > 1 and num_micro_batches,
            "accumulate in its training_step",
        ),
        (
            "trainer.gradient_clip_norm",
            trainer.gradient_clip_norm,
            "clip in its configure_gradient_clipping",
        ),
        (
            "trainer.memory_format",
            has_format and trainer.memory_format,
            "choose the format in it",
        ),
        ("trainer.graph", trainer.graph is True, "capture graphs in it"),
        # Lightning changes the loss scale between the steps of two optimizers, and lets fused SGD
        # begin with a skipped step.
        ("trainer.precision", is_float16 and trainer.precision, "use bfloat16 or float32"),
    )
    problem = (
        f"is a setting of Lockstep's module, which module._target_={config.module.target} replaces"
    )
    for key, value, hint in settings:
        yield from _conflicts({key: value}, problem, f"remove it, or {hint}")


def _shard_errors(config: Config, count: int) -> Errors:
    """Yield the errors of settings that do not work with virtual shards."""
    key = f"trainer.virtual_shards={count}"
    size = config.global_batch_size // config.trainer.accumulate_grad_batches
    if size < count:
        problem = f"is more than the {plural(size, 'sample')} of a micro-batch"
        yield Error("range", key, problem, f"use at most {size}")
    num_workers = 0 if isinstance(config, BenchmarkConfig) else resolve_workers(config).world_size
    if num_workers > count:
        problem = f"is for at most {plural(count, 'worker')}, and there are {num_workers}"
        yield Error("range", key, problem, "use fewer workers")
    settings = {
        "compile": config.compile,
        "trainer.graph": config.trainer.graph is True,
        "module": config.has_custom_module,
    }
    yield from _conflicts(settings, f"does not work with {key}", "remove one of them")


def _head_errors(config: Config) -> Errors:
    """Yield the errors of settings without an effect on a network whose last layer is trained."""
    arguments = config.model.arguments()
    drops = {f"model.{name}": arguments.get(name) for name in ("dropout", "drop_path")}
    problem = "has no effect below the last layer with model.head_only"
    yield from _conflicts(drops, problem, "remove one of them")
    if config.head_only is True:
        images = {f"augment.{name}": value for name, value in config.augment.used.items()}
        images["compile"] = config.compile
        problem = "needs images, and model.head_only=true serves features"
        hint = "remove it, or use model.head_only=each_epoch"
        yield from _conflicts(images, problem, hint)


def _newton_errors(config: Config) -> Errors:
    """Yield the errors of settings that do not work with the solver of the last layer."""
    trainer, num_micro_batches = config.trainer, config.trainer.accumulate_grad_batches
    if config.model.arguments().get("head_only") is not True:
        problem = "solves the last layer of a frozen network"
        yield Error("conflict", "optimizer=newton", problem, "set model.head_only=true")
    if config.scheduler.target != "lockstep.models.constant":
        schedule = {"scheduler._target_": config.scheduler.target}
        yield from _conflicts(schedule, NEWTON_PROBLEM, "use scheduler=constant")
    averages = [
        name
        for name, callback in config.callbacks.items()
        if callback is not None and "Averag" in callback.target
    ]
    settings = {
        "module": config.has_custom_module,
        "parameters": ",".join(config.parameters),
        "callbacks": ",".join(averages),
        "trainer.accumulate_grad_batches": num_micro_batches > 1 and num_micro_batches,
        "trainer.gradient_clip_norm": trainer.gradient_clip_norm,
        "trainer.graph": trainer.graph is True,
        "trainer.virtual_shards": trainer.virtual_shards,
    }
    yield from _conflicts(settings, NEWTON_PROBLEM, "remove it")
