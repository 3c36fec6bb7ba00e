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

LOWER = "Lower optimizer.lr=1000 first: divide it by 10 until the loss falls."
FIRST = "If this was the first step, look for NaN in the images, the network and the task instead."


@pytest.mark.parametrize(
    ("clip", "precision", "advice"),
    [
        ("null", "float32", [LOWER, "Then try trainer.gradient_clip_norm=1.", FIRST]),
        ("0.5", "tf32", [LOWER, FIRST]),
        ("0.5", "float16", [LOWER, "Then try trainer.precision=float32.", FIRST]),
    ],
)
def test_the_advice_after_a_bad_loss_is_that_of_the_run(
    tmp_path: Path, clip: str, precision: str, advice: list[str]
) -> None:
    config = validation.check_config(
        compose.compose_config([*SMALL, "optimizer.lr=1000", f"trainer.gradient_clip_norm={clip}"])
    )
    parts = RunFolder(tmp_path), config, World("", rank=0, local_rank=0, node_rank=0, world_size=1), precision
    what = "The loss is not finite in optimizer step 2 (epoch 1, micro-batch 1) on rank 0."
    text = failures.explain(NonFiniteLoss(f"{what}\nSamples: [1]"), *parts)
    assert text == "\n".join([what, *advice, "", "Samples: [1]"])
    assert failures.explain(NonFiniteGradient("too narrow"), *parts) == "too narrow"
