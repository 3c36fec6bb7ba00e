"""What a person reads when the loss of a run is not finite."""

from pathlib import Path

import pytest

from lockstep.assembly import failures
from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.models.step import NonFiniteGradient, NonFiniteLoss
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World
from tests.support.harness import SMALL

FIRST = [
    "No step came before it: the learning rate is not the cause. Look for NaN and",
    "infinite values in the images, lockstep.models.ResNet18 and lockstep.tasks.Classification.",
]
LOWER = "Lower optimizer.lr=1000 first: divide it by 10 until the loss falls."


@pytest.mark.parametrize(
    ("clip", "precision", "step", "advice"),
    [
        ("null", "float32", 2, [LOWER, "Then try trainer.gradient_clip_norm=1."]),
        ("0.5", "tf32", 10, [LOWER]),
        ("0.5", "float16", 9, [LOWER, "Then try trainer.precision=float32."]),
        ("1", "bfloat16", 1, [*FIRST, "Then try trainer.precision=float32."]),
    ],
)
def test_the_advice_after_a_bad_loss_is_that_of_the_run(
    tmp_path: Path, clip: str, precision: str, step: int, advice: list[str]
) -> None:
    config = validation.check_config(
        compose.compose_config([*SMALL, "optimizer.lr=1000", f"trainer.gradient_clip_norm={clip}"])
    )
    parts = RunFolder(tmp_path), config, World("", rank=0, local_rank=0, node_rank=0, world_size=1), precision
    what = f"The loss is not finite in optimizer step {step} (epoch 1, micro-batch 1) on rank 0."
    text = failures.explain(NonFiniteLoss(f"{what}\nSamples: [1]"), *parts)
    assert text == "\n".join([what, *advice, "", "Samples: [1]"])
    assert failures.explain(NonFiniteGradient("too narrow"), *parts) == "too narrow"
