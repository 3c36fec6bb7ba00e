"""Types, ranges and meaning of every configuration key. Values live in conf/ alone.

Light to import: no torch, so that a fault in the configuration answers at once.
"""

from collections.abc import Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag
from pydantic.fields import FieldInfo
from typing_extensions import TypeIs

LARGEST = 2**31 - 1  # what SLURM, process groups and kernels count to
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Seed = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, lt=1)]
Alpha = Annotated[float, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
# a plain string is what people read instead of the type and its pattern
Path = Annotated[str, Field(min_length=1), "a path"]
Name = Annotated[str, Field(pattern=r"^[\w.=+-]+$"), "text of letters, digits and _.=+-"]
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w-]*$")]
Command = Annotated[str, Field(pattern=r"\S"), "a command line"]
Word = Annotated[str, Field(pattern=r"^\S+$"), "a word"]
Line = Annotated[str, Field(pattern=r"^[^\n]*\S[^\n]*$"), "a line of text"]
Url = Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+([/?#]\S*)?$"), "an http(s) URL, no user in it"]
Interface = Annotated[str, Field(min_length=1), "a network interface"]
Variable = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
Variables = Annotated[dict[Variable, str | int], "{NAME:value,...}, names in capitals"]
Dotted = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"), "a name like package.module.Class"]


class Scope(Enum):
    """What a key decides; who may change it, and when, follows from that (key_scopes.py)."""

    NUMBERS = "the numbers a run computes"
    LENGTH = "how long it is trained"
    PLACE = "where it is computed, and how fast"
    WATCHING = "what is watched and kept of it"
    OUTPUT = "what the command says"
    SWEEP = "how the trials of one command go together, and who hears of their end"
    SUBMISSION = "where the command has its runs trained"
    BENCHMARK = "what `lockstep benchmark` does"


class SetBy(Enum):
    """Who sets a key in place of the command line."""

    ENVIRONMENT = "each environment of a benchmark"


class Section(BaseModel):
    """A group of keys; others are faults. A key has the scope in its annotation, else `scope`, that of the section."""

    scope: ClassVar[Scope | None] = None
    # deferred: --help needs no validators
    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            if scope_of(cls, field) is None and not _is_section(field.annotation):
                raise TypeError(f"{cls.__name__}.{name} has no scope: its annotation is to say what the key decides")


def scope_of(found: type[Section], field: FieldInfo) -> Scope | None:
    """What a key of a section decides; None of a section whose keys decide several things."""
    of_key = (item for item in field.metadata if isinstance(item, Scope))
    of_section = field.annotation.scope if found.scope is None and _is_section(field.annotation) else found.scope
    return next(of_key, of_section)


def _is_section(annotation: Any) -> TypeIs[type[Section]]:
    return isinstance(annotation, type) and issubclass(annotation, Section)


class Augment(Section):
    """Random changes of training images, each drawn per sample, in the order of data/transforms/augment.py."""

    scope = Scope.NUMBERS

    crop_padding: Count = Field(description="shift by up to this many pixels, zeros move in; 0 = off")
    flip: bool | Literal["alternating"] = Field(
        description="mirror left-right with probability 1/2, or each image in every second epoch"
    )
    cutout: Count = Field(description="side in pixels of a square set to the mean colour; 0 = off")
    erasing: Probability = Field(description="probability of a rectangle set to the mean colour (Random Erasing)")
    trivial: bool = Field(description="one operation of TrivialAugment, wide space, on each image")
    mixup: Alpha = Field(description="MixUp, lambda of Beta(mixup, mixup); 0 = off; with cutmix, each half the time")
    cutmix: Alpha = Field(description="CutMix, lambda of Beta(cutmix, cutmix); 0 = off")


class Strategy(Section):
    """How the devices work together."""

    name: Annotated[Literal["auto", "single_device", "cpu", "ddp"], Scope.PLACE, SetBy.ENVIRONMENT] = Field(
        description="set by strategy=..."
    )
    process_group_backend: Annotated[Literal["auto", "nccl", "gloo"], Scope.PLACE] = Field(
        description="auto: nccl on GPUs, gloo on CPUs"
    )
    timeout_s: Annotated[int, Scope.PLACE] = Field(
        ge=5, le=LARGEST, description="a collective that takes more seconds than this ends the run"
    )
    bucket_size_mib: Annotated[Positive, Scope.PLACE] = Field(description="gradients travel in buckets of so many MiB")
    gradient_dtype: Annotated[Literal["same", "bfloat16"], Scope.NUMBERS] = Field(
        description="what gradients travel as; bfloat16 halves the traffic and rounds"
    )
    interface: Annotated[Interface | None, Scope.PLACE] = Field(
        description="network that workers talk over, e.g. ib0; null = they choose"
    )
    variables: Annotated[Variables, Scope.PLACE] = Field(
        description="set before workers talk: +strategy.variables.NCCL_DEBUG=INFO"
    )


class Trainer(Section):
    """How long, on what, and how exactly."""

    max_epochs: Annotated[Positive, Scope.LENGTH] = Field(description="epochs to train")
    devices: Annotated[Literal["auto"] | Positive | list[Count], Scope.PLACE, SetBy.ENVIRONMENT] = Field(
        description="workers on each node: auto, a number, or GPU numbers [0,2]"
    )
    process_limit: Annotated[Literal["auto"] | Positive, Scope.PLACE] = Field(
        description="most processes on a machine without GPUs; auto: 16 for each core, 0.5 GiB for each worker"
    )
    num_nodes: Annotated[Positive, Scope.PLACE, SetBy.ENVIRONMENT] = Field(
        description="machines, started by torchrun or srun"
    )
    loads: Annotated[list[Count] | None, Scope.PLACE, SetBy.ENVIRONMENT] = Field(
        description="relative share of each worker, e.g. [2,1,1,0]; null = even"
    )
    precision: Annotated[Literal["auto", "bfloat16", "tf32", "float32", "float64"], Scope.NUMBERS] = Field(
        description="bfloat16 = autocast; auto picks it where the hardware has it; tf32 = float32 multiplied in short"
    )
    memory_format: Annotated[Literal["auto", "channels_last", "contiguous"], Scope.PLACE] = Field(
        description="auto: channels_last, or contiguous where a CPU without AVX512 cannot train the network in it"
    )
    deterministic: Annotated[bool, Scope.PLACE] = Field(
        description="only deterministic kernels: same bits on the same hardware"
    )
    accumulate_grad_batches: Annotated[Positive, Scope.NUMBERS] = Field(
        description="micro-batches a global batch is cut into"
    )
    gradient_clip_norm: Annotated[PositiveFloat | None, Scope.NUMBERS] = Field(
        description="largest L2 norm of the gradient; null = no limit"
    )
    log_every_n_steps: Annotated[Positive, Scope.WATCHING] = Field(
        description="optimizer steps between two points of a curve"
    )
    check_val_every_n_epoch: Annotated[Positive, Scope.NUMBERS] = Field(description="epochs between validations")
    max_time_s: Annotated[PositiveFloat | None, Scope.PLACE, SetBy.ENVIRONMENT] = Field(
        description="stop in good order after training so many seconds, anew on each resume"
    )
    limit_train_batches: Annotated[Positive | None, Scope.NUMBERS] = Field(
        description="only so many micro-batches an epoch"
    )
    limit_val_batches: Annotated[Positive | None, Scope.NUMBERS] = Field(description="only so many validation batches")
    limit_test_batches: Annotated[Positive | None, Scope.NUMBERS] = Field(description="only so many test batches")
    overfit_batches: Annotated[Count, Scope.NUMBERS] = Field(
        description="train, validate and test on the first so many global batches; 0 = off"
    )
    profiler: Annotated[Literal["simple", "advanced", "pytorch"] | None, Scope.WATCHING] = Field(
        description="Lightning's profiler"
    )


class Notify(Section):
    """What hears of the end of a run, with JSON on its standard input or as a POST."""

    scope = Scope.SWEEP

    command: Command | None = Field(description="run without a shell; LOCKSTEP_RUN, _STATE and _REASON are set")
    url: Url | None = Field(description="gets a POST; whatever stands in it is kept in config.yaml")
    timeout_s: Annotated[float, Field(gt=0, le=600)] = Field(description="seconds each of the two may take")


class Cluster(Section):
    """Where the run is trained: a job has trainer.num_nodes nodes."""

    scope = Scope.SUBMISSION

    name: Literal["none", "local", "slurm"] = Field(description="set by cluster=...")
    partition: Word | None = Field(description="SLURM's partition; null = its default, as in the next two")
    account: Word | None = Field(description="who pays")
    qos: Word | None = Field(description="quality of service")
    time_min: Positive | None = Field(description="time limit in minutes, after which the job is requeued")
    memory_gib: PositiveFloat | None = Field(description="GiB of memory on each node; null = SLURM's default")
    cpus_per_worker: Positive | None = Field(description="cores for each worker; null = SLURM's default")
    gpus_per_node: Count | None = Field(
        description="null = one for each worker, none with strategy=cpu; 0 = SLURM is not asked for GPUs"
    )
    constraint: Line | None = Field(description="what a node must have")
    sbatch: list[Line] = Field(description="other options of sbatch, e.g. [--exclusive,'--reservation=class']")
    setup: list[Line] = Field(description="shell lines before the training, e.g. [module load cuda]")
    container: Line | None = Field(
        description="what stands before python, e.g. 'apptainer exec --nv image.sif'; python is then the container's"
    )
    warn_s: Annotated[int, Field(ge=1, le=65535)] = Field(
        description="seconds before the time limit at which the run saves and is requeued"
    )
    max_requeues: Count = Field(description="a job that was requeued more often stays stopped")
    parallel: Positive | None = Field(description="jobs of a sweep that run at the same time; null = all")


class Launcher(Section):
    """How the trials of a sweep (-m) share this machine."""

    scope = Scope.SWEEP

    mode: Literal["parallel", "sequential"] = Field(
        description="parallel: trials side by side, each with devices of its own; sequential: one at a time, with all"
    )
    parallel: Literal["auto"] | Positive = Field(
        description="trials at once, at most; auto: as many as there are GPUs or cores"
    )


class Sweep(Section):
    """The trials of one command; the same command again goes on with them."""

    scope = Scope.SWEEP

    name: Name | None = Field(description="end of the folder's name, and what finds it again; null = the same command")
    max_failed: Count | None = Field(description="more failed trials than this stop the others; null = no limit")
    test: Literal["best", "all", "none"] = Field(description="which trials are measured on the test set")


class ExecutionEnvironment(Section):
    """Where one training of a benchmark runs."""

    scope = Scope.BENCHMARK

    strategy: Literal["cpu", "single_device", "ddp"] = Field(
        description="cpu = processes on the CPU; single_device = one GPU; ddp = data-parallel GPUs"
    )
    devices: Literal["all"] | Positive = Field(
        description="workers; all = every GPU, or a process per core, and at least two"
    )
    scale_with_workers: bool = Field(description="multiply batch size and learning rate by the number of workers")


class Benchmark(Section):
    """Read by `lockstep benchmark` alone."""

    scope = Scope.BENCHMARK

    budget_s: PositiveFloat = Field(description="seconds of training in each environment")
    probe_s: PositiveFloat = Field(description="seconds of measuring single steps, at most, after the training")
    probe_steps: Annotated[int, Field(ge=3, le=LARGEST)] = Field(
        description="pairs of steps, with and without communication"
    )
    environments: dict[EnvironmentName, ExecutionEnvironment | None] = Field(description="by name, in this order")


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
        """What the source gets; where its pixels live is not its business."""
        return {key: value for key, value in super().arguments().items() if key != "memory"}


class OpenData(Data):
    """A source of the user's own."""

    model_config = ConfigDict(extra="allow")
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


class ImageFolder(Files):
    """A folder per class."""

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
        """What the source gets: it decides whether images are streamed; by how many processes is not its business."""
        arguments = {**super().arguments(), "memory": self.memory}
        return {key: value for key, value in arguments.items() if key != "num_workers"}


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


class Partial(Target):
    """A callable that gets its last arguments from the training."""

    partial: Literal[True] = Field(alias="_partial_", description="always true")


class OpenPartial(Partial):
    """An optimizer or schedule of the user's own."""

    model_config = ConfigDict(extra="allow")


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


KNOWN: dict[str, type[Target]] = {
    "lockstep.data.digits": Digits,
    "lockstep.data.fashion_mnist": Downloaded,
    "lockstep.data.cifar10": Downloaded,
    "lockstep.data.image_folder": ImageFolder,
    "lockstep.data.synthetic": Synthetic,
    "lockstep.models.ResNet18": ResNet18,
    "torch.optim.SGD": Sgd,
    "torch.optim.AdamW": AdamW,
    "lockstep.models.constant": Constant,
    "lockstep.models.one_cycle_linear": OneCycleLinear,
    "lockstep.models.cosine": Cosine,
}
# what a section is when its target is the user's own
FALLBACK: dict[str, type[Target]] = {
    "data": OpenData,
    "model": Open,
    "optimizer": OpenPartial,
    "scheduler": OpenPartial,
}
# sections under names of the user's choice
NAMED = ("callbacks", "logger")
ENVIRONMENTS = ("benchmark", "environments")


def _kind_of_section(section: Any) -> str:
    target = section.get("_target_") if isinstance(section, dict) else getattr(section, "target", None)
    return KNOWN[target].__name__ if target in KNOWN else "other"


_BY_TARGET = Discriminator(_kind_of_section)
DataSection = Annotated[
    Annotated[Digits, Tag("Digits")]
    | Annotated[Downloaded, Tag("Downloaded")]
    | Annotated[ImageFolder, Tag("ImageFolder")]
    | Annotated[Synthetic, Tag("Synthetic")]
    | Annotated[OpenData, Tag("other")],
    _BY_TARGET,
]
ModelSection = Annotated[Annotated[ResNet18, Tag("ResNet18")] | Annotated[Open, Tag("other")], _BY_TARGET]
OptimizerSection = Annotated[
    Annotated[Sgd, Tag("Sgd")] | Annotated[AdamW, Tag("AdamW")] | Annotated[OpenPartial, Tag("other")], _BY_TARGET
]
SchedulerSection = Annotated[
    Annotated[Constant, Tag("Constant")]
    | Annotated[OneCycleLinear, Tag("OneCycleLinear")]
    | Annotated[Cosine, Tag("Cosine")]
    | Annotated[OpenPartial, Tag("other")],
    _BY_TARGET,
]


class Config(Section):
    """One run."""

    name: Annotated[Name | None, Scope.WATCHING] = Field(description="end of the run folder's name; null = data_model")
    seed: Annotated[Seed, Scope.NUMBERS] = Field(description="of initial weights, order, augmentation and dropout")
    global_batch_size: Annotated[Positive, Scope.NUMBERS] = Field(
        description="images of one optimizer step, over all workers"
    )
    eval_batch_size: Annotated[Positive, Scope.PLACE] = Field(
        description="images of one evaluation step, over all workers"
    )
    scale_with_workers: Annotated[bool, Scope.NUMBERS, SetBy.ENVIRONMENT] = Field(
        description="multiply batch size and learning rate by the number of workers"
    )
    label_smoothing: Annotated[Fraction, Scope.NUMBERS] = Field(description="of the training loss")
    compile: Annotated[bool | Literal["reduce-overhead"], Scope.PLACE] = Field(
        description="compile the network, up to minutes at the start; reduce-overhead: also as CUDA graphs, on one GPU"
    )
    flip_test: Annotated[bool, Scope.WATCHING] = Field(
        description="also test with logits averaged over image and mirror image, reported apart"
    )
    augment: Augment
    silent: Annotated[bool, Scope.OUTPUT] = Field(description="say nothing on the terminal but what went wrong")
    notify: Notify
    resume: Annotated[Path | None, Scope.PLACE] = Field(description="run folder to go on with")
    dry_run: Annotated[bool, Scope.SUBMISSION] = Field(
        description="with a cluster: print the script that would be submitted, and leave nothing"
    )
    launcher: Launcher
    sweep: Sweep
    search: Annotated[Search | None, Scope.SWEEP] = Field(description="set by search=...")
    data: Annotated[DataSection, Scope.NUMBERS]
    model: Annotated[ModelSection, Scope.NUMBERS]
    optimizer: Annotated[OptimizerSection, Scope.NUMBERS]
    scheduler: Annotated[SchedulerSection, Scope.NUMBERS]
    strategy: Strategy
    trainer: Trainer
    cluster: Cluster
    callbacks: Annotated[dict[str, Open | None], Scope.NUMBERS]
    logger: Annotated[dict[str, Open | None], Scope.WATCHING]

    @property
    def run_name(self) -> str:
        """What a run is called where it has no name of its own: data_model."""
        return self.name or f"{_last(self.data.target)}_{_last(self.model.target).lower()}"


def _last(target: str) -> str:
    return target.rpartition(".")[2]


class BenchmarkConfig(Config):
    """One run for each of several environments."""

    benchmark: Benchmark


# -- questions about a key ---------------------------------------------------------------------------------------------


def root(tree: Any) -> type[Config]:
    """The schema of a whole tree."""
    return BenchmarkConfig if isinstance(tree, dict) and "benchmark" in tree else Config


def section(tree: Any, path: Sequence[str]) -> type[Section] | None:
    """The section whose keys stand below `path` in a tree; None where the schema knows none."""
    whole = root(tree)
    if not path:
        return whole
    head = path[0]
    if tuple(path[:2]) == ENVIRONMENTS:
        return ExecutionEnvironment if len(path) == 3 else None
    if head in NAMED:
        return Open if len(path) == 2 else None
    if len(path) > 1:
        return None
    if head in FALLBACK:
        value = tree.get(head)
        target = value.get("_target_") if isinstance(value, dict) else None
        return KNOWN.get(target, FALLBACK[head]) if isinstance(target, str) else FALLBACK[head]
    found = whole.model_fields[head].annotation if head in whole.model_fields else None
    if found == (Search | None):
        return Search
    return found if _is_section(found) else None


def fields(found: type[Section]) -> dict[str, FieldInfo]:
    """The fields of a section by the names they have in YAML."""
    return {field.alias or name: field for name, field in found.model_fields.items()}


def kind_of(field: FieldInfo) -> str:
    """Type and range in a few words, e.g. `int >= 1 or null`."""
    return _kind(field.annotation, field.metadata)


def _kind(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    words = [item for item in metadata if isinstance(item, str)]
    if words:
        return words[0]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        nested = [m for item in arguments[1:] for m in (item.metadata if isinstance(item, FieldInfo) else [item])]
        return _kind(arguments[0], nested)
    if origin is Literal:
        return "|".join(str(value).lower() for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join("null" if part is NoneType else _kind(part) for part in arguments)
    if origin is dict:
        return "a section of keys"
    if origin is list:
        return f"[{_kind(arguments[0])}, ...]"
    if annotation is bool:
        return "true|false"
    if _is_section(annotation):
        return "a section of keys"
    low = next((f"{item.ge} <= " for item in metadata if isinstance(item, Ge)), "")
    low = next((f"{item.gt} < " for item in metadata if isinstance(item, Gt)), low)
    high = next((f" < {item.lt}" for item in metadata if isinstance(item, Lt)), "")
    high = next((f" <= {item.le}" for item in metadata if isinstance(item, Le) and item.le != LARGEST), high)
    if low and not high:
        number, sign, _ = low.split(" ")
        return f"{annotation.__name__} {sign.replace('<', '>')} {number}"
    return f"{low}{annotation.__name__}{high}"
