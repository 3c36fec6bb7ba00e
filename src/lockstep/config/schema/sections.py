"""Sections of a configuration whose keys are all Lockstep's own.

Each key has its type, range and meaning.
"""

import re
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo
from typing_extensions import TypeIs

from lockstep.system.types import (
    MAX_INTEGER,
    Count,
    NonNegative,
    Positive,
    PositiveFloat,
)

# A plain string in an annotation replaces the type and its pattern in help and errors.
Name = Annotated[str, Field(pattern=r"^[\w.=+-]+$"), "text of letters, digits and _.=+-"]
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w-]*$")]
Word = Annotated[str, Field(pattern=r"^\S+$"), "a word"]
Line = Annotated[str, Field(pattern=r"^[^\n]*\S[^\n]*$"), "a line of text"]
Interface = Annotated[str, Field(min_length=1), "a network interface"]
Variable = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
Variables = Annotated[dict[Variable, str | int], "{NAME:value,...}, names in capitals"]
Dotted = Annotated[
    str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"), "a name like package.module.Class"
]


class Scope(Enum):
    """Effect of a key, which decides when the key may change (key_scopes.py)."""

    NUMBERS = "the numbers that a run computes"
    LENGTH = "how long it is trained"
    PLACE = "where it is computed, and how fast"
    WATCHING = "what is recorded of it"
    OUTPUT = "what the command prints"
    SWEEP = "the trials of one command together"
    SUBMISSION = "where the command trains its runs"
    BENCHMARK = "`lockstep benchmark`"


class Section(BaseModel):
    """A group of keys, in which unknown keys are errors.

    The scope of a key is in its annotation. Without one there, it is `scope`, that of the section.
    """

    scope: ClassVar[Scope | None] = None
    # The build of validators is deferred, because --help does not need them.
    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )


def scope_of(section_type: type[Section], field: FieldInfo) -> Scope | None:
    """Return the scope of a key, or None for a section whose keys have different scopes."""
    key_scopes = (item for item in field.metadata if isinstance(item, Scope))
    section_scope = (
        field.annotation.scope
        if section_type.scope is None and is_section(field.annotation)
        else section_type.scope
    )
    return next(key_scopes, section_scope)


def is_section(annotation: Any) -> TypeIs[type[Section]]:
    """Return whether the annotation of a field is a section, not a value."""
    return isinstance(annotation, type) and issubclass(annotation, Section)


class Strategy(Section):
    """Devices and their communication."""

    scope = Scope.PLACE

    name: Literal["auto", "single_device", "cpu", "ddp"] = Field(description="set by strategy=...")
    process_group_backend: Literal["auto", "nccl", "gloo"] = Field(
        description="auto: nccl on GPUs, gloo on CPUs"
    )
    timeout_s: int = Field(
        ge=5,
        le=MAX_INTEGER,
        description="timeout of a collective in seconds, after which the run fails",
    )
    bucket_size_mib: Positive = Field(
        description="size of the gradient buckets of an all-reduce, in MiB"
    )
    interface: Interface | None = Field(
        description="network interface of the workers, e.g. ib0; null = automatic"
    )
    variables: Variables = Field(
        description="environment variables of the workers: +strategy.variables.NCCL_DEBUG=INFO"
    )


class Trainer(Section):
    """Length, devices and precision of the training."""

    scope = Scope.NUMBERS

    max_epochs: Annotated[Positive, Scope.LENGTH] = Field(description="epochs to train")
    devices: Annotated[Literal["auto"] | Positive | list[Count], Scope.PLACE] = Field(
        description="workers on each node: auto, a number, or GPU numbers [0,2]"
    )
    process_limit: Annotated[Literal["auto"] | Positive, Scope.PLACE] = Field(
        description=(
            "maximum number of workers on a machine without GPUs; "
            "auto: 16 per core, and 0.5 GiB of memory each"
        )
    )
    num_nodes: Annotated[Positive, Scope.PLACE] = Field(
        description="number of machines; with devices=auto, torchrun and srun decide"
    )
    worker_weights: Annotated[list[Count] | None, Scope.PLACE] = Field(
        description="relative shard size of each worker, e.g. [2,1,1,0]; null = even"
    )
    virtual_shards: Positive | None = Field(
        description="fixed shards of each micro-batch, for the same bits on up to as many workers; "
        "null = one shard per worker"
    )
    precision: Literal["auto", "bfloat16", "float16", "tf32", "float32", "float64"] = Field(
        description="bfloat16 and float16 = autocast, float16 with a scaled loss; "
        "auto = bfloat16 if the hardware has it; "
        "tf32 = float32 with TF32 matrix products"
    )
    memory_format: Annotated[Literal["auto", "channels_last", "contiguous"], Scope.PLACE] = Field(
        description="memory layout of images; auto: channels_last, or contiguous where oneDNN "
        "computes a layer of the network wrong in it"
    )
    deterministic: Annotated[bool, Scope.PLACE] = Field(
        description="use only deterministic kernels, for the same bits on the same hardware"
    )
    graph: Annotated[Literal["auto"] | bool, Scope.PLACE] = Field(
        description="replay training steps as CUDA graphs; auto: "
        "built-in networks on GPUs, without compile; "
        "true: custom networks too"
    )
    accumulate_grad_batches: Positive = Field(description="micro-batches per global batch")
    gradient_clip_norm: PositiveFloat | None = Field(
        description="maximum L2 norm of the gradient; null = no clipping"
    )
    log_every_n_steps: Annotated[Positive, Scope.WATCHING] = Field(
        description="optimizer steps between two points of a curve"
    )
    check_val_every_n_epoch: Positive = Field(description="epochs between validations")
    max_time_s: Annotated[PositiveFloat | None, Scope.PLACE] = Field(
        description=(
            "stop with a checkpoint after this many seconds of training; "
            "a resume counts from 0 again"
        )
    )
    limit_train_batches: Positive | None = Field(
        description="maximum number of micro-batches per epoch"
    )
    limit_val_batches: Positive | None = Field(description="maximum number of validation batches")
    limit_test_batches: Positive | None = Field(description="maximum number of test batches")
    overfit_batches: Count = Field(
        description="train, validate and test on the first N global batches; 0 = off"
    )
    profiler: Annotated[Literal["simple", "advanced", "pytorch"] | None, Scope.WATCHING] = Field(
        description="Lightning's profiler"
    )


