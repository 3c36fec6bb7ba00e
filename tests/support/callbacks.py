"""Callbacks for tests record the process of a trial, slow it down, or end it at some moment."""

import itertools
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import lightning as L
import numpy
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_original_cwd

from lockstep.callbacks import console
from lockstep.models.classifier import Classifier
from lockstep.models.graphs import GraphedModule
from lockstep.runs.files import write_atomically


class Sees(L.Callback):
    """Writes seen.json into the run folder: devices and times of the process.

    Sleeps in each epoch until a file `fast` is in the current folder.
    """

    def __init__(self, *, epoch_s: float) -> None:
        self._epoch_s = epoch_s

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._facts = {
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "cores": sorted(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
            "parent": os.getppid(),
            "begin": _begin_of_process(),
        }
        self._write(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not Path("fast").exists():
            self._facts["sleeps"] = True
            self._write(trainer)
            time.sleep(self._epoch_s)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._facts["end"] = time.time()
        self._write(trainer)

    def _write(self, trainer: L.Trainer) -> None:
        if trainer.is_global_zero:  # tests look any time
            write_atomically(Path(trainer.default_root_dir, "seen.json"), json.dumps(self._facts))


def _begin_of_process() -> float:
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


class NotesImports(L.Callback):
    """Writes the modules that rank 0 has imported after its first and after its last step."""

    def __init__(self, *, path: str) -> None:
        self._path = Path(path)
        self._modules: dict[str, list[str]] = {}

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        self._modules.setdefault("first step", list(sys.modules))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            self._path.write_text(json.dumps({**self._modules, "end": list(sys.modules)}))


class NotesProcess(L.Callback):
    """Writes the state of the process of each rank into `folder`, before its first step."""

    def __init__(self, *, folder: str) -> None:
        self._folder = folder

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        facts = {
            **{name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "KEPT")},
            "arguments": sys.argv[1:],
            "parent": os.getppid(),
            "has_started_cuda": torch.cuda.is_initialized(),
            "threads": torch.get_num_threads(),
            "hydra": [get_original_cwd(), HydraConfig.get().overrides.task[-1]],
            "input": sys.stdin.read() + os.read(0, 1).decode(),
            "cwd": os.getcwd(),
            "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
            "random": [random.random(), float(numpy.random.rand())],
            "log": os.readlink("/proc/self/fd/1"),
        }
        Path(self._folder, f"process-{trainer.global_rank}.json").write_text(json.dumps(facts))


class Breaks(L.Callback):
    """Raises at the start of an epoch of a run with this seed.

    It stops raising when a file `mended` is in the current folder.
    """

    def __init__(self, *, seed: int, word: str, epoch: int = 0) -> None:
        self._seed = seed
        self._word = word
        self._epoch = epoch

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        is_this = (
            f"\nseed: {self._seed}\n" in Path(trainer.default_root_dir, "config.yaml").read_text()
        )
        if is_this and trainer.current_epoch == self._epoch and not Path("mended").exists():
            raise RuntimeError(self._word)


class SendsSignal(L.Callback):
    """Sends a signal to the process of a rank, once, in the first call of `hook` after `step`.

    `flushes` saves all loggers before.
    """

    def __init__(
        self, *, hook: str, step: int, rank: int = 0, number: str = "SIGKILL", flushes: bool = False
    ) -> None:
        self._step = step
        self._rank = rank
        self._number = signal.Signals[number]
        self._flushes = flushes
        setattr(self, hook, self._send)

    def _send(self, trainer: L.Trainer, *more: Any) -> None:
        once = Path(trainer.default_root_dir, "signalled")
        if (
            trainer.global_rank == self._rank
            and trainer.global_step == self._step
            and not once.exists()
        ):
            once.touch()
            for logger in trainer.loggers if self._flushes else ():
                logger.save()
            os.kill(os.getpid(), self._number)


def ends_after(step: int, number: str, rank: int = 0) -> str:
    """The override that sends a signal to a rank after a step."""
    settings = f"hook:on_train_batch_end,step:{step},rank:{rank},number:{number}"
    return f"+callbacks.ends={{_target_:tests.support.callbacks.SendsSignal,{settings}}}"


class HoldsCheckpoints(L.Callback):
    """Writes only the first bytes of checkpoints of `step`, until the process was killed once."""

    def __init__(self, *, step: int) -> None:
        self._step = step

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        save = torch.save

        def held(checkpoint: Any, file: Any) -> None:
            if (
                checkpoint["global_step"] == self._step
                and not Path(trainer.default_root_dir, "signalled").exists()
            ):
                file.write(b"half a checkpoint")
                file.flush()
                threading.Event().wait()
            save(checkpoint, file)

        torch.save = held


class Removes(L.Callback):
    """Removes the run folder after a step."""

    def __init__(self, *, step: int) -> None:
        self._step = step

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if trainer.global_step == self._step and trainer.is_global_zero:
            shutil.rmtree(trainer.default_root_dir)


class SlowAtFirst(L.Callback):
    """Adds `step_s` to each step of a run that is not resumed.

    A test then has time to stop the run.
    """

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if trainer.ckpt_path is None and "SLURM_RESTART_COUNT" not in os.environ:
            time.sleep(self._step_s)


class NeverWaits(L.Callback):
    """Makes torch raise where the host waits for a GPU in a step or in an evaluated batch.

    This includes steps that are logged. The first three steps, in which DDP lays out its buckets
    and CUDA graphs are captured, and the last batch of a pass may wait.
    """

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step + 1
        _may_wait(step <= 3 or trainer.is_last_batch)

    def on_validation_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        _may_wait(batch_idx + 1 == trainer.num_val_batches[0])

    def on_test_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        _may_wait(batch_idx + 1 == trainer.num_test_batches[0])

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        _may_wait(True)


class NotesGraphs(L.Callback):
    """Writes after each batch of rank 0 how many keys have CUDA graphs."""

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, Classifier)
        found = (
            pl_module._graphed._graphs.values()
            if isinstance(pl_module._graphed, GraphedModule)
            else ()
        )
        if trainer.is_global_zero:
            with open(Path(trainer.default_root_dir, "graphs"), "a") as file:
                file.write(f"{sum(graphs is not None for graphs in found)}\n")


