"""The sections of a configuration whose keys are Lockstep's own, with the type, range and meaning of each key."""

import re
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo
from typing_extensions import TypeIs

from lockstep.system.kinds import LARGEST, Count, NonNegative, Positive, PositiveFloat, Probability

# a plain string is what people read instead of the type and its pattern
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
    """A group of keys; others are errors. A key has the scope in its annotation, else `scope`, that of the section."""

    scope: ClassVar[Scope | None] = None
    # deferred: --help needs no validators
    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            if scope_of(cls, field) is None and not is_section(field.annotation):
                raise TypeError(f"{cls.__name__}.{name} has no scope: its annotation is to say what the key decides")


def scope_of(section_type: type[Section], field: FieldInfo) -> Scope | None:
    """What a key of a section decides; None of a section whose keys decide several things."""
    of_key = (item for item in field.metadata if isinstance(item, Scope))
    of_section = (
        field.annotation.scope if section_type.scope is None and is_section(field.annotation) else section_type.scope
    )
    return next(of_key, of_section)


def is_section(annotation: Any) -> TypeIs[type[Section]]:
    """Whether the annotation of a field is a section, not a value."""
    return isinstance(annotation, type) and issubclass(annotation, Section)


class Augment(Section):
    """Random changes of training images, each drawn per sample, in the order of docs/data.md."""

    scope = Scope.NUMBERS

    crop_padding: Count = Field(description="shift by up to this many pixels, zeros move in; 0 = off")
    flip: bool | Literal["alternating"] = Field(
        description="mirror left-right with probability 1/2, or each image in every second epoch"
    )
    cutout: Count = Field(description="side in pixels of a square set to the mean colour; 0 = off")
    erasing: Probability = Field(description="probability of a rectangle set to the mean colour (Random Erasing)")
    trivial: bool = Field(description="one operation of TrivialAugment, wide space, on each image")
    mixup: NonNegative = Field(
        description="MixUp, lambda of Beta(mixup, mixup); 0 = off; with cutmix, each half the time"
    )
    cutmix: NonNegative = Field(description="CutMix, lambda of Beta(cutmix, cutmix); 0 = off")


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
        description="auto: channels_last, or contiguous where the CPU cannot train the network in it"
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


def _compiled(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError("no regular expression") from error
    return pattern


class ParameterGroup(Section):
    """Parameters of the network, by name; the first entry whose pattern is found in a name counts for it."""

    scope = Scope.NUMBERS

    pattern: Annotated[str, Field(min_length=1), AfterValidator(_compiled), "a regular expression"] = Field(
        description="searched in names such as layer1.0.conv1.weight"
    )
    lr_factor: PositiveFloat = Field(default=1.0, description="multiplies the learning rate of the schedule")
    weight_decay: NonNegative | None = Field(
        default=None, description="of their weights, not of norms and biases; null = that of the optimizer"
    )
    frozen_epochs: Count | None = Field(
        default=0, description="epochs without training; 0 = trained from the start, null = never trained"
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
    environments: dict[EnvironmentName, ExecutionEnvironment | None] = Field(description="by name, in this order")
