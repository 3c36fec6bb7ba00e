"""The sections that name a Python callable by `_target_`: known ones by their schema, others by their signature."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag

from lockstep.config.sections import (
    LARGEST,
    Dotted,
    Fraction,
    Path,
    Positive,
    PositiveFloat,
    PositiveFraction,
    Scope,
    Section,
    Seed,
)


def _check_nested(value: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(value.get("_target_"), str):
        raise ValueError("no _target_")
    return value


Nested = Annotated[dict[str, Any], AfterValidator(_check_nested), "a section of keys with _target_"]


class Target(Section):
    """A section that names a Python callable and its keyword arguments."""

    scope = Scope.NUMBERS

    target: Dotted = Field(alias="_target_", description="what is called")

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of the callable."""
        return self.model_dump(exclude={"target", "partial"})


class Open(Target):
    """A callable Lockstep has no schema for: its signature says which keys there are."""

    model_config = ConfigDict(extra="allow")
    partial: bool = Field(default=False, alias="_partial_", description="the caller adds more arguments")


class Search(Section):
    """A search by Optuna over values of a sweep; search=... chooses a sampler."""

    scope = Scope.SWEEP

    num_trials: Positive = Field(description="trials of the study that finish or are pruned")
    objectives: dict[str, Literal["min", "max"]] | None = Field(
        description="what is optimized: metrics of the best epoch or numbers of summary.json; null = what best.ckpt has"
    )
    sampler: Open = Field(description="a sampler of optuna.samplers")
    pruner: Open | None = Field(description="a pruner of optuna.pruners, asked after every epoch; null = no pruning")


class Data(Target):
    """A source of images."""

    memory: Annotated[Literal["auto", "device", "host"], Scope.PLACE] = Field(
        description="where pixels live; auto: on the GPU if they fit"
    )

    def arguments(self) -> dict[str, Any]:
        """What the source gets; where its pixels live, and how many processes decode them, is not its business."""
        return {key: value for key, value in super().arguments().items() if key not in ("memory", "num_workers")}


class OpenData(Data):
    """A source of the user's own."""

    model_config = ConfigDict(extra="allow")
    memory: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        Literal["auto", "device", "host", "stream"], Scope.PLACE
    ] = Field(
        default="auto",
        description="where pixels live; auto: a tensor on the GPU if it fits, another format as it says itself",
    )
    num_workers: Annotated[Literal["auto"] | Positive, Scope.PLACE] = Field(
        default="auto", description="processes of each worker that decode streamed images; auto: one per core"
    )
    check: Dotted | None = Field(
        default=None, alias="_check_", description="called before torch is imported, raises where data is missing"
    )

    def arguments(self) -> dict[str, Any]:
        """What the source gets, and the function that checks for it."""
        return {key: value for key, value in super().arguments().items() if key != "check"}


class Split(Data):
    """A source that is split by a fixed seed."""

    val_fraction: PositiveFraction = Field(description="part of the training images kept for validation")
    split_seed: Seed = Field(description="which images these are")


class Digits(Split):
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels; nothing is downloaded."""

    test_fraction: PositiveFraction = Field(description="part of all images kept for the test")


class Files(Split):
    """A source that reads files."""

    root: Path = Field(description="folder of the files, or a URL as s3://bucket/flowers or zip://::https://...")
    copy_to: Annotated[Path | None, Scope.PLACE] = Field(
        description="folder on a disk of the node that gets a copy, read instead; null = read the files where they are"
    )
    copy_remove: Annotated[bool, Scope.PLACE] = Field(
        description="remove that copy when the run ends, unless another one uses it"
    )

    def arguments(self) -> dict[str, Any]:
        """What the source gets: the folder to read, copied or not."""
        return {key: value for key, value in super().arguments().items() if key not in ("copy_to", "copy_remove")}


class Downloaded(Files):
    """A data set of torchvision; what is downloaded lies in root, and is copied from there."""

    download: Annotated[bool, Scope.PLACE] = Field(description="fetch missing files")


class Decoded(Split):
    """Image files that are decoded by Lockstep."""

    val_fraction: Fraction = Field(description="part of the training images kept for validation")
    test_fraction: Fraction = Field(description="part of the training images kept for the test")
    image_size: Annotated[int, Field(ge=8, le=LARGEST)] | None = Field(
        description="resize and crop to a square of so many pixels; null = all have one size"
    )
    channels: Literal[1, 3] = Field(description="1 = grey, 3 = RGB")
    cache: Annotated[Path | None, Scope.PLACE] = Field(
        description="folder that keeps the decoded images; null = decode in every run"
    )
    memory: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        Literal["auto", "device", "host", "stream"], Scope.PLACE
    ] = Field(
        description="where pixels live; auto: on the GPU if they fit, else in memory, else stream: decoded when needed"
    )
    num_workers: Annotated[Literal["auto"] | Positive, Scope.PLACE] = Field(
        description="processes of each worker that decode streamed images; auto: one per core"
    )

    def arguments(self) -> dict[str, Any]:
        """What the source gets: it decides whether images are streamed."""
        return {**super().arguments(), "memory": self.memory}


class ImageFolder(Decoded, Files):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A folder per class."""


