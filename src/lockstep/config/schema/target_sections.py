"""Sections with a `_target_`, whose signature defines the other keys (signatures.py)."""

import os
import re
import socket
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le
from pydantic import ConfigDict, Field
from typing_extensions import override

from lockstep.config.schema.sections import Dotted, Scope, Section
from lockstep.system.text import expand_path
from lockstep.system.trees import Tree
from lockstep.system.types import Count, NonNegative, PathText, Positive, PositiveFloat, Probability

CLASSIFIER = "lockstep.models.Classifier"
# Each of these targets builds networks of a library.
LIBRARIES = {"lockstep.models.torchvision": "torchvision.models", "lockstep.models.timm": "timm"}
OF_FILES = IMAGE_FOLDER, IMAGE_LIST = ("lockstep.data.image_folder", "lockstep.data.image_list")
VARIABLE = re.compile(r"\$([A-Za-z_]\w*)")
# Lightning's loggers of services, with their package, and with their parameters for the name and
# the id of a run.
SERVICES = {
    "lightning.pytorch.loggers.WandbLogger": ("wandb", "name", "id"),
    "lightning.pytorch.loggers.MLFlowLogger": ("mlflow", "run_name", "run_id"),
    "lightning.pytorch.loggers.CometLogger": ("comet_ml", "name", "experiment_key"),
}
DATA_PATHS = ("root", "file", "cache", "copy_to")  # These paths may contain variables.


def is_url(root: str) -> bool:
    """Return whether a path is a URL, or a chain of URLs."""
    return re.match(r"[A-Za-z][\w+.-]*(://|::.*:)", root) is not None


def is_ours(target: object) -> bool:
    return str(target).startswith("lockstep.")


class Target(Section):
    """A Python callable and its keyword arguments."""

    model_config = ConfigDict(extra="allow")
    scope = Scope.NUMBERS

    # These keys of the section are also arguments of the callable.
    passed: ClassVar[tuple[str, ...]] = ()

    target: Dotted = Field(alias="_target_", description="callable")

    def arguments(self) -> Tree:
        """Return the keyword arguments of the callable.

        The training reads the other keys.
        """
        fields = {name: getattr(self, name) for name in self.passed}
        field_arguments = {name: value for name, value in fields.items() if value is not None}
        return {**field_arguments, **(self.model_extra or {})}


class Open(Target):
    """A callable that is called, or bound to its arguments if the caller adds more."""

    partial: bool = Field(
        default=False, alias="_partial_", description="the caller adds more arguments"
    )


Sections = dict[str, Open | None]  # by a name that the user chooses


class Partial(Target):
    """A callable to which the training adds arguments."""

    partial: Literal[True] = Field(default=True, alias="_partial_", description="always true")


def _is_none(value: Any) -> bool:
    return value is None


class Optimizer(Partial):
    """Optimizer; + adds other parameters of its class."""

    passed = ("lr", "weight_decay")

    lr: PositiveFloat | None = Field(
        default=None, exclude_if=_is_none, description="peak learning rate"
    )
    weight_decay: NonNegative | None = Field(
        default=None,
        exclude_if=_is_none,
        description="weight decay of weights, not of norms and biases",
    )

    @property
    def is_newton(self) -> bool:
        return self.target == "lockstep.models.Newton"


class Scheduler(Partial):
    """Schedule of the learning rate."""

    interval: Literal["step", "epoch"] = Field(
        default="step", alias="_interval_", description="schedule by optimizer step, or by epoch"
    )


class TaskSection(Target):
    """Task of the network."""

    metrics: Sections = Field(
        default={}, description="metrics by name; the first one selects the best checkpoint"
    )