def _compile_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError("not a regular expression") from error
    return pattern


class ParameterGroup(Section):
    """Parameters of the network by name; the first entry whose pattern is in a name applies."""

    scope = Scope.NUMBERS

    pattern: (
        Annotated[
            str, Field(min_length=1), AfterValidator(_compile_pattern), "a regular expression"
        ]
        | None
    ) = Field(
        description=(
            "regular expression, searched in names such as layer1.0.conv1.weight; "
            "null = the last layer"
        )
    )
    lr_factor: PositiveFloat = Field(
        default=1.0, description="factor of the scheduled learning rate"
    )
    weight_decay: NonNegative | None = Field(
        default=None,
        description=(
            "weight decay of weights, not of norms and biases; null = that of the optimizer"
        ),
    )
    frozen_epochs: Count | None = Field(
        default=0,
        description="epochs before training starts; 0 = train from the start, null = never train",
    )


class Cluster(Section):
    """Cluster job that trains the run on trainer.num_nodes nodes."""

    scope = Scope.SUBMISSION

    name: Literal["none", "local", "slurm"] = Field(description="set by cluster=...")
    partition: Word | None = Field(description="SLURM partition; null = the cluster's default")
    account: Word | None = Field(description="SLURM account; null = the cluster's default")
    qos: Word | None = Field(description="SLURM quality of service; null = the cluster's default")
    time_min: Positive | None = Field(
        description="time limit in minutes; the job saves and is requeued warn_s seconds before"
    )
    memory_gib: PositiveFloat | None = Field(
        description="memory per node in GiB; null = SLURM's default"
    )
    cpus_per_worker: Positive | None = Field(description="cores per worker; null = SLURM's default")
    gpus_per_node: Count | None = Field(
        description="GPUs per node; null = one per worker, none with strategy=cpu"
    )
    constraint: Line | None = Field(description="required features of a node")
    sbatch: list[Line] = Field(
        description="additional options of sbatch, e.g. [--exclusive,'--reservation=class']"
    )
    setup: list[Line] = Field(
        description="shell lines before the training, e.g. [module load cuda]"
    )
    container: Line | None = Field(
        description=(
            "command before python, e.g. 'apptainer exec --nv image.sif'; "
            "uses the container's python"
        )
    )
    warn_s: Annotated[int, Field(ge=1, le=65535)] = Field(
        description="seconds before the time limit at which the run saves and is requeued"
    )
    max_requeues: Count = Field(description="maximum number of requeues of a job")


class Launcher(Section):
    """How many trials of a sweep (-m) run at the same time."""

    scope = Scope.SWEEP

    parallel: Literal["auto"] | Positive = Field(
        description=(
            "maximum number of parallel trials; auto: the number of GPUs or cores, "
            "or all jobs of an array"
        )
    )


class Sweep(Section):
    """Trials of one command; repeat the command to resume them."""

    scope = Scope.SWEEP

    name: Name | None = Field(
        description="suffix of the sweep folder, to resume it; null = the same command"
    )
    test: Literal["best", "all", "none"] = Field(description="trials to evaluate on the test set")


class ExecutionEnvironment(Section):
    """Machines and devices of one training of a benchmark."""

    scope = Scope.BENCHMARK

    strategy: Literal["cpu", "single_device", "ddp"] = Field(
        description="cpu = processes on the CPU; single_device = one GPU; ddp = several GPUs"
    )
    devices: Literal["all"] | Positive = Field(
        description=(
            "workers on each machine; all = every GPU, or one process per core, "
            "at least two in total"
        )
    )
    num_nodes: Literal["all"] | Positive = Field(
        default=1,
        description=(
            "number of machines; all = those of the SLURM allocation, or this machine without one"
        ),
    )
    scale_with_workers: bool = Field(
        description="multiply batch size and learning rate by the number of workers"
    )


class Benchmark(Section):
    """Settings of `lockstep benchmark` only."""

    scope = Scope.BENCHMARK

    budget_s: PositiveFloat = Field(description="seconds of training in each environment")
    environments: dict[EnvironmentName, ExecutionEnvironment | None] = Field(
        description="by name, in this order"
    )
