"""Types, ranges and meaning of every configuration key. Values live in conf/ alone.

Light to import: no torch, so that a fault in the configuration answers at once.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

Fraction = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A group of keys; others are faults."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False, protected_namespaces=())


class Augment(Section):
    """Random changes of training images, each drawn per sample."""

    crop_padding: int = Field(ge=0, description="shift by up to this many pixels, zeros move in; 0 = off")
    flip: bool = Field(description="mirror left-right with probability 1/2")
    cutout: int = Field(ge=0, description="side of a square set to the mean colour (pixels); 0 = off")


class Strategy(Section):
    """How the devices work together."""

    name: Literal["auto", "single_device", "cpu", "ddp"] = Field(description="set by strategy=...")
    process_group_backend: Literal["auto", "nccl", "gloo"] = Field(description="auto: nccl on GPUs, gloo on CPUs")
    timeout_s: int = Field(ge=5, description="a collective that takes longer ends the run (seconds)")
    bucket_size_mib: int = Field(ge=1, description="gradients travel in buckets of this size (MiB)")


class Trainer(Section):
    """How long, on what, and how exactly."""

    max_epochs: int = Field(ge=1, description="epochs to train")
    devices: Literal["auto"] | Annotated[int, Field(ge=1)] | list[Annotated[int, Field(ge=0)]] = Field(
        description="workers on each node: auto, a number, or GPU numbers [0,2]"
    )
    num_nodes: int = Field(ge=1, description="machines, started by torchrun or srun")
    loads: list[Annotated[int, Field(ge=0)]] | None = Field(
        description="relative share of each worker, e.g. [2,1,1,0]; null = even"
    )
    precision: Literal["auto", "bfloat16", "float32", "float64"] = Field(
        description="bfloat16 = autocast; auto picks it where the hardware has it"
    )
    deterministic: bool = Field(description="only deterministic kernels: same bits on the same hardware")
    accumulate_grad_batches: int = Field(ge=1, description="micro-batches a global batch is cut into")
    gradient_clip_norm: float | None = Field(gt=0, description="largest L2 norm of the gradient; null = no limit")
    log_every_n_steps: int = Field(ge=1, description="optimizer steps between two points of a curve")
    check_val_every_n_epoch: int = Field(ge=1, description="epochs between validations")
    max_time_s: float | None = Field(gt=0, description="stop in good order after this time (seconds)")
    limit_train_batches: int | None = Field(ge=1, description="only so many micro-batches an epoch")
    limit_val_batches: int | None = Field(ge=1, description="only so many validation batches")
    limit_test_batches: int | None = Field(ge=1, description="only so many test batches")
    overfit_batches: int = Field(
        ge=0, description="train, validate and test on the first so many global batches; 0 = off"
    )
    profiler: Literal["simple", "advanced", "pytorch"] | None = Field(description="Lightning's profiler")


class Target(Section):
    """A section that names a Python callable and its keyword arguments."""

    target: str = Field(alias="_target_", pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$", description="what is called")

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of the callable."""
        return self.model_dump(exclude={"target", "partial"})


class Open(Target):
    """A callable Lockstep has no schema for: its signature says which keys there are."""

    model_config = ConfigDict(extra="allow")
    partial: bool = Field(default=False, alias="_partial_", description="the caller adds more arguments")


class Data(Target):
    """A source of images."""

    memory: Literal["auto", "device", "host"] = Field(description="where pixels live; auto: on the GPU if they fit")

    def arguments(self) -> dict[str, Any]:
        """What the source gets; where its pixels live is not its business."""
        return {key: value for key, value in super().arguments().items() if key != "memory"}


class OpenData(Data):
    """A source of the user's own."""

    model_config = ConfigDict(extra="allow")


class Split(Data):
    """A source that is split by a fixed seed."""

    val_fraction: Fraction = Field(gt=0, description="part of the training images kept for validation")
    split_seed: int = Field(ge=0, description="which images these are")


