"""Trains a few steps of a configuration by one worker and by several, and compares them.

Networks, losses, data and callbacks are those of the configuration. It is trained in float64, where
rounding is far below any mistake. The variants have even, uneven and empty shards. One is stopped
and resumed with another number of workers.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from lockstep.assembly import checkpoints
from lockstep.config import build, overrides
from lockstep.config.checks import data_presence, validation
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError, config_error, errors_of, exit_with
from lockstep.config.saved import config_file
from lockstep.config.schema.configuration import Config
from lockstep.launch import parent
from lockstep.launch.worker import Job
from lockstep.runs.files import JsonObject, print_result
from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED, RunFolder
from lockstep.system import hardware, json_output
from lockstep.system.launcher import World
from lockstep.system.signals import SignalFlag, SignalList
from lockstep.system.terminal import new_table, print_line, print_table, terminal
from lockstep.system.text import plural

if TYPE_CHECKING:
    from lockstep.verify.comparison import Compared

# Optimizer steps of an epoch, epochs, and batches of an evaluation.
NUM_STEPS, NUM_EPOCHS, NUM_EVALUATED = 3, 2, 2
STOP_AFTER = 2  # in the middle of an epoch
LOG = "terminal.log"
KINDS = ("weights", "statistics", "metrics")


class Part(NamedTuple):
    """Some steps of a training.

    `worker_weights` has the relative shard sizes of the workers. `stop_after` is the last step, or
    None for the end.
    """

    worker_weights: tuple[int, ...]
    stop_after: int | None = None
    num_threads: int | None = None  # of each worker


def _verify(
    folder: RunFolder, world: World | None, flag: SignalFlag, *, part: Part, number: int
) -> int:
    """Train one part of a variant in a worker, which imports torch."""
    import torch

    from lockstep.training import exactness_check

    if part.num_threads is not None:
        torch.set_num_threads(part.num_threads)
    return exactness_check.verify(folder, world, flag, stop_after=part.stop_after, part=number)


NUM_VIRTUAL = 4  # number of virtual shards if the configuration has none
ALONE, OF_ONE_THREAD = "1 worker", "1 worker of 1 thread"
VARIANTS = {
    ALONE: (Part((1,)),),
    "2 workers": (Part((1, 1)),),
    "3 workers, shards 3:1:2": (Part((3, 1, 2)),),
    "2 workers, one empty shard": (Part((1, 0)),),
    f"2 workers to step {STOP_AFTER}, then 3": (Part((2, 1), STOP_AFTER), Part((1, 1, 1))),
    OF_ONE_THREAD: (Part((1,), num_threads=1),),  # The others have their part of the cores.
}
MAX_WORKERS = max(len(part.worker_weights) for parts in VARIANTS.values() for part in parts)


def run_verification(
    arguments: Sequence[str], source: compose.Source, *, is_by_bits: bool = False
) -> int:
    """Verify the configuration of these overrides.

    Returns the exit code, which is 0 if it is exact, else 1. With `is_by_bits`, the bits with
    virtual shards are compared, in the precision of the configuration.
    """
    try:
        config = _check_config(arguments, source, is_by_bits=is_by_bits)
        data_presence.check(config.data)
    except ConfigError as error:
        exit_with(error)
    signals = SignalList()
    with signals.handle_signals(), tempfile.TemporaryDirectory(prefix="lockstep-verify-") as path:
        return _verify_variants(Path(path), config, signals)


def _check_config(arguments: Sequence[str], source: compose.Source, *, is_by_bits: bool) -> Config:
    """Return the configuration, changed to a few silent steps, in float64 or with virtual shards.

    Raises ConfigError.
    """
    (config,) = overrides.check(arguments, source).configs
    if config.resume is not None:
        raise config_error(
            "conflict",
            f"resume={config.resume}",
            "continues a run, verify starts new ones",
            "remove it",
        )
    tree = config_file.to_tree(config)
    trainer = tree["trainer"]
    count = trainer["virtual_shards"] or NUM_VIRTUAL
    if is_by_bits and count < MAX_WORKERS:
        raise config_error(
            "range",
            f"trainer.virtual_shards={count}",
            f"is less than the {MAX_WORKERS} workers of lockstep verify",
            f"use at least {MAX_WORKERS}",
        )
    limits = {"limit_val_batches": NUM_EVALUATED, "limit_test_batches": NUM_EVALUATED}
    limits["limit_train_batches"] = NUM_STEPS * trainer["accumulate_grad_batches"]
    trainer |= {name: min(limit, trainer[name] or limit) for name, limit in limits.items()}
    trainer |= {
        "precision": trainer["precision"] if is_by_bits else "float64",
        "virtual_shards": count if is_by_bits else None,
        # Even with one step per epoch, one step follows the interruption.
        "max_epochs": NUM_EPOCHS + config.optimizer.is_newton,
        "num_nodes": 1,
        "devices": 1,
        "worker_weights": None,
        "graph": False,
        "log_every_n_steps": 1,
        "check_val_every_n_epoch": 1,
        "max_time_s": None,
        "profiler": None,
    }
    tree["strategy"] |= {"name": "cpu", "interface": None}
    tree |= {"silent": True, "compile": False, "logger": {}, "scale_with_workers": False}
    tree["eval_batch_size"] = min(tree["eval_batch_size"], tree["global_batch_size"])
    return build.resolve_config(validation.check_tree(tree))


def _verify_variants(path: Path, config: Config, signals: SignalList) -> int:
    """Train in every variant, in folders below `path`, and compare. Returns the exit code."""
    trainer, is_by_bits = config.trainer, config.trainer.virtual_shards is not None
    variants = [variant for variant in VARIANTS if is_by_bits or variant != OF_ONE_THREAD]
    folders = {variant: RunFolder(path / str(number)) for number, variant in enumerate(variants)}
    uses_gpus = hardware.num_visible_gpus() >= MAX_WORKERS
    precision = "its precision" if trainer.precision == "auto" else trainer.precision
    shards = f" with {trainer.virtual_shards} virtual shards" if is_by_bits else ""
    devices = "GPUs" if uses_gpus else "CPU processes"
    print_line(
        terminal(),
        f"Training {trainer.max_epochs} epochs of up to {NUM_STEPS} steps of "
        f"{plural(config.global_batch_size, 'sample')} in {precision}{shards}, on "
        f"{devices}: with 1 worker, and in {len(variants) - 1} other ways ...",
    )
    failures: dict[str, str] = {}
    for variant, folder in folders.items():
        code = _train(folder, config, VARIANTS[variant], signals, uses_gpus=uses_gpus)
        if code not in (0, EXIT_FAILED, EXIT_CONFIG):
            return code
        if code:
            failures[variant] = folder.failure_cause() or "it ended without an error message"
        if ALONE in failures:
            if code == EXIT_CONFIG:
                exit_with(ConfigError(*errors_of(failures[ALONE])))
            json_output.fail(f"{ALONE}: {failures[ALONE]}")
            return EXIT_FAILED
    return _report(folders, failures, is_by_bits=is_by_bits)


def _train(
    folder: RunFolder,
    config: Config,
    parts: Sequence[Part],
    signals: SignalList,
    *,
    uses_gpus: bool,
) -> int:
    folder.checkpoints.mkdir(parents=True)
    checkpoints.copy_initial_checkpoint(folder, checkpoints.initial_checkpoint(config.init_from))
    for number, part in enumerate(parts):
        tree, num_workers = config_file.to_tree(config), len(part.worker_weights)
        worker_weights = list(part.worker_weights) if num_workers > 1 else None
        tree["trainer"] |= {"devices": num_workers, "worker_weights": worker_weights}
        if uses_gpus:
            tree["strategy"]["name"] = "ddp" if num_workers > 1 else "single_device"
        config_file.save(validation.check_tree(tree), folder.config)
        if code := parent.run_workers(
            Job(_verify, folder, {"part": part, "number": number}),
            num_workers,
            signals,
            log=folder.path / LOG,
        ):
            return code
    return 0


def _report(folders: dict[str, RunFolder], failures: dict[str, str], *, is_by_bits: bool) -> int:
    from lockstep.verify.comparison import LIMIT, compare

    out = terminal()
    alone, *others = folders
    comparisons: dict[str, Compared] = {}
    for variant in others:
        if variant not in failures:
            worker_counts = [len(part.worker_weights) for part in VARIANTS[variant]]
            comparisons[variant] = compare(
                folders[alone].path, folders[variant].path, worker_counts, is_by_bits=is_by_bits
            )
    variants = [_facts(variant, comparisons.get(variant)) for variant in others]
    print_table(_table(variants, out), out)
    messages = explanations(comparisons, failures, is_by_bits=is_by_bits)
    for message in messages:
        print_line(out, message)
    print_result(
        {
            "is_exact": not messages,
            "limit": 0.0 if is_by_bits else LIMIT,
            "explanations": messages,
            "variants": variants,
        }
    )
    if messages:
        return EXIT_FAILED
    if is_by_bits:
        print_line(out, "Exact: every bit of weights, statistics and metrics is the same.")
        return 0
    size = _size_text(max(kind.size for result in comparisons.values() for kind in result[:3]))
    print_line(out, f"Exact: nothing differs by more than {size} (limit {LIMIT:g}, for rounding).")
    return 0


def _table(variants: Sequence[JsonObject], out: Console) -> Table:
    rows = [
        [facts["variant"], facts["state"], *(_size_text(facts.get(kind)) for kind in KINDS)]
        for facts in variants
    ]
    return new_table(("compared with 1 worker", "", *KINDS), rows, out, right=KINDS)


def _facts(variant: str, result: "Compared | None") -> JsonObject:
    if result is None:
        return {"variant": variant, "state": "failed"}
    sizes = {kind: getattr(result, kind).size for kind in KINDS}
    return {"variant": variant, "state": "exact" if result.is_exact else "differs", **sizes}


def explanations(
    comparisons: "dict[str, Compared]", failures: dict[str, str], *, is_by_bits: bool
) -> list[str]:
    """Return the errors of failed variants, and the first part that differs of the others.

    Each reason is there once.
    """
    reasons: dict[str, str] = {}
    for variant, problem in failures.items():
        reasons.setdefault(problem, f"{variant}: {problem}")
    for variant, result in comparisons.items():
        difference = result.first
        if result.is_exact:
            continue
        if difference is not None:
            part, size = difference.part, _size_text(difference.size)
            sample = "" if difference.sample is None else f", sample {difference.sample}"
            meaning = difference.meaning(is_by_bits=is_by_bits)
            problem = f"{part}{sample}, in step {difference.step}, by {size}: {meaning}"
            reasons.setdefault(part, f"{variant}: first difference: {problem}")
            continue
        worst = max(result.metrics, result.weights, result.statistics, key=lambda kind: kind.rank())
        reason = "rounding grows there"
        if worst is result.metrics:
            reason = (
                "the training is the same, so "
                "make the states of the metric sums over samples (dist_reduce_fx='sum')"
            )
        problem = f"{worst.name} differs by {_size_text(worst.size)}: {reason}"
        reasons.setdefault(worst.name, f"{variant}: {problem}")
    return list(reasons.values())


def _size_text(size: float | None) -> str:
    if size is None:
        return "-"
    return "0" if size == 0 else f"{size:.1e}".replace("nan", "NaN")
