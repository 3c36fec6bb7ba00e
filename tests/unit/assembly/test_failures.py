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
START = ["The best epoch so far has val/accuracy 0.8125. A new run starts from it with", "init_from={}"]


@pytest.mark.parametrize(
    ("clip", "precision", "losses", "is_first", "advice"),
    [
        ("null", "float32", [], False, [LOWER, "Then try trainer.gradient_clip_norm=1."]),
        ("0.5", "tf32", [], False, [LOWER]),
        ("0.5", "float16", [], False, [LOWER, "Then try trainer.precision=float32."]),
        ("1", "bfloat16", [], True, [*FIRST, "Then try trainer.precision=float32."]),
        ("1", "float64", [9.0], True, [LOWER]),  # the first one after a resume
        ("1", "float32", [2.0, 9.0, float("nan")], False, [LOWER]),  # it has not learned since
        ("1", "float32", [2.0, 1.0, 9.0], False, [LOWER, *START]),
    ],
)
def test_the_advice_after_a_bad_loss_is_that_of_the_run(
    tmp_path: Path, clip: str, precision: str, losses: list[float], is_first: bool, advice: list[str]
) -> None:
    folder = RunFolder(tmp_path)
    if losses:
        for loss in losses:
            folder.append_metrics({"train/loss": loss})
        folder.write_status(monitor="val/accuracy", best=0.8125)
        folder.checkpoints.mkdir()
        folder.last_checkpoint.touch()
        folder.best_checkpoint.touch()
    config = validation.check_config(
        compose.compose_config([*SMALL, "optimizer.lr=1000", f"trainer.gradient_clip_norm={clip}"])
    )
    parts = folder, config, World("", rank=0, local_rank=0, node_rank=0, world_size=1), precision
    happened = ["It is NaN.", *(() if is_first else ["It was 2."])]
    text = failures.explain(NonFiniteLoss("\n".join([*happened, "Samples: [1]"])), *parts)
    assert text == "\n".join([*happened, *(line.format(tmp_path) for line in advice), "", "Samples: [1]"])
    assert failures.explain(NonFiniteGradient("too narrow"), *parts) == "too narrow"
