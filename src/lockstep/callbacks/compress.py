"""Gradients that travel in fewer bits than they are computed in."""

from typing import Any

import lightning as L
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel


class CompressGradients(L.Callback):
    """Has DDP send gradients as bfloat16. DDPStrategy's own `ddp_comm_hook` is passed over where there is no GPU."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Register the hook once the model is wrapped."""
        model: Any = trainer.strategy.model
        if isinstance(model, DistributedDataParallel):
            model.register_comm_hook(None, bf16_compress_hook)