class CountsLaunches(L.Callback):
    """Writes into the run folder what a pretended GPU launches from batch to batch.

    These are the numbers of kernels, copies and graphs.
    """

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._counts: list[int] = []

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._counts.append(torch.ops.pretended_gpu.num_launches())

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        steps = [after - before for before, after in itertools.pairwise(self._counts)]
        Path(trainer.default_root_dir, "launches.json").write_text(json.dumps(steps))


def _may_wait(may: bool) -> None:
    torch.cuda.set_sync_debug_mode("default" if may else "error")


class Scales(L.Callback):
    """Lets the scale of a float16 training grow early, and writes it after each step."""

    def __init__(self, *, growth_interval: int) -> None:
        self._growth_interval = growth_interval

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._step = trainer.global_step
        assert isinstance(pl_module, Classifier)
        assert pl_module.loss_scale is not None
        pl_module.loss_scale._scaler.set_growth_interval(self._growth_interval)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, Classifier)
        assert pl_module.loss_scale is not None
        if trainer.is_global_zero and trainer.global_step > self._step:
            self._step = trainer.global_step
            with open(Path(trainer.default_root_dir, "scales"), "a") as file:
                file.write(f"{pl_module.loss_scale._scaler.get_scale()}\n")


SEES = "+callbacks.sees={_target_:tests.support.callbacks.Sees,epoch_s:%s}"


class Impatient(L.Callback):
    """Has the progress of a long epoch logged after 0.1 s and then every second."""

    def __init__(self) -> None:
        console.FIRST_S, console.EVERY_S = 0.1, 1.0


class Secretive(L.Callback):
    """Takes a token, and fails with it in the message if it begins with `fail`."""

    def __init__(self, *, api_token: str) -> None:
        self._token = api_token

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._token.startswith("fail"):
            raise ValueError(
                f"GET https://h/x?sig={self._token} has failed for api_token={self._token}"
            )
