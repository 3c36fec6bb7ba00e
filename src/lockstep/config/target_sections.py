"""The sections that name a callable by `_target_`, but for data: networks, tasks, optimizers, schedules, searches."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from lockstep.config.sections import (
    Dotted,
    Fraction,
    Path,
    Positive,
    PositiveFloat,
    Scope,
    Section,
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

    partial: Literal[True] = Field(default=True, alias="_partial_", description="always true")


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
