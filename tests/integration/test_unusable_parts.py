"""Images, networks and schedules that a training refuses before its first step."""

from pathlib import Path

import pytest

from tests.support.commands import lockstep, output_of
from tests.support.exact import refusal
from tests.support.recipes import (
    DIGITS,
    OF_MODULE,
    PLAIN,
    SHORT,
    SOURCES,
    TENSOR,
    TORCHS,
    turned,
)

pytestmark = pytest.mark.full


@pytest.mark.processes
@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        # images
        (
            (*DIGITS, f"{SOURCES}.unmeasured"),
            "data._target_=tests.support.sources.unmeasured returns neither pixels nor statistics",
        ),
        (
            (*DIGITS, *TENSOR, "+data.memory=stream"),
            "data.memory=stream, but data._target_=",
        ),
        (
            (*DIGITS, *TENSOR, "+data.is_float=true", "augment.flip=true"),
            "augment.flip=true, augment.cutout=4 needs uint8 images",
        ),
        (
            (*DIGITS, *TENSOR, "augment.crop_padding=8", "augment.crop_border=reflect"),
            "augment.crop_padding=8 reflects more",
        ),
        (
            (*DIGITS, *TENSOR, "augment.cutout=9", "augment.cutout_inside=true"),
            "augment.cutout=9 does not fit",
        ),
        (
            (
                *DIGITS,
                *TENSOR,
                "+augment.custom.x={_target_:tests.support.transforms.draw_elsewhere,"
                "_partial_:true}",
            ),
            "augment.custom.x changes the same images differently",
        ),
        (turned(broken=5), "data.train: sample 5 cannot be made"),
        (turned(count=0), "data.train (Turned) has no samples"),
        (
            (
                *(text for text in turned() if not text.startswith("model.")),
                *("model=torchvision", "model.name=shufflenet_v2_x0_5", "model.head_only=true"),
            ),
            "model.head_only=true",  # features are those of images that stay as they are
        ),
        # custom modules
        (
            (
                *(*OF_MODULE, *PLAIN),
                *("callbacks.checkpoint.monitor=val/f1", "callbacks.checkpoint.mode=max"),
            ),
            "is not logged by module._t",
        ),
        ((*OF_MODULE, "module._target_=torch.nn.Identity"), "it is not a LightningModule"),
        # parts of the network and schedules
        (
            ("data=digits", "model.width=2", "global_batch_size=1"),
            " (one image: raise global_batch_size)",
        ),
        (
            (*SHORT, "+parameters.head={pattern:fcc}"),
            "config error: parameters.head.pattern=fcc matches no parameter",
        ),
        (
            (*SHORT, "+parameters.all={pattern:weight}", "+parameters.head={pattern:fc.weight}"),
            "config error: parameters.head.pattern=fc.weight matches only what parameters.all "
            "matches before it",
        ),
        (
            (*SHORT, "+parameters.norm={pattern:bn1,weight_decay:0.1}"),
            "config error: parameters.norm.pattern=bn1 matches norms and biases only",
        ),
        (
            (*SHORT, "+parameters.all={pattern:'.',frozen_epochs:null}"),
            "config error: parameters freezes the whole network",
        ),
        (
            (*SHORT, "model._target_=torchvision.models.resnet18"),
            "config error: model._target_=torchvision.models.resnet18: ",
        ),
        (
            (
                *SHORT,
                "scheduler=constant",
                f"scheduler._target_={TORCHS}.CosineAnnealingWarmRestarts",
                "+scheduler.T_0=0",
            ),
            f"config error: scheduler._target_={TORCHS}.CosineAnnealingWarmRestarts: ",
        ),
    ],
)
def test_unusable_part_refused(tmp_path: Path, overrides: tuple[str, ...], error: str) -> None:
    assert error in refusal(tmp_path / "run", overrides)


@pytest.mark.processes
def test_evaluated_without_transforms(tmp_path: Path) -> None:
    """An evaluation neither needs nor calls the code of custom transforms."""
    code = tmp_path / "brighter.py"
    code.write_text("def brighter(image):\n    return image + 1\n")
    custom = "+augment.custom.x={_target_:brighter.brighter,_partial_:true}"
    settings = ("data=digits", "model.width=2", "trainer.max_epochs=1", "strategy=cpu")
    output_of(tmp_path, "train", *settings, custom)
    code.unlink()
    assert "calibration: temperature" in output_of(tmp_path, "eval", "latest")
    code.write_text("def brighter(image):\n    return 0\n")
    resumed = lockstep(tmp_path, "train", "resume=outputs/latest", "trainer.max_epochs=2")
    assert resumed.returncode == 2, resumed.stdout
    assert "augment.custom.x returns a int" in resumed.stderr
