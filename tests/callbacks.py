"""Callbacks that make things happen at a certain moment of a training."""

import os
import signal

import lightning as L
from lightning.pytorch.callbacks import Callback


class Terminated(Callback):
    """SIGTERM to one rank before its first step, or before its test."""

    def __init__(self, rank: int, *, in_test: bool) -> None:
        self._rank = rank
        self._in_test = in_test

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._send(trainer, is_now=not self._in_test)

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._send(trainer, is_now=self._in_test)

    def _send(self, trainer: L.Trainer, *, is_now: bool) -> None:
        if is_now and trainer.global_rank == self._rank:
            os.kill(os.getpid(), signal.SIGTERM)
