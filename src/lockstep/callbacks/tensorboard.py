"""What a run writes to TensorBoard: metrics, settings, command, commit, machine and network.

Event files of train are in the folder of the run, those of validation and test in folders inside it. TensorBoard shows
each folder with event files as a run, in one colour, and metrics of the same name in one chart. So a loss has the same
name in all three, and train and validation differ in colour.
"""

import copy
import json
import shlex
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams
from typing_extensions import override

from lockstep.distributed.rng import ExactDropout
from lockstep.models.classifier import Classifier
from lockstep.runs import naming
from lockstep.runs.folder import CURVES, RunFolder
from lockstep.system import internals
from lockstep.system.redaction import redact

# TensorBoard orders charts by these names and opens the first two groups: accuracy and loss
TAGS = {name: f"optimization/{name}" for name in ("learning_rate", "gradient_norm", "loss_scale")}
# sections that define a training; the others choose where it runs and which files it writes
SECTIONS = ("data", "model", "task", "optimizer", "scheduler", "augment", "trainer", "seed", "global_batch_size")
# settings shown for every run, besides those of its command line
USUAL = ("data", "model", "optimizer", "optimizer.lr", "global_batch_size", "trainer.max_epochs", "seed")


def split_and_tag(name: str) -> tuple[str, str]:
    """Return the split of a metric, and its name in the files of the split: `val/loss` is `loss` of `val`.

    `train_step/loss` is `loss/step` of `train`. Metrics of no split are written to the files of `train`.
    """
    group, _, quantity = name.partition("/")
    split, _, kind = group.partition("_")
    if not quantity or split not in CURVES:
        return "train", TAGS.get(name, name)
    return split, f"{quantity}/{kind}" if kind else quantity


class SplitTensorBoardLogger(TensorBoardLogger):
    """TensorBoard's logger with one name for a metric in all splits, so that they share a chart.

    `val/loss` is written as `loss` to the files of val below the run folder `save_dir`, `train/loss` as `loss` to those
    of train. TensorBoard drops points of earlier sessions from the optimizer step `purge_step` on, since these steps
    are trained again; so is an interrupted test after the step before.
    """

    def __init__(self, *, save_dir: str, purge_step: int = 0) -> None:
        super().__init__(save_dir, name="", version="", default_hp_metric=False, purge_step=purge_step)
        self._purge_step = purge_step
        self._others: dict[str, SummaryWriter] = {}

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        for name, value in metrics.items():
            split, tag = split_and_tag(name)
            self.writer(split).add_scalar(tag, value, step)

    def writer(self, split: str) -> SummaryWriter:
        """Return the writer of the event files of a split. Rank 0 only."""
        if split == "train":
            return self.experiment
        if split not in self._others:
            folder = RunFolder(Path(self.save_dir)).curves(split)
            purge_step = max(0, self._purge_step - 1) if split == "test" else self._purge_step
            self._others[split] = SummaryWriter(str(folder), purge_step=purge_step)
        return self._others[split]

    @override
    @rank_zero_only
    def save(self) -> None:
        """Flush the events. Lightning's own method also writes the hyperparameters, which are in config.yaml."""
        for writer in (self.experiment, *self._others.values()):
            writer.flush()

    @override
    @rank_zero_only
    def finalize(self, status: str) -> None:
        super().finalize(status)
        for writer in self._others.values():
            writer.close()


class Curves(L.Callback):
    """Writes configuration, command, commit, machine and hyperparameters of a run to TensorBoard.

    `graph` also draws the network, after the first epoch. Rank 0 only. Does nothing without TensorBoard's logger.
    """

    def __init__(self, *, graph: bool) -> None:
        self._has_graph = graph
        self._end: Any = None

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        writer = _writer(trainer)
        if writer is None:
            return
        folder = RunFolder(Path(trainer.default_root_dir))
        environment = folder.fact("environment") or {}
        settings = _settings(folder)
        writer.add_text("config", _code(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)))
        writer.add_text("command", _code(f"{naming.training_command()} {shlex.join(folder.read_overrides())}".rstrip()))
        writer.add_text("commit", str(environment["commit"]))
        writer.add_text("environment", _code(json.dumps(environment, indent=1)))
        # without its first part, "experiment", the page shows the settings of all runs, those that differ first; with
        # it, only those of the first run
        _, start, self._end = hparams(hyperparameters(folder), {})
        internals.add_summary(writer, start)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Draw the network once; not before the first step, because tracing takes seconds to import."""
        writer = _writer(trainer)
        if self._has_graph and writer is not None and isinstance(pl_module, Classifier):
            self._has_graph = False
            _add_graph(writer, pl_module)

    @override
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Mark the run as finished, so that the page shows the last points of its curves as results."""
        if (writer := _writer(trainer)) is not None:
            internals.add_summary(writer, self._end)


def hyperparameters(folder: RunFolder) -> dict[str, bool | str | float]:
    """Collect the usual settings and those of the command line, if they define the training; of a section its class."""
    settings = _settings(folder)
    given = [override.lstrip("+").partition("=")[0] for override in folder.read_overrides()]
    found: dict[str, bool | str | float] = {}
    for name in dict.fromkeys((*USUAL, *given)):
        first, *rest = name.split(".")
        value = settings.get(first) if first in SECTIONS else None
        for part in rest:
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, dict):
            value = value.get("_target_", "").rpartition(".")[2]
        if value is not None:
            found[name] = value if isinstance(value, bool | str | int | float) else str(value)
    return found


def _settings(folder: RunFolder) -> dict[str, Any]:
    return redact(yaml.safe_load(folder.config.read_text()))


def _add_graph(writer: Any, module: Classifier) -> None:
    """Draw a copy of the network on the CPU. Warns if it cannot be copied or traced."""
    problem = ""
    with warnings.catch_warnings():
        # torch.jit.trace, the only way of the writer, is deprecated (torch 2.15, 2026-11-21), and comments on traces
        warnings.simplefilter("ignore")
        try:
            net = copy.deepcopy(module.net).cpu().eval()
            for part in net.modules():
                if isinstance(part, ExactDropout):  # in a compiled network its forward is that of the original
                    part.__dict__.pop("forward", None)
            example = torch.zeros(1, *module.image_format.image_shape, dtype=next(net.parameters()).dtype)
            # the writer would trace it twice to compare, which imports sympy and torch.distributed.tensor, too
            writer.add_graph(torch.jit.trace(net, example, check_trace=False), example)
        except Exception as error:
            problem = type(error).__name__
    if problem:
        warnings.warn(f"TensorBoard shows no graph, torch.jit cannot trace the network: {problem}", stacklevel=1)


def _writer(trainer: L.Trainer) -> Any:
    """Return the event file of rank 0; None on other ranks, and without TensorBoard."""
    loggers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
    return loggers[0].experiment if loggers and trainer.is_global_zero else None


def _code(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())  # Markdown