class ImageList(Decoded):
    """Image files listed in a CSV or Parquet file."""

    file: Path = Field(description="the .csv or .parquet file, with a row for each image")
    root: Path | None = Field(description="folder of the paths in the file; null = that of the file")
    path_column: str = Field(description="name of the column of the paths")
    target_columns: Annotated[list[str], Field(min_length=1), "[str, ...], one or more"] = Field(
        description="names of the columns of what is to be predicted"
    )
    targets: Literal["classes", "numbers"] = Field(
        description="classes: of one column, or several columns of 0 and 1; numbers: predicted as they are"
    )
    split_column: str | None = Field(description="name of the column of train, val or test; null = cut by fractions")


class Dataset(Split):
    """Torch Datasets of the user's own, with any transforms in them."""

    train: Nested = Field(description="training samples, pairs of an input (C, H, W) and a target")
    val: Nested | None = Field(description="validation samples; null = cut off train, with its transforms")
    test: Nested | None = Field(description="test samples; null = cut off train, with its transforms")
    class_names: list[str] | None = Field(
        description="names of the classes, or of the numbers that are predicted; null = `classes` of train"
    )
    mean: list[float] | None = Field(
        description="of each channel of uint8 inputs, in [0, 1]; null = that of up to 4,096 training samples"
    )
    std: list[PositiveFloat] | None = Field(description="standard deviation of each channel, as mean")
    test_fraction: PositiveFraction = Field(description="part of the training samples kept for the test")
    memory: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        Literal["stream"], Scope.PLACE
    ] = Field(description="always stream: samples are made when they are needed")
    num_workers: Annotated[Literal["auto"] | Positive, Scope.PLACE] = Field(
        description="processes of each worker that make samples; auto: one per core"
    )


class Synthetic(Data):
    """Made-up patterns, for tests and speed measurements."""

    num_classes: int = Field(ge=2, le=LARGEST, description="classes")
    channels: Literal[1, 3] = Field(description="1 = grey, 3 = RGB")
    image_size: int = Field(ge=4, le=LARGEST, description="side of the square images in pixels")
    train_size: Positive = Field(description="training images")
    val_size: Positive = Field(description="validation images")
    test_size: Positive = Field(description="test images")
    seed: Seed = Field(description="which patterns")


class ResNet18(Target):
    """ResNet-18 (He et al. 2016), for small or large images."""

    width: Positive = Field(description="channels of the first stage; the others have 2, 4, 8 times as many")
    stem: Literal["small", "imagenet"] = Field(description="3x3 stride 1, or 7x7 stride 2 and max-pool")
    shortcut_norm: bool = Field(description="batch norm after the 1x1 shortcuts")
    bias: bool = Field(description="convolutions have a bias")
    dropout: Fraction = Field(description="before the last layer")
    init: Literal["kaiming", "normal"] = Field(description="kaiming with zeroed last norms, or N(0, 0.01)")


class Training(Target):
    """What trains the network for its task; a LightningModule of the user's can take its place."""


class TaskSection(Target):
    """What the network is trained for."""

    metrics: dict[str, Open | None] = Field(description="what is measured in each pass, by name; the first one decides")

    def arguments(self) -> dict[str, Any]:
        """What the task gets; what is measured besides the loss is not its business."""
        arguments = self.model_dump(by_alias=True, exclude={"target", "metrics"})
        return {key: value for key, value in arguments.items() if not key.startswith("_")}


class OpenTask(TaskSection):
    """A task of the user's own."""

    model_config = ConfigDict(extra="allow")
    metrics: dict[str, Open | None] = Field(
        default={}, description="what is measured in each pass, by name; the first one decides"
    )


class Classification(TaskSection):
    """One class of several."""

    label_smoothing: Fraction = Field(description="of the training loss")
    class_weights: Annotated[list[Annotated[float, Field(ge=0)]] | None, "[0 <= float, ...] or null"] = Field(
        description="what a sample of each class counts; null = all the same"
    )
    loss: Open | None = Field(description="a function (outputs, targets) -> (B,); null = cross-entropy")


class LossTask(TaskSection):
    """A task by its loss: several labels at once, or numbers."""

    loss: Open = Field(description="a function (outputs, targets) -> (B, ...)")


class Library(Target):
    """A network of a library, by its name, fitted to the channels and classes of the data."""

    name: Annotated[str, Field(pattern=r"^[\w.-]+$"), "the name of a network"] = Field(description="which network")
    pretrained: bool | Path = Field(
        description="start with the weights of the library, downloaded once, or with those in a file"
    )
    head_only: bool = Field(description="train the last layer alone")
    dropout: Fraction | None = Field(description="of the network; null = its own")
    drop_path: Fraction | None = Field(description="stochastic depth of the network; null = its own")


class Partial(Target):
    """A callable that gets its last arguments from the training."""

    partial: Literal[True] = Field(alias="_partial_", description="always true")


