"""What a person reads when the loss of a run is not finite."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lockstep.assembly import failures
from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.distributed.partition import Shard
from lockstep.models.step import NonFiniteGradient, NonFiniteLoss
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World
from tests.support.harness import SMALL

LOWER = "Lower optimizer.lr=1000 first: divide it by 10 until the loss falls."
FIRST = "No step came before it: look for NaN in the images, the network and the task."


@pytest.mark.parametrize(
    ("clip", "precision", "step", "advice"),
    [
        ("null", "float32", 2, [LOWER, "Then try trainer.gradient_clip_norm=1."]),
        ("0.5", "tf32", 10, [LOWER]),
        ("0.5", "float16", 9, [LOWER, "Then try trainer.precision=float32."]),
        ("null", "bfloat16", 1, [FIRST, "Then try trainer.precision=float32."]),
    ],
)
def test_the_advice_after_a_bad_loss_is_that_of_the_run(
    tmp_path: Path, clip: str, precision: str, step: int, advice: list[str]
) -> None:
    config = validation.check_config(
        compose.compose_config([*SMALL, "optimizer.lr=1000", f"trainer.gradient_clip_norm={clip}"])
    )
    parts = RunFolder(tmp_path), config, World("", rank=0, local_rank=0, node_rank=0, world_size=1), precision
    samples: Any = SimpleNamespace(indices=torch.tensor([7]), shard=Shard(0, step, 2, 1, 0, 1, 1))
    text = failures.explain(NonFiniteLoss(step, 0, [samples]), *parts)
    what = f"The loss is not finite in optimizer step {step} (epoch 1, micro-batch 3) on rank 0."
    assert text == "\n".join([what, *advice, "", "Training samples of the shard: [7]"])
    assert failures.explain(NonFiniteGradient("too narrow"), *parts) == "too narrow"
