"""What TensorBoard shows of a run beside its numbers: charts that belong together, settings, network, result."""

import contextlib
import copy
import io
import json
import re
import shlex
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData  # pyright: ignore[reportAttributeAccessIssue]
from torch import Tensor, nn
from torch.utils.tensorboard.summary import hparams
from typing_extensions import override

from lockstep.callbacks.stop import Stopped
from lockstep.distributed.rng import ExactDropout
from lockstep.models.classifier import Classifier
from lockstep.runs import naming
from lockstep.runs.folder import RunFolder
from lockstep.system import internals
from lockstep.system.redaction import redacted

# of every chart beside those of the metrics the names of its curves, as regular expressions
LAYOUT = {
    "Optimization": {
        "Learning rate": ["Multiline", ["^optimization/learning_rate$"]],
        "Gradient norm": ["Multiline", ["^optimization/gradient_norm$"]],
    },
    "Machine": {
        "Images per second": ["Multiline", ["^machine/images_per_s$"]],
        "Memory of a worker (GiB)": ["Multiline", ["^machine/memory_gib$"]],
    },
}
# settings that make one training another one; the rest says where it runs and what is kept
SECTIONS = ("data", "model", "task", "optimizer", "scheduler", "augment", "trainer")
OTHERS = ("seed", "global_batch_size")
# those by which runs are told apart though nobody typed them
USUAL = ("data", "model", "optimizer", "optimizer.lr", "global_batch_size", "trainer.max_epochs", "seed")


class Curves(L.Callback):
    """Tells TensorBoard which charts belong together, and the configuration, command, commit and machine of a run.

    Its hyperparameters stand there with how the run ended. `graph` also draws the network, after the first epoch. Only
    rank 0 writes. A run without TensorBoard's logger is left alone.
    """

    def __init__(self, *, graph: bool) -> None:
        self._has_graph = graph
        self._end: Any = None

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the layout, the texts and the settings."""
        writer = _writer(trainer)
        if writer is None:
            return
        folder = RunFolder(Path(trainer.default_root_dir))
        writer.add_custom_scalars(layout(pl_module.measured if isinstance(pl_module, Classifier) else ("loss",)))
        environment = folder.read_environment()
        tree = redacted(yaml.safe_load(folder.config.read_text()))
        writer.add_text("config", _code(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)))
        writer.add_text("command", _code(f"{naming.training_command()} {shlex.join(folder.read_overrides())}".rstrip()))
        writer.add_text("commit", str(environment["commit"]))
        writer.add_text("environment", _code(json.dumps(environment, indent=1)))
        # Without its first part, "experiment", the page offers the settings of all runs, and first those that differ.
        # With it, those that the first run names, which cannot know the others.
        _, start, self._end = hparams(hyperparameters(folder), {})
        internals.add_summary(writer, start)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Draw the network, once. Not before the first step: tracing brings a part of torch's compiler, for seconds."""
        writer = _writer(trainer)
        if self._has_graph and writer is not None and isinstance(pl_module, Classifier):
            self._has_graph = False
            _add_graph(writer, pl_module)

    @override
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Mark the run as finished; its results are the newest points of its curves. A failed test changes that."""
        self._end_session(trainer, STATUS_SUCCESS)

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Mark the run as failed, unless it was stopped to go on later."""
        if not isinstance(exception, Stopped):
            self._end_session(trainer, STATUS_FAILURE)

    def _end_session(self, trainer: L.Trainer, status: int) -> None:
        writer = _writer(trainer)
        if writer is not None and self._end is not None:
            data = self._end.value[0].metadata.plugin_data
            content = HParamsPluginData.FromString(data.content)
            content.session_end_info.status = status
            data.content = content.SerializeToString()
            internals.add_summary(writer, self._end)  # Lightning closes the file between fit and test
            writer.flush()


def layout(names: Sequence[str]) -> dict[str, Any]:
    """The charts of a run that measures these `names`: train and validation have the same ones, and share a chart."""
    metrics = {name.replace("_", " ").capitalize(): ["Multiline", [f"^{re.escape(name)}$"]] for name in names}
    return {"Curves": {**metrics, "Loss of a step": ["Multiline", ["^loss/step$"]]}, **LAYOUT}


def hyperparameters(folder: RunFolder) -> dict[str, bool | str | float]:
    """The usual settings of a run, and those that were typed."""
    typed = [override.lstrip("+").partition("=")[0] for override in folder.read_overrides()]
    known = settings(folder)
    return {name: known[name] for name in dict.fromkeys((*USUAL, *typed)) if name in known}


def settings(folder: RunFolder) -> dict[str, bool | str | float]:
    """The settings of a run that make its training another one, flat: `optimizer.lr`. What is no number is text."""
    tree = redacted(yaml.safe_load(folder.config.read_text()))
    values = {name: tree[name] for name in OTHERS}
    for section in SECTIONS:
        for name, value in tree[section].items():
            if name == "_target_":
                values[section] = value.rpartition(".")[2]
            elif not name.startswith("_") and not isinstance(value, dict):
                values[f"{section}.{name}"] = value
    return {
        name: value if isinstance(value, bool | str | int | float) else str(value) for name, value in values.items()
    }


class _Forward(nn.Module):
    """The network alone, as it is used after training: a copy, which no tracing can change."""

    def __init__(self, module: Classifier) -> None:
        super().__init__()
        self.net = copy.deepcopy(module.net).cpu().eval()
        for part in self.net.modules():
            if isinstance(part, ExactDropout):  # beside a compiled network its forward is that of the original
                part.__dict__.pop("forward", None)

    @override
    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)


def _add_graph(writer: Any, module: Classifier) -> None:
    """Not every network can be traced, or copied: such a one is trained without its picture."""
    fault = ""
    # what the tracer says of a network is for those who want its trace, and it prints its errors besides raising them
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        # the writer knows no other way than torch.jit.trace, which is deprecated (torch 2.15, 2026-11-21)
        warnings.filterwarnings("ignore", message=".*torch.jit.* is deprecated", category=FutureWarning)
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)  # pyright: ignore[reportPrivateImportUsage]
        warnings.filterwarnings("ignore", message="The input to trace is already a ScriptModule")
        try:
            example = torch.zeros(1, *module.image_format.image_shape, dtype=next(module.net.parameters()).dtype)
            # the writer would trace it twice to compare, which brings sympy and torch.distributed.tensor, too
            traced = torch.jit.trace(_Forward(module), example, check_trace=False)
            writer.add_graph(traced, example)
        except Exception as error:
            fault = type(error).__name__
    if fault:
        warnings.warn(f"TensorBoard shows no graph, torch.jit cannot trace the network: {fault}", stacklevel=1)


def _writer(trainer: L.Trainer) -> Any:
    """The event file of rank 0; None on other ranks, and without TensorBoard."""
    loggers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
    return loggers[0].experiment if loggers and trainer.is_global_zero else None


def _code(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())  # Markdown