class OpenPartial(Partial):
    """An optimizer or schedule of the user's own."""

    model_config = ConfigDict(extra="allow")


class OpenSchedule(OpenPartial):
    """A schedule of torch's, or of the user's own."""

    interval: Literal["step", "epoch"] = Field(
        default="step", alias="_interval_", description="stepped after every optimizer step, or after every epoch"
    )

    def arguments(self) -> dict[str, Any]:
        """What the schedule gets; when it is stepped is the training's business."""
        return {key: value for key, value in super().arguments().items() if key != "interval"}


class Sgd(OpenPartial):
    """Stochastic gradient descent; + adds other parameters of torch's."""

    lr: PositiveFloat = Field(description="peak learning rate")
    momentum: Fraction = Field(description="part of the last update that is kept")
    nesterov: bool = Field(description="look-ahead momentum")
    weight_decay: float = Field(ge=0, description="on weights, not on norms and biases")
    fused: bool = Field(description="one kernel for the whole update")


class AdamW(OpenPartial):
    """AdamW (Loshchilov & Hutter 2019); + adds other parameters of torch's."""

    lr: PositiveFloat = Field(description="peak learning rate")
    betas: Annotated[list[Fraction], Field(min_length=2, max_length=2), "two numbers in [0, 1)"] = Field(
        description="decay of the two moments"
    )
    eps: PositiveFloat = Field(description="added to the denominator")
    weight_decay: float = Field(ge=0, description="on weights, not on norms and biases")
    fused: bool = Field(description="one kernel for the whole update")


class Constant(Partial):
    """One learning rate throughout."""


class OneCycleLinear(Partial):
    """Linear up to the peak, linear down to zero."""

    warmup_fraction: Fraction = Field(description="part of all steps that go up")


class Cosine(Partial):
    """Linear up to the peak, then half a cosine down."""

    warmup_fraction: Fraction = Field(description="part of all steps that go up")
    final_fraction: Fraction = Field(description="of the peak, at the end")


CLASSIFIER = "lockstep.models.Classifier"
KNOWN: dict[str, type[Target]] = {
    CLASSIFIER: Training,
    "lockstep.data.digits": Digits,
    "lockstep.data.fashion_mnist": Downloaded,
    "lockstep.data.cifar10": Downloaded,
    "lockstep.data.image_folder": ImageFolder,
    "lockstep.data.image_list": ImageList,
    "lockstep.data.dataset": Dataset,
    "lockstep.data.synthetic": Synthetic,
    "lockstep.models.ResNet18": ResNet18,
    "lockstep.tasks.Classification": Classification,
    "lockstep.tasks.Multilabel": LossTask,
    "lockstep.tasks.Regression": LossTask,
    "lockstep.models.torchvision": Library,
    "lockstep.models.timm": Library,
    "torch.optim.SGD": Sgd,
    "torch.optim.AdamW": AdamW,
    "lockstep.models.constant": Constant,
    "lockstep.models.one_cycle_linear": OneCycleLinear,
    "lockstep.models.cosine": Cosine,
}
# what a section is when its target is the user's own
FALLBACK: dict[str, type[Target]] = {
    "data": OpenData,
    "module": Open,
    "model": Open,
    "task": OpenTask,
    "optimizer": OpenPartial,
    "scheduler": OpenSchedule,
}


def _kind_of_section(section: Any) -> str:
    target = section.get("_target_") if isinstance(section, dict) else getattr(section, "target", None)
    return KNOWN[target].__name__ if target in KNOWN else "other"


_BY_TARGET = Discriminator(_kind_of_section)
DataSection = Annotated[
    Annotated[Digits, Tag("Digits")]
    | Annotated[Downloaded, Tag("Downloaded")]
    | Annotated[ImageFolder, Tag("ImageFolder")]
    | Annotated[ImageList, Tag("ImageList")]
    | Annotated[Dataset, Tag("Dataset")]
    | Annotated[Synthetic, Tag("Synthetic")]
    | Annotated[OpenData, Tag("other")],
    _BY_TARGET,
]
ModuleSection = Annotated[Annotated[Training, Tag("Training")] | Annotated[Open, Tag("other")], _BY_TARGET]
ModelSection = Annotated[
    Annotated[ResNet18, Tag("ResNet18")] | Annotated[Library, Tag("Library")] | Annotated[Open, Tag("other")],
    _BY_TARGET,
]
AnyTaskSection = Annotated[
    Annotated[Classification, Tag("Classification")]
    | Annotated[LossTask, Tag("LossTask")]
    | Annotated[OpenTask, Tag("other")],
    _BY_TARGET,
]
OptimizerSection = Annotated[
    Annotated[Sgd, Tag("Sgd")] | Annotated[AdamW, Tag("AdamW")] | Annotated[OpenPartial, Tag("other")], _BY_TARGET
]
SchedulerSection = Annotated[
    Annotated[Constant, Tag("Constant")]
    | Annotated[OneCycleLinear, Tag("OneCycleLinear")]
    | Annotated[Cosine, Tag("Cosine")]
    | Annotated[OpenSchedule, Tag("other")],
    _BY_TARGET,
]
