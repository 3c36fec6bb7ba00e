"""Schema of a configuration, with the type, range and meaning of every key.

Values are only in conf/. This module does not import torch, so that errors are reported
immediately.
"""

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.fields import FieldInfo

from lockstep.config.schema.augmentation import Augment
from lockstep.config.schema.sections import (
    Benchmark,
    Cluster,
    ExecutionEnvironment,
    Launcher,
    Name,
    ParameterGroup,
    Scope,
    Section,
    Strategy,
    Sweep,
    Trainer,
    is_section,
)
from lockstep.config.schema.target_sections import (
    CLASSIFIER,
    LIBRARIES,
    Data,
    Open,
    Optimizer,
    Scheduler,
    Search,
    Sections,
    Target,
    TaskSection,
)
from lockstep.system.trees import KeyPath
from lockstep.system.types import PathText, Positive, Seed

# The user chooses the names of the entries of these sections.
NAMED: dict[str, type[Section]] = {"callbacks": Open, "logger": Open, "parameters": ParameterGroup}
ENVIRONMENTS = ("benchmark", "environments")
# The entries of this section inside another one have a target, and names that the user chooses.
METRICS = ("task", "metrics")
CUSTOM = ("augment", "custom")


class Config(Section):
    """Configuration of one run."""

    name: Annotated[Name | None, Scope.WATCHING] = Field(
        description="suffix of the run folder's name; null = DATA_MODEL"
    )
    seed: Annotated[Seed, Scope.NUMBERS] = Field(
        description="seed of initial weights, order, augmentation and dropout"
    )
    global_batch_size: Annotated[Positive, Scope.NUMBERS] = Field(
        description="images per optimizer step, over all workers"
    )
    eval_batch_size: Annotated[Positive, Scope.PLACE] = Field(
        description="images per validation or test step, over all workers"
    )
    scale_with_workers: Annotated[bool, Scope.NUMBERS] = Field(
        description="multiply batch size and learning rate by the number of workers"
    )
    compile: Annotated[bool, Scope.PLACE] = Field(
        description="compile the network, which can take minutes"
    )
    calibrate: Annotated[bool, Scope.WATCHING] = Field(
        description="calibrate the probabilities on the validation images"
    )
    augment: Augment
    silent: Annotated[bool, Scope.OUTPUT] = Field(description="print only errors")
    resume: Annotated[PathText | None, Scope.PLACE] = Field(description="run folder to resume")
    init_from: Annotated[PathText | None, Scope.NUMBERS] = Field(
        description=(
            "initial weights of a new run: a checkpoint file, "
            "or a run folder for its best checkpoint"
        )
    )
    changed_data: Annotated[Literal["refuse", "accept"], Scope.SUBMISSION] = Field(
        description=(
            "images that differ from those the run was trained on: "
            "report an error, or accept them with a warning"
        ),
    )
    dry_run: Annotated[bool, Scope.SUBMISSION] = Field(
        description="print the script of a job without submitting it"
    )
    launcher: Launcher
    sweep: Sweep
    search: Annotated[Search | None, Scope.SWEEP] = Field(description="set by search=...")
    data: Data
    module: Open
    model: Open
    task: TaskSection
    optimizer: Optimizer
    scheduler: Scheduler
    parameters: Annotated[dict[str, ParameterGroup | None], Scope.NUMBERS] = Field(
        description=(
            "parts of the network with their own learning rate, weight decay or freezing, "
            "under any name"
        )
    )
    strategy: Strategy
    trainer: Trainer
    cluster: Cluster
    callbacks: Annotated[Sections, Scope.NUMBERS]
    logger: Annotated[Sections, Scope.WATCHING]

    @property
    def has_custom_module(self) -> bool:
        """Return whether a custom LightningModule is trained instead of Lockstep's."""
        return self.module.target != CLASSIFIER

    @property
    def has_library_network(self) -> bool:
        """Return whether Lockstep's module trains a network of torchvision or timm."""
        return self.model.target in LIBRARIES and not self.has_custom_module

    @property
    def pretrained(self) -> Any:
        """`model.pretrained`, which may be a file, or None if the network has no such argument."""
        return self.model.arguments().get("pretrained")

    @property
    def head_only(self) -> Any:
        """Value of `model.head_only` of a library network: true, false or each_epoch.

        It is false for other networks.
        """
        return self.has_library_network and self.model.arguments()["head_only"]

    @property
    def run_name(self) -> str:
        """Name of the run: `name`, or data_model, or data_module for a custom module."""
        target = (self.module if self.has_custom_module else self.model).target
        model_name = None if self.has_custom_module else self.model.arguments().get("name")
        network = model_name or target.rpartition(".")[2].lower()
        return self.name or f"{self.data.target.rpartition('.')[2]}_{network}"


class BenchmarkConfig(Config):
    """Configuration of a benchmark: one run in each of several environments."""

    benchmark: Benchmark


# These top-level sections have a target.
CALLED: dict[str, type[Target]] = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if is_section(field.annotation) and issubclass(field.annotation, Target)
}


def root(tree: Any) -> type[Config]:
    return BenchmarkConfig if isinstance(tree, dict) and "benchmark" in tree else Config


def section(tree: Any, path: KeyPath) -> type[Section] | None:
    """Return the section at `path` of a tree, or None if the schema has none there."""
    config_type = root(tree)
    if not path:
        return config_type
    head, parents = path[0], tuple(path[:2])
    if parents == ENVIRONMENTS:
        return ExecutionEnvironment if len(path) == 3 else None
    if head in NAMED:
        return NAMED[head] if len(path) == 2 else None
    if parents in (METRICS, CUSTOM):
        return Open if len(path) == 3 else None
    if head == "search":
        return Search if len(path) == 1 else None
    annotation: Any = config_type
    for key in path:
        annotation = (
            annotation.model_fields[key].annotation
            if is_section(annotation) and key in annotation.model_fields
            else None
        )
    return annotation if is_section(annotation) else None


def fields(section_type: type[Section]) -> dict[str, FieldInfo]:
    """Return the fields of a section by their names in YAML."""
    return {field.alias or name: field for name, field in section_type.model_fields.items()}
