"""Small trainings of every kind, and ways to split them."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import timm
import torch

from lockstep.runs.folder import RunFolder
from tests.support.exact import trained
from tests.support.harness import (
    ACCUMULATE_AUGMENT,
    PHOTOGRAPH_AUGMENT,
    SMALL,
    own_network,
)
from tests.support.image_files import write_folder, write_listed
from tests.support.recipes import (
    CROPPED,
    DIGITS,
    FEATURES,
    FOLDER,
    GAN,
    IN_MEMORY,
    INITIAL,
    LISTED,
    MODULES,
    OF_MODULE,
    OPTIMIZATION,
    STREAMED,
    TRANSFORMS,
    TURNED,
    UNEQUAL,
    of_library,
    turned,
)

# -- how a training is split -----------------------------------------------------------------------


class Split(NamedTuple):
    """Workers, their weights (null: equal ones), more overrides, and the threads of each worker.

    With `stop_after` one process begins, and is interrupted in the step after this one; the workers
    resume.
    """

    num_workers: int
    worker_weights: str = "null"
    more: tuple[str, ...] = ()
    num_threads: int = 1
    stop_after: int = 0

    @property
    def overrides(self) -> tuple[str, ...]:
        if self.stop_after:
            return ("trainer.devices=1", *self.more)
        workers = (f"trainer.devices={self.num_workers}",)
        return (*workers, f"trainer.worker_weights={self.worker_weights}", *self.more)

    def __str__(self) -> str:
        worker_weights = (
            "even"
            if self.worker_weights == "null"
            else self.worker_weights.strip("[]").replace(",", "-")
        )
        facts = [text.rpartition(".")[2] for text in self.more]
        facts += [f"{self.num_threads} threads"] * (self.num_threads > 1)
        facts += [f"resumed in step {self.stop_after + 2}"] * (self.stop_after > 0)
        return " ".join([str(self.num_workers), worker_weights, *facts])


ALONE = Split(1)
# Rank 1 has no samples, and rank 2 has none in a last batch of two. Other splits are special cases
# of this one, and stand in a few rows.
UNEVEN = Split(3, "[2,0,1]")
DECODED_BY_TWO = UNEVEN._replace(more=("data.num_workers=2",))  # each sample has other neighbors
RESUMED = Split(3, stop_after=1)  # inside the first epoch
RESUMED_UNEVEN = UNEVEN._replace(stop_after=1)


class Row(NamedTuple):
    """A training, its splits, and the split to compare them with."""

    overrides: Sequence[str]
    splits: Sequence[Split] = (UNEVEN,)
    alone: Split = ALONE
    bound: float = 1e-12  # of the difference


# -- what is trained -------------------------------------------------------------------------------

DECAYED = ("optimizer.weight_decay=0.1", "optimizer.momentum=0.9", "trainer.max_epochs=3")
FILES = "FILES"  # in overrides: the folder with images, lists and a run to start from


def _labeled(kind: str, *overrides: str) -> tuple[str, ...]:
    """Digits with other targets than their class."""
    source = ("data._target_=tests.support.sources.labeled", f"+data.kind={kind}")
    return (*DIGITS, *source, "trainer.limit_train_batches=6", "optimizer.lr=0.01", *overrides)


ROWS = {
    # a last batch of two: empty shards
    "remainder": Row((*SMALL, "data.train_size=66"), (Split(2, "[3,1]"), UNEVEN)),
    # a last batch that takes in a last sample, which batch norm could not normalize alone
    "one more, averaged weights": Row(
        (*own_network("NormalizesSingleValues"), "data.train_size=65", "callbacks=ema")
    ),
    "micro-batches, every augmentation": Row((*SMALL, *ACCUMULATE_AUGMENT), (UNEVEN, RESUMED)),
    "augmentations of photographs, AdamW, incomplete batch dropped": Row(
        (
            *(*SMALL, *PHOTOGRAPH_AUGMENT, "augment.mixup=0.4", "optimizer=adamw"),
            *("data.train_size=66", "data.drop_last=true"),
        )
    ),
    "full width": Row(
        (
            *SMALL,
            "model.width=64",
            "data.train_size=20",
            "data.image_size=8",
            "trainer.max_epochs=1",
        ),
        (Split(2),),
    ),
    # without batch norm micro-batches change nothing, with every augmentation, mixing and dropout:
    # parts of 6 samples, of which the last step of 19 has three, and parts of one sample, of which
    # the last step of 25 has 24
    **{
        f"{size} samples in {parts} parts": Row(
            (*own_network("Unnormalized"), *ACCUMULATE_AUGMENT, f"data.train_size={size}"),
            (UNEVEN._replace(more=(f"trainer.accumulate_grad_batches={parts}",)),),
            Split(1, more=("trainer.accumulate_grad_batches=1",)),
        )
        for size, parts in ((67, 4), (49, 24))
    },
    # -- optimizers, schedules, groups of parameters, initial weights
    # resumed before and after a change of the second epoch
    **{
        name: Row(overrides, (RESUMED_UNEVEN, Split(2, stop_after=5)))
        for name, overrides in OPTIMIZATION.items()
    },
    "weights of other classes": Row(
        (*INITIAL, f"init_from={FILES}/source", "data.num_classes=3", "data.channels=3", "seed=5"),
        (UNEVEN, RESUMED),
    ),
    "a pretrained network of which the head is trained": Row(
        of_library(
            "timm test_resnet",
            f"model.pretrained={FILES}/weights.pth",
            "model.head_only=each_epoch",
        )
    ),
    "features that are computed once": Row(
        of_library("timm test_resnet", f"model.pretrained={FILES}/weights.pth", *FEATURES)
    ),
    # -- networks: activated batch norm, stochastic depth, dropout, squeeze-excitation, attention
    "tied layers": Row(own_network("Tied")),
    # parameters without a gradient on some ranks or on all, in some steps or in all
    "partly used network": Row(
        (*own_network("PartlyUsed"), *DECAYED, "data.train_size=66", "callbacks=ema")
    ),
    # one rank comes later to the first bucket, but not to the sums of batch norm
    "partly used network, two buckets": Row(
        (
            *(text for text in own_network("PartlyUsed") if "hidden" not in text),
            *("+model.hidden=8000", "strategy.bucket_size_mib=1"),
            *("data.image_size=8", "data.train_size=34", "trainer.max_epochs=1"),
        ),
        (Split(2, "[3,1]"),),
    ),
    "partly used network, micro-batches": Row(
        (*own_network("PartlyUsed"), *DECAYED, *ACCUMULATE_AUGMENT)
    ),
    **{
        name: Row(of_library(name, *more))
        for name, more in {
            "torchvision mobilenet_v3_small": ("model.dropout=0.3",),
            "torchvision squeezenet1_1": (),
            "torchvision efficientnet_b0": ("data.train_size=16", "data.image_size=64"),
            "timm test_resnet": ("model.drop_path=0.3",),
            "timm test_efficientnet": ("model.drop_path=0.3",),
            "timm test_convnext": ("model.drop_path=0.3", "model.dropout=0.3"),
            "timm test_vit": (
                "data.image_size=160",
                "data.train_size=10",
                "model.drop_path=0.3",
                "model.dropout=0.3",
            ),
        }.items()
    },
    # -- tasks, losses, metrics, modules
    "class weights, own metric": Row(
        (
            *SMALL,
            "task.class_weights=[1,1,1,2,1,1,1,1,3,1]",
            "+task.metrics.f1={_target_:torchmetrics.classification.MulticlassF1Score}",
            "augment.mixup=0.4",
        )
    ),
    # an epoch repeats images, each time with other draws
    "balanced classes": Row(
        (*UNEQUAL, "data.balance=1", "augment.rotation=20", "augment.mixup=0.4"), (UNEVEN, RESUMED)
    ),
    "balanced Dataset": Row(
        (*TURNED, "data.balance=0.7"), (DECODED_BY_TWO._replace(stop_after=1),)
    ),
    "balanced folder, random crops": Row(
        (*CROPPED, f"data.root={FILES}/unequal", "data.balance=1", "data.cache=null")
    ),
    "balanced class weights": Row(
        (*UNEQUAL, "task.class_weights=balanced", "augment.cutmix=1"), (RESUMED_UNEVEN,)
    ),
    "own loss": Row(
        (
            *SMALL,
            "task.label_smoothing=0",
            "task.loss={_target_:torch.nn.MultiMarginLoss,reduction:none}",
        )
    ),
    "several labels": Row(_labeled("labels", "task=multilabel", "augment.cutmix=1")),
    "numbers, another loss": Row(
        _labeled("number", "task=regression", "task.loss._target_=torch.nn.HuberLoss")
    ),
    "own module, partly used": Row(
        (*OF_MODULE, f"module._target_={MODULES}.PartlyUsed"), (Split(3, "[1,0,2]"),)
    ),
    "own module, two optimizers": Row((*OF_MODULE, *GAN), (Split(3, "[1,0,2]"),)),
    # -- data: Datasets with random transforms
    "Dataset, custom transforms": Row((*TURNED, *TRANSFORMS), (DECODED_BY_TWO,)),
    "Dataset of floats that is split, micro-batches": Row(
        (
            *(text for text in turned(is_float=True) if not text.startswith("data.val=")),
            "trainer.accumulate_grad_batches=2",
        ),
        (DECODED_BY_TWO,),
    ),
    # wherever the pixels are; a cache for each split: its ranks meet there for the first time
    "folder": Row(
        (*FOLDER, f"data.root={FILES}/images"),
        (UNEVEN._replace(more=("data.memory=auto", f"data.cache={FILES}/cache_3")),),
        Split(1, more=IN_MEMORY),
    ),
    "folder, random crops, custom transforms": Row(
        (*CROPPED, *TRANSFORMS, f"data.root={FILES}/images"),
        (
            Split(2, "[3,1]", ("data.memory=auto", f"data.cache={FILES}/cache_2")),
            UNEVEN._replace(more=STREAMED),
        ),
        Split(1, more=IN_MEMORY),
    ),
    "random crops of tensors, custom transforms": Row(
        (*SMALL, "augment.random_resized_crop.scale=[0.3,1.0]", "augment.cutmix=1", *TRANSFORMS),
        (RESUMED_UNEVEN,),
    ),
    "list": Row(
        (*LISTED, f"data.file={FILES}/listed/list.csv"),
        (UNEVEN._replace(more=(f"data.cache={FILES}/cache_of_list",)),),
        Split(1, more=("data.cache=null",)),
    ),
}
# with virtual shards the bits of one worker, in precisions in which people train; in float64 even
# the sums of losses, which are always of float64, are rounded
WITH_THREADS = UNEVEN._replace(num_threads=2)
VIRTUAL = (
    ("micro-batches, every augmentation", "float64", (Split(2, "[3,1]"), RESUMED)),
    ("one more, averaged weights", "float32", (Split(2, "[3,1]"), RESUMED)),
    ("partly used network", "float32", (Split(2, "[3,1]"), RESUMED, Split(1, num_threads=2))),
    ("tied layers", "bfloat16", ()),
    ("augmentations of photographs, AdamW, incomplete batch dropped", "float32", ()),
    ("plateau", "float32", (RESUMED,)),
    ("parameter groups", "float32", (RESUMED,)),
    ("features that are computed once", "float32", (RESUMED,)),
    ("class weights, own metric", "bfloat16", ()),
    ("balanced classes", "float32", (RESUMED,)),
    ("numbers, another loss", "float64", ()),
    ("Dataset, custom transforms", "float32", ()),
    ("folder, random crops, custom transforms", "float32", ()),
    ("timm test_efficientnet", "float32", ()),
    ("timm test_vit", "bfloat16", (Split(1, num_threads=2),)),
)
for name, precision, more_splits in VIRTUAL:
    shards = ("trainer.virtual_shards=4", f"trainer.precision={precision}")
    ROWS[f"{name}, virtual shards in {precision}"] = Row(
        (*ROWS[name].overrides, *ROWS[name].alone.more, *shards),
        (*more_splits, WITH_THREADS),
        bound=0,
    )


def write_weights(file: Path) -> None:
    """Write weights of a network whose batch norms have processed images.

    Their statistics are not those of a new network.
    """
    torch.manual_seed(5)
    net = timm.create_model("test_resnet").train()
    net(torch.rand(8, 3, 32, 32))
    torch.save(net.state_dict(), file)


def write_sources(files: Path) -> RunFolder:
    """Write the images, lists and weights of the rows.

    Returns the run of which some rows have weights.
    """
    write_folder(files / "images", count=35)
    write_folder(files / "unequal", count=35)
    for image in sorted((files / "unequal" / "red fox").rglob("*.png"))[:25]:
        image.unlink()
    write_listed(files / "listed", count=70)
    write_weights(files / "weights.pth")
    return trained(files / "source", INITIAL)