class Data(Target):
    """A source of images."""

    memory: Annotated[Literal["auto", "device", "host", "stream"], Scope.PLACE] = Field(
        default="auto",
        description=(
            "storage of pixels; auto: GPU if they fit, else host memory, "
            "else stream (decoded when needed)"
        ),
    )
    num_workers: Annotated[Literal["auto"] | Positive, Scope.PLACE] = Field(
        default="auto",
        description=(
            "processes per worker that decode streamed images or crop cached ones; "
            "auto: one per core, or a single one for cached images on a CPU"
        ),
    )
    copy_to: Annotated[PathText | None, Scope.PLACE] = Field(
        default=None,
        description=(
            "folder on a disk of the node, e.g. $TMPDIR/data, to which the files are copied; "
            "null = no copy"
        ),
    )
    balance: Probability = Field(
        default=0.0,
        description=(
            "class balance of a training epoch: 0 = as in the data, 1 = equally often; "
            "a class is drawn in proportion to count ** (1 - balance)"
        ),
    )
    drop_last: bool = Field(
        default=False,
        description="leave out an incomplete last global batch of a training epoch",
    )
    near_duplicates: Annotated[Probability, Scope.PLACE] = Field(
        default=0.1,
        description=(
            "maximum distance of two images that `lockstep data check` reports as near-duplicates; "
            "0 = identical images only"
        ),
    )
    folds: Annotated[int, Ge(2), Le(1000)] | None = Field(
        default=None,
        description=(
            "number of cross-validation folds, each the test split of one run; null = none"
        ),
    )
    fold: Count = Field(
        default=0,
        description="fold to test on, from 0; -m data.fold=0,1,2,3,4 trains one run for each",
    )
    shared_groups: Annotated[Literal["refuse", "accept"], Scope.PLACE] = Field(
        default="refuse",
        description="a group or a file in two given splits: report an error, or accept it",
    )
    validate_on_test: bool = Field(
        default=False,
        description=(
            "no validation split: train on its images, and validate on the test images; "
            "nothing is selected by them, so that best.ckpt is the last epoch"
        ),
    )

    @override
    def arguments(self) -> Tree:
        given = super().arguments()
        if not self.validate_on_test:
            return given
        return given | {key: 0 for key in ("val_fraction", "val_size") if key in given}

    @property
    def root(self) -> str | None:
        """Folder or URL of the files, or None for a source without files."""
        root = self.arguments().get("root")
        return root if isinstance(root, str) else None

    @property
    def has_files(self) -> bool:
        """Return whether paths of this section must exist before a run starts."""
        return bool(self.root or self.target == IMAGE_LIST or "$" in str(self.arguments()))

    @property
    def is_remote(self) -> bool:
        return is_url(self.root or "")

    @property
    def names_copy(self) -> bool:
        return bool(self.copy_to or self.is_remote)

    @property
    def is_copied(self) -> bool:
        """True if machines read a copy of the files instead of the files themselves."""
        if self.target not in OF_FILES:
            return False
        has_cache = self.arguments().get("cache") is not None
        return self.copy_to is not None or (self.is_remote and has_cache)

    def resolve_paths(self) -> "Data":
        """Replace ~ and $NAME in the paths by the variables of this process.

        The saved configuration keeps the names of the variables. Raises ValueError, with a line for
        each variable that is not set.
        """
        values = {key: getattr(self, key, None) for key in DATA_PATHS}
        paths = {key: path for key, path in values.items() if isinstance(path, str)}
        errors = []
        for key, path in paths.items():
            for variable in VARIABLE.findall(path):
                if not os.environ.get(variable):
                    errors.append(
                        f"data.{key}={path}: ${variable} is not set on {socket.gethostname()}: "
                        "set it there, or give a path"
                    )
        if errors:
            raise ValueError("\n".join(errors))
        return self.model_copy(update={key: expand_path(path) for key, path in paths.items()})


class Search(Section):
    """A search by Optuna over values of a sweep; search=... chooses a sampler."""

    scope = Scope.SWEEP

    num_trials: Positive = Field(description="number of trials, pruned ones included")
    sampler: Open = Field(description="a sampler of optuna.samplers")
    pruner: Open | None = Field(
        description="a pruner of optuna.pruners, called after every epoch; null = no pruning"
    )


def targets(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Tree]]:
    """Yield the path and value of every section with a `_target_`, including nested ones."""
    if isinstance(value, dict):
        if isinstance(value.get("_target_"), str):
            yield path, value
        for key, child in value.items():
            yield from targets(child, (*path, key))
    elif isinstance(value, list):
        for i, child in enumerate(value):
            yield from targets(child, (*path, str(i)))


def named_callables(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield (key, dotted name) of every `_target_`."""
    for path, value in targets(tree):
        yield ".".join([*path, "_target_"]), value["_target_"]
