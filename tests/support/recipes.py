"""Small trainings for the matrix of test_exactness.py.

They have other data, networks and modules than SMALL.
"""

from typing import Any

import yaml

from tests.support.harness import SMALL


def on_data(*overrides: str) -> tuple[str, ...]:
    """SMALL on other data."""
    return (*(text for text in SMALL if not text.startswith("data")), *overrides)


# 42 training images in folders of image_files.write_folder(count=35): batches of 16, 16 and 10
FOLDER = (
    "data=image_folder", "data.image_size=16", "data.val_fraction=0.2", "data.test_fraction=0.2",
    "data.num_workers=1", "model.width=2", "model.dropout=0.2", "trainer.precision=float64",
    "trainer.max_epochs=2", "trainer.log_every_n_steps=1", "global_batch_size=16",
    "eval_batch_size=7", "augment.crop_padding=2", "augment.flip=true", "augment.cutout=4",
    "strategy=cpu", "strategy.timeout_s=300",
)  # fmt: skip
CROPPED = (
    *FOLDER,
    "augment.random_resized_crop.scale=[0.3,1.0]",
    "augment.mixup=0.4",
    "data.crop_percent=0.8",
)
TRANSFORMS = (
    "+augment.custom.noise={_target_:tests.support.transforms.draw_everywhere,"
    "_partial_:true,strength:30}",
    "+augment.custom.pipeline={_target_:albumentations.Compose,transforms:["
    "{_target_:albumentations.GaussNoise,p:0.5},{_target_:albumentations.Rotate,p:0.5}]}",
    "+augment.custom.erase={_target_:torchvision.transforms.v2.RandomErasing}",
)
IN_MEMORY = ("data.cache=null", "data.memory=host")
STREAMED = ("data.memory=stream", "data.cache=null")
LISTED = on_data("data=list", "data.image_size=16", "data.num_workers=1", "data.split_column=split")

# digits by functions of tests/support/sources.py
SOURCES = "data._target_=tests.support.sources"
DIGITS = on_data(
    "data=digits",
    *(f"~data.{key}" for key in ("val_fraction", "test_fraction", "split_seed", "memory")),
)
TENSOR = (f"{SOURCES}.few_digits",)
# 70 digits, of some classes several times as many as of others
UNEQUAL = (*DIGITS, f"{SOURCES}.few_digits")


def turned(**train: Any) -> list[str]:
    """Digits turned at random, as torch Datasets; validation and test are Datasets of their own."""

    def section(**arguments: Any) -> str:
        target = {"_target_": "tests.support.sources.Turned"}
        return yaml.safe_dump({**target, **arguments}, default_flow_style=True, width=1000).strip()

    plain = (text for text in on_data() if not text.startswith("augment"))
    parts = [
        f"data.train={section(**train)}",
        f"data.val={section(**train | {'split': 'val', 'count': 23})}",
    ]
    return [*plain, "data=dataset", *parts, "data.num_workers=1"]


# Lockstep's own changes on top of those of the Dataset; with partners
TURNED = (*turned(), "augment.flip=true", "augment.mixup=0.4")

TORCHS = "torch.optim.lr_scheduler"
SHORT = (
    *SMALL,
    "data.train_size=66",
    "model.width=2",
    "trainer.max_epochs=3",
    "trainer.log_every_n_steps=1",
)
# schedules of every kind, and parts of a network with rules of their own
OPTIMIZATION = {
    "warm restarts": (
        *SHORT,
        "scheduler=constant",
        f"scheduler._target_={TORCHS}.CosineAnnealingWarmRestarts",
        "+scheduler.T_0=3",
    ),
    "schedule of epochs": (
        *SHORT,
        "scheduler=constant",
        f"scheduler._target_={TORCHS}.ExponentialLR",
        "+scheduler.gamma=0.5",
        "+scheduler._interval_=epoch",
    ),
    "plateau": (
        *SHORT,
        "scheduler=constant",
        f"scheduler._target_={TORCHS}.ReduceLROnPlateau",
        "+scheduler.patience=0",
        "+scheduler.factor=0.5",
        "+scheduler.threshold=1.0",
    ),
    "parameter groups": (
        *SHORT,
        "+parameters.head={pattern:'^fc',lr_factor:0.3,weight_decay:0}",
        "+parameters.first={pattern:'^(conv1|bn1)',frozen_epochs:null}",
        "+parameters.middle={pattern:'^layer[12]',frozen_epochs:1}",
        "callbacks=ema",
    ),
}

TINY = (
    *(text for text in SMALL if not text.startswith("model.")),
    "data.train_size=19",
    "data.val_size=5",
    "data.test_size=5",
    "data.image_size=32",
    "global_batch_size=8",
    "trainer.max_epochs=1",
    # last maps of one pixel are normalized by few values, which enlarges what rounding differs in
    "optimizer.lr=0.01",
)


def of_library(network: str, *more: str) -> list[str]:
    """A training of a network by the names of library and network, `timm test_vit`."""
    library, name = network.split(" ")
    return [*TINY, f"model={library}", f"model.name={name}", *more]


FEATURES = (
    "model.head_only=true",
    "augment.crop_padding=0",
    "augment.flip=false",
    "augment.cutout=0",
)

MODULES = "tests.support.custom_modules"
OF_MODULE = (
    *(
        "data=synthetic",
        "data.image_size=8",
        "data.train_size=70",
        "data.val_size=23",
        "data.test_size=31",
    ),
    *(
        "global_batch_size=16",
        "eval_batch_size=10",
        "trainer.max_epochs=2",
        "trainer.precision=float64",
    ),
    # at a rate of 0.1 rounding grows to 1.3e-12 with one seed in five
    *("strategy=cpu", "model.width=2", "optimizer.lr=0.01"),
)
PLAIN = (f"module._target_={MODULES}.Plain",)
GAN = (f"module._target_={MODULES}.Gan", "+module.num_noise=4", "+module.lr=0.001")

# new runs that start with the weights of another one
INITIAL = (*SMALL, "data.train_size=50", "model.width=2", "trainer.max_epochs=1")
