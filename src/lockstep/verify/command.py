"""Trains a few steps of a configuration by one worker and by several, and compares them.

Networks, losses, data and callbacks are those of the configuration. It is trained in float64, where
rounding is far below any mistake. The variants have even, uneven and empty shards. One is stopped
and resumed with another number of workers.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep.assembly import checkpoints
from lockstep.config import build, overrides
from lockstep.config.checks import data_presence, validation
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError, Error, errors_of, exit_with
from lockstep.config.saved import config_file
from lockstep.config.schema.configuration import Config
from lockstep.launch import parent
from lockstep.launch.worker import Job
from lockstep.runs.files import answer
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
CUT_AFTER = 2  # in the middle of an epoch
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
    f"2 workers to step {CUT_AFTER}, then 3": (Part((2, 1), CUT_AFTER), Part((1, 1, 1))),
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
        return Verification(Path(path), config, signals).run()


def _check_config(arguments: Sequence[str], source: compose.Source, *, is_by_bits: bool) -> Config:
    """Return the configuration, changed to a few silent steps, in float64 or with virtual shards.

    Raises ConfigError.
    """
    (config,) = overrides.check(arguments, source).configs
    if config.resume is not None:
        raise ConfigError(
            Error(
                "conflict",
                f"resume={config.resume}",
                "continues a run, verify starts new ones",
                "remove it",
            )
        )
    tree = config_file.to_tree(config)
    trainer = tree["trainer"]
    count = trainer["virtual_shards"] or NUM_VIRTUAL
    if is_by_bits and count < MAX_WORKERS:
        problem = f"is less than the {MAX_WORKERS} workers of lockstep verify"
        raise ConfigError(
            Error(
                "range", f"trainer.virtual_shards={count}", problem, f"use at least {MAX_WORKERS}"
            )
        )
    limits = {"limit_val_batches": NUM_EVALUATED, "limit_test_batches": NUM_EVALUATED}
    limits["limit_train_batches"] = NUM_STEPS * trainer["accumulate_grad_batches"]
    tree["trainer"] |= {
        **{name: min(limit, trainer[name] or limit) for name, limit in limits.items()},
        "precision": trainer["precision"] if is_by_bits else "float64",
        "virtual_shards": count if is_by_bits else None,
        # Even with one step per epoch, one step follows the interruption.
        "max_epochs": NUM_EPOCHS + config.optimizer.is_newton,
        **{"num_nodes": 1, "devices": 1, "worker_weights": None},
        **{
            "graph": False,
            "log_every_n_steps": 1,
            "check_val_every_n_epoch": 1,
            "max_time_s": None,
            "profiler": None,
        },
    }
    tree["strategy"] |= {"name": "cpu", "interface": None}
    tree |= {"silent": True, "compile": False, "logger": {}, "scale_with_workers": False}
    tree["eval_batch_size"] = min(tree["eval_batch_size"], tree["global_batch_size"])
    return build.resolve_config(validation.check_tree(tree))


class Verification:
    """Trains one configuration in every variant, in folders below `path`, and compares them."""

    def __init__(self, path: Path, config: Config, signals: SignalList) -> None:
        self._path = path
        self._config = config
        self._signals = signals
        self._is_by_bits = config.trainer.virtual_shards is not None
        self._others = [
            variant
            for variant in VARIANTS
            if variant != ALONE and (self._is_by_bits or variant != OF_ONE_THREAD)
        ]
        self._uses_gpus = hardware.num_visible_gpus() >= MAX_WORKERS
        self._out = terminal()

    def run(self) -> int:
        devices = "GPUs" if self._uses_gpus else "CPU processes"
        epochs = self._config.trainer.max_epochs
        size = plural(self._config.global_batch_size, "sample")
        steps = f"{epochs} epochs of up to {NUM_STEPS} steps of {size}"
        trainer = self._config.trainer
        ways = f"with 1 worker, and in {len(self._others)} other ways"
        precision = "its precision" if trainer.precision == "auto" else trainer.precision
        shards = f" with {trainer.virtual_shards} virtual shards" if self._is_by_bits else ""
        print_line(self._out, f"Training {steps} in {precision}{shards}, on {devices}: {ways} ...")
        failures: dict[str, str] = {}
        for variant in (ALONE, *self._others):
            code = self._train(variant)
            if code not in (0, EXIT_FAILED, EXIT_CONFIG):
                return code
            if code:
                failures[variant] = (
                    self._folder(variant).failure_cause() or "it ended without an error message"
                )
            if ALONE in failures:
                if code == EXIT_CONFIG:
                    exit_with(ConfigError(*errors_of(failures[ALONE])))
                json_output.fail(f"{ALONE}: {failures[ALONE]}")
                return EXIT_FAILED
        return self._report(failures)

    def _folder(self, variant: str) -> RunFolder:
        return RunFolder(self._path / str([*VARIANTS].index(variant)))

    def _train(self, variant: str) -> int:
        folder = self._folder(variant)
        folder.checkpoints.mkdir(parents=True)
        checkpoints.keep_initial(folder, checkpoints.initial_checkpoint(self._config.init_from))
        for number, part in enumerate(VARIANTS[variant]):
            config_file.save(self._config_of(part), folder.config)
            job = Job(_verify, folder, {"part": part, "number": number})
            if code := parent.run_workers(
                job, len(part.worker_weights), self._signals, log=folder.path / LOG
            ):
                return code
        return 0

    def _config_of(self, part: Part) -> Config:
        tree = config_file.to_tree(self._config)
        is_alone = len(part.worker_weights) == 1
        on_gpus = "single_device" if is_alone else "ddp"
        tree["strategy"]["name"] = on_gpus if self._uses_gpus else "cpu"
        tree["trainer"] |= {
            "devices": len(part.worker_weights),
            "worker_weights": None if is_alone else list(part.worker_weights),
        }
        return validation.check_tree(tree)

    def _report(self, failures: dict[str, str]) -> int:
        from lockstep.verify.comparison import LIMIT, compare

        alone = self._folder(ALONE).path
        comparisons: dict[str, Compared] = {}
        for variant in (variant for variant in self._others if variant not in failures):
            worker_counts = [len(part.worker_weights) for part in VARIANTS[variant]]
            comparisons[variant] = compare(
                alone, self._folder(variant).path, worker_counts, is_by_bits=self._is_by_bits
            )
        print_table(_table(self._others, comparisons, self._out), self._out)
        messages = list(explanations(comparisons, failures, is_by_bits=self._is_by_bits))
        for message in messages:
            print_line(self._out, message)
        facts = {
            "is_exact": not messages,
            "limit": 0.0 if self._is_by_bits else LIMIT,
            "explanations": messages,
        }
        answer(
            facts
            | {"variants": [_facts(variant, comparisons.get(variant)) for variant in self._others]}
        )
        if messages:
            return EXIT_FAILED
        if self._is_by_bits:
            print_line(
                self._out, "Exact: every bit of weights, statistics and metrics is the same."
            )
            return 0
        max_difference = max(kind.size for result in comparisons.values() for kind in result[:3])
        print_line(
            self._out,
            f"Exact: nothing differs by more than {_size_text(max_difference)} (limit {LIMIT:g}, "
            "for rounding).",
        )
        return 0


def _table(variants: Sequence[str], comparisons: "dict[str, Compared]", out: Console) -> Table:
    rows: list[list[str | Text]] = []
    for variant in variants:
        result = comparisons.get(variant)
        if result is None:
            rows.append([variant, Text("failed", style="red"), "-", "-", "-"])
        else:
            is_exact = (
                Text("exact", style="green") if result.is_exact else Text("differs", style="red")
            )
            rows.append([variant, is_exact, *(_size_text(kind.size) for kind in result[:3])])
    return new_table(("compared with 1 worker", "", *KINDS), rows, out, right=KINDS)


def _facts(variant: str, result: "Compared | None") -> dict[str, Any]:
    if result is None:
        return {"variant": variant, "state": "failed"}
    sizes = {kind: getattr(result, kind).size for kind in KINDS}
    return {"variant": variant, "state": "exact" if result.is_exact else "differs", **sizes}


def explanations(
    comparisons: "dict[str, Compared]", failures: dict[str, str], *, is_by_bits: bool
) -> Iterator[str]:
    """Yield the errors of failed variants, and the first part that differs of the others.

    Each reason is yielded once.
    """
    reasons: dict[str, str] = {}
    for variant, problem in failures.items():
        reasons.setdefault(problem, f"{variant}: {problem}")
    for variant, result in comparisons.items():
        if result.is_exact:
            continue
        difference = result.first
        if difference is None:
            worst = max(
                (result.metrics, result.weights, result.statistics), key=lambda kind: kind.rank()
            )
            reason = (
                "no step of the training differs"
                if worst is result.metrics
                else "rounding grows there"
            )
            hint = "its states must be sums over samples (dist_reduce_fx='sum')"
            problem = f"{worst.name} differs by {_size_text(worst.size)}: {reason}"
            reasons.setdefault(
                worst.name, f"{variant}: {problem}{', ' + hint if worst is result.metrics else ''}"
            )
        else:
            sample = "" if difference.sample is None else f", sample {difference.sample}"
            head = (
                f"{variant}: first difference: {difference.part}{sample}, "
                f"in step {difference.step}, by "
            )
            reasons.setdefault(
                difference.part,
                f"{head}{_size_text(difference.size)}: {difference.meaning(is_by_bits=is_by_bits)}",
            )
    yield from reasons.values()


def _size_text(size: float) -> str:
    return "0" if size == 0 else f"{size:.1e}".replace("nan", "NaN")