class Digits(Split):
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels; nothing is downloaded."""

    test_fraction: Fraction = Field(gt=0, description="part of all images kept for the test")


class Downloaded(Split):
    """A data set of torchvision."""

    root: str = Field(min_length=1, description="folder of the files")
    download: bool = Field(description="fetch missing files")


class ImageFolder(Split):
    """A folder per class."""

    val_fraction: Fraction = Field(description="part of the training images kept for validation")
    test_fraction: Fraction = Field(description="part of the training images kept for the test")
    root: str = Field(min_length=1, description="folder of the images")
    image_size: int | None = Field(
        ge=8, description="resize and crop to this square (pixels); null = all have one size"
    )
    channels: Literal[1, 3] = Field(description="1 = grey, 3 = RGB")


class Synthetic(Data):
    """Made-up patterns, for tests and speed measurements."""

    num_classes: int = Field(ge=2, description="classes")
    channels: Literal[1, 3] = Field(description="1 = grey, 3 = RGB")
    image_size: int = Field(ge=4, description="side of the square images (pixels)")
    train_size: int = Field(ge=1, description="training images")
    val_size: int = Field(ge=1, description="validation images")
    test_size: int = Field(ge=1, description="test images")
    seed: int = Field(ge=0, description="which patterns")


class ResNet18(Target):
    """He et al. (2016), for small or large images."""

    width: int = Field(ge=1, description="channels of the first stage; the others have 2, 4, 8 times as many")
    stem: Literal["small", "imagenet"] = Field(description="3x3 stride 1, or 7x7 stride 2 and max-pool")
    shortcut_norm: bool = Field(description="batch norm after the 1x1 shortcuts")
    bias: bool = Field(description="convolutions have a bias")
    dropout: float = Field(ge=0, lt=1, description="before the last layer")
    init: Literal["kaiming", "normal"] = Field(description="kaiming with zeroed last norms, or N(0, 0.01)")


class Partial(Target):
    """A callable that gets its last arguments from the training."""

    partial: Literal[True] = Field(alias="_partial_", description="always true")


class Sgd(Partial):
    """Stochastic gradient descent."""

    lr: float = Field(gt=0, description="peak learning rate")
    momentum: float = Field(ge=0, lt=1, description="")
    nesterov: bool = Field(description="look-ahead momentum")
    weight_decay: float = Field(ge=0, description="on weights, not on norms and biases")


class AdamW(Partial):
    """Loshchilov & Hutter (2019)."""

    lr: float = Field(gt=0, description="peak learning rate")
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)] = Field(
        description="decay of the two moments"
    )
    eps: float = Field(gt=0, description="added to the denominator")
    weight_decay: float = Field(ge=0, description="on weights, not on norms and biases")


class Constant(Partial):
    """One learning rate throughout."""


class OneCycleLinear(Partial):
    """Linear up to the peak, linear down to zero."""

    warmup_fraction: Fraction = Field(description="part of all steps that go up")


class Cosine(Partial):
    """Linear up to the peak, then half a cosine down."""

    warmup_fraction: Fraction = Field(description="part of all steps that go up")
    final_fraction: Fraction = Field(description="of the peak, at the end")


class OpenPartial(Partial):
    """An optimizer or schedule of the user's own."""

    model_config = ConfigDict(extra="allow")


KNOWN: dict[str, type[Target]] = {
    "lockstep.data.sources.digits": Digits,
    "lockstep.data.sources.fashion_mnist": Downloaded,
    "lockstep.data.sources.cifar10": Downloaded,
    "lockstep.data.sources.image_folder": ImageFolder,
    "lockstep.data.sources.synthetic": Synthetic,
    "lockstep.models.resnet.ResNet18": ResNet18,
    "torch.optim.SGD": Sgd,
    "torch.optim.AdamW": AdamW,
    "lockstep.models.optimizers.constant": Constant,
    "lockstep.models.optimizers.one_cycle_linear": OneCycleLinear,
    "lockstep.models.optimizers.cosine": Cosine,
}


def _kind(section: Any) -> str:
    target = section.get("_target_") if isinstance(section, dict) else getattr(section, "target", None)
    return target if target in KNOWN else "other"


DataSection = Annotated[
    Annotated[Digits, Tag("lockstep.data.sources.digits")]
    | Annotated[Downloaded, Tag("lockstep.data.sources.fashion_mnist")]
    | Annotated[Downloaded, Tag("lockstep.data.sources.cifar10")]
    | Annotated[ImageFolder, Tag("lockstep.data.sources.image_folder")]
    | Annotated[Synthetic, Tag("lockstep.data.sources.synthetic")]
    | Annotated[OpenData, Tag("other")],
    Discriminator(_kind),
]
ModelSection = Annotated[
    Annotated[ResNet18, Tag("lockstep.models.resnet.ResNet18")] | Annotated[Open, Tag("other")], Discriminator(_kind)
]
OptimizerSection = Annotated[
    Annotated[Sgd, Tag("torch.optim.SGD")]
    | Annotated[AdamW, Tag("torch.optim.AdamW")]
    | Annotated[OpenPartial, Tag("other")],
    Discriminator(_kind),
]
SchedulerSection = Annotated[
    Annotated[Constant, Tag("lockstep.models.optimizers.constant")]
    | Annotated[OneCycleLinear, Tag("lockstep.models.optimizers.one_cycle_linear")]
    | Annotated[Cosine, Tag("lockstep.models.optimizers.cosine")]
    | Annotated[OpenPartial, Tag("other")],
    Discriminator(_kind),
]


class Config(Section):
    """One run."""

    name: str | None = Field(pattern=r"^[\w.=+-]+$", description="end of the run folder's name; null = data_model")
    seed: int = Field(ge=0, description="of initial weights, order, augmentation and dropout")
    global_batch_size: int = Field(ge=1, description="images of one optimizer step, over all workers")
    eval_batch_size: int = Field(ge=1, description="images of one evaluation step, over all workers")
    scale_with_workers: bool = Field(description="multiply batch size and learning rate by the number of workers")
    label_smoothing: float = Field(ge=0, lt=1, description="of the training loss")
    augment: Augment
    resume: str | None = Field(description="run folder to go on with")
    data: DataSection
    model: ModelSection
    optimizer: OptimizerSection
    scheduler: SchedulerSection
    strategy: Strategy
    trainer: Trainer
    callbacks: dict[str, Open | None]
    logger: dict[str, Open | None]
