"""A few steps of a run with a trace of all intermediate values.

`lockstep verify` compares the traces.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torchmetrics import Metric
from typing_extensions import override

from lockstep.assembly import run_parts
from lockstep.assembly.session import open_session
from lockstep.callbacks.custom_module import metrics_of, micro_batches, steps_done
from lockstep.callbacks.stop import Stopped
from lockstep.config import build
from lockstep.config.errors import config_error
from lockstep.config.saved import config_file
from lockstep.config.schema.key_scopes import CHECKPOINT, FREE_CALLBACKS
from lockstep.distributed.batch import Batch
from lockstep.models.classifier import Classifier
from lockstep.models.virtual import VirtualParts
from lockstep.runs.folder import RunFolder
from lockstep.system import internals
from lockstep.system.launcher import World
from lockstep.system.signals import SignalFlag
from lockstep.tasks.task import Task
from lockstep.training.train import prepare_training

TraceStep = dict[str, Any]  # described by `Trace`
INPUTS, LOSSES, GRADIENT = "inputs", "losses", "gradient of "
STATE_FILE = "state.pt"  # weights, statistics and metrics at the end, written by rank 0


def trace_file(rank: int, part: int) -> str:
    """Return the name of the file with the trace of a rank, in a part of a training."""
    return f"trace-{part}-{rank}.pt"


def verify(
    folder: RunFolder,
    world: World | None,
    flag: SignalFlag,
    *,
    stop_after: int | None,
    part: int,
) -> int:
    """Train the run in `folder` and write a trace. Returns the exit code.

    A later `part` starts from the checkpoint of the run. With `stop_after`, it saves a checkpoint
    after this step and exits. If it is None, it trains to the end and tests.
    """
    config = config_file.load(folder.config)
    with open_session(folder, config, world) as session:
        session, data, module, first_callbacks = prepare_training(session, is_new=not part)
        callbacks = first_callbacks
        for section in config.callbacks.values():
            if section is not None and section.target not in (CHECKPOINT, *FREE_CALLBACKS):
                callback = build.build(section)
                if not isinstance(callback, ModelCheckpoint):
                    callbacks.append(callback)
        trace = Trace(folder, stop_after)
        trainer = run_parts.lightning_trainer(
            session,
            module,
            callbacks=[*callbacks, trace],
            logger=False,
            enable_checkpointing=False,
            max_epochs=config.trainer.max_epochs,
            log_every_n_steps=config.trainer.log_every_n_steps,
            check_val_every_n_epoch=config.trainer.check_val_every_n_epoch,
        )
        try:
            trainer.fit(
                module, data, ckpt_path=folder.last_checkpoint if part else None, weights_only=True
            )
        except Stopped:
            pass
        else:
            train_metrics = dict(metrics_of(trainer, module))
            if is_overridden("test_step", module):
                trainer.test(module, data, verbose=False)
            if session.rank == 0:
                metrics = train_metrics | metrics_of(trainer, module)
                values = module.state_dict().items()
                statistics = {name: value.double().cpu() for name, value in values}
                weights = {name: statistics.pop(name) for name, _ in module.named_parameters()}
                state = {"weights": weights, "statistics": statistics, "metrics": metrics}
                torch.save(state, folder.path / STATE_FILE)
        torch.save(trace.steps, folder.path / trace_file(session.rank, part))
    return 0


class Trace(Callback):
    """Records the outputs of each layer for each sample, and the gradients and weights of steps.

    `steps` has an entry for each micro-batch. `samples` (B,) are positions in the data set.
    `values` has two numbers for each sample (B, 2), a projection and the norm, by the name of a
    part and in the order of computation. If the micro-batch ends a step, `sums` has two such
    numbers (2,) for the gradient of each parameter, and for each parameter after the step. After
    step `stop_after` it saves a checkpoint and stops the training.
    """

    def __init__(self, folder: RunFolder, stop_after: int | None) -> None:
        self._folder = folder
        self._stop_after = stop_after
        self._hooks: list[Any] = []
        # There is one for each virtual shard, or a single one without virtual shards.
        self._values: list[dict[str, Tensor]] = []
        self._sums: dict[str, Tensor] = {}
        self._sizes: list[int] = []
        self._is_step = False  # true if the micro-batch ends a step
        self.steps: list[TraceStep] = []

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        internals.silence_broadcast(trainer)
        num_steps = math.ceil(trainer.num_training_batches / micro_batches(pl_module))
        num_steps *= trainer.max_epochs or 1
        if self._stop_after is not None and num_steps <= self._stop_after:
            raise config_error(
                "range",
                "lockstep verify",
                f"stops a training after step {self._stop_after}, and this one has {num_steps}",
                "use more images, or a smaller global_batch_size",
            )
        for shard, module in enumerate(_shard_modules(pl_module)):
            net, prefix = module, ""
            if isinstance(module, Classifier):
                net, prefix = module.net, "net"
                module.task.losses = partial(
                    self._record_losses, shard, module.task, module.task.losses
                )
            for name, layer in layers(net, prefix):
                record = partial(self._record_output, shard, name)
                self._hooks.append(layer.register_forward_hook(record))

    def _record_losses(
        self, shard: int, task: Task, losses: Callable[..., Any], outputs: Tensor, batch: Batch
    ) -> Any:
        result = losses(outputs, batch)
        if task.training:
            self._record(shard, LOSSES, result[0] if isinstance(result, tuple) else result)
        return result

    def _record_output(
        self, shard: int, name: str, layer: nn.Module, inputs: Any, output: Any
    ) -> None:
        if layer.training and isinstance(output, Tensor):
            self._record(shard, name, output)

    def _record(self, shard: int, name: str, values: Tensor) -> None:
        """Record values with a row for each sample.

        A layer that is used again gets a number.
        """
        if values.dim() and len(values) == self._sizes[shard]:
            recorded = self._values[shard]
            number = sum(other_name.partition(", call ")[0] == name for other_name in recorded)
            recorded[f"{name}, call {number + 1}" if number else name] = row_fingerprints(
                values.detach()
            )

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        virtual = _virtual(pl_module)
        shard_batches = [batch] if virtual is None else virtual.shards.split(batch)
        self._values = [{} for _ in shard_batches]
        self._sums = {}
        self._sizes = [len(shard_batch.indices) for shard_batch in shard_batches]
        self._is_step = False
        for shard, shard_batch in enumerate(shard_batches):
            self._record(shard, INPUTS, shard_batch.inputs)  # These inputs are augmented.

    @override
    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        """Record the gradients of the global batch in the order of computation.

        The gradients of the last layer come first.
        """
        self._is_step = True
        for name, parameter in reversed(list(pl_module.named_parameters())):
            if parameter.grad is not None:
                self._sums[f"{GRADIENT}{name}"] = row_fingerprints(parameter.grad.flatten()[None])[
                    0
                ]

    @override
    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        for name, value in pl_module.state_dict().items() if self._is_step else ():
            if value.is_floating_point():
                self._sums[f"{name} after the step"] = row_fingerprints(value.flatten()[None])[0]
        values = {
            name: torch.cat([of[name] for of in self._values if name in of])
            for name in max(self._values, key=len)
        }
        self.steps.append(
            {
                "epoch": batch.shard.epoch,
                "micro_step": batch.shard.micro_step,
                "step": steps_done(trainer, pl_module),
                "samples": batch.indices.cpu(),
                "values": values,
                "sums": self._sums,
            }
        )
        if not trainer.is_last_batch:
            self.on_train_epoch_end(trainer, pl_module)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the training after its step, or after the epoch that this step ends.

        StopTogether does the same.
        """
        if self._is_step and steps_done(trainer, pl_module) == self._stop_after:
            trainer.save_checkpoint(self._folder.last_checkpoint)
            raise Stopped("the training stops after this step")

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for hook in self._hooks:
            hook.remove()
        for module in _shard_modules(pl_module):
            if isinstance(module, Classifier):
                del module.task.losses


def _virtual(module: LightningModule) -> VirtualParts[Classifier] | None:
    return module.virtual if isinstance(module, Classifier) else None


def _shard_modules(module: LightningModule) -> Sequence[LightningModule]:
    virtual = _virtual(module)
    return [module] if virtual is None else virtual.modules


def row_fingerprints(values: Tensor) -> Tensor:
    """Return a projection and the norm of each row of `values` (B, ...), as float64 (B, 2).

    The projection is that on a fixed vector.
    """
    flat = values.double().flatten(1) if values.dim() > 1 else values.double()[:, None]
    direction = torch.arange(1, flat.shape[1] + 1, dtype=torch.float64, device=flat.device).sin()
    # The rounding depends on the row alone.
    return torch.stack([(flat * direction).sum(1), flat.norm(dim=1)], 1).cpu()


def layers(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield each layer that contains no other layers, with its name and class, below `prefix`.

    Metrics are left out.
    """
    for path, layer in module.named_modules(prefix=prefix):
        if not any(layer.children()) and not isinstance(layer, Metric):
            yield f"layer {path} ({type(layer).__name__})", layer
