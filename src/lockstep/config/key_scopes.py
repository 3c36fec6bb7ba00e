"""Which keys may change when a run or a sweep goes on, and which belong to a whole command: all by their scope."""

from collections.abc import Mapping
from typing import Any

from lockstep.config.schema import Config, fields, section
from lockstep.config.sections import Scope, SetBy, scope_of
from lockstep.config.target_sections import Data, is_ours
from lockstep.system.trees import at

FREE_ON_RESUME = frozenset(Scope) - {Scope.NUMBERS}
FREE_IN_A_SWEEP_THAT_GOES_ON = FREE_ON_RESUME - {Scope.LENGTH}
SAME_FOR_ALL_JOBS = frozenset({Scope.OUTPUT, Scope.SWEEP, Scope.SUBMISSION})
NOT_OF_A_TRAINING = frozenset({Scope.SWEEP, Scope.SUBMISSION})  # what a run computes does not depend on these

# callbacks that may come, go and change on a resume: they only look on, or end a training
FREE_CALLBACKS = (
    "lightning.pytorch.callbacks.DeviceStatsMonitor",
    "lightning.pytorch.callbacks.LearningRateMonitor",
    "lightning.pytorch.callbacks.Timer",
    "lockstep.callbacks.Curves",
    "lockstep.callbacks.Pictures",
)
CHECKPOINT = "lightning.pytorch.callbacks.ModelCheckpoint"  # free where it does not choose the best weights
PLACES = ("root", "file", "cache", "download")  # parameters of Lockstep's own sources: where their files are
EVERYWHERE = ("experiment", "debug")  # groups whose options set keys of any section


def scope(key: str, tree: Mapping[str, Any] | None = None) -> Scope:
    """What `key` decides, in the configuration `tree`, which says whose the targets of its sections are.

    What the schema does not know decides the numbers: a parameter of somebody's own, whatever it is called.
    """
    path = key.split(".")
    for depth, name in enumerate(path):
        section_type = section(tree or {}, path[:depth])
        field = fields(section_type).get(name) if section_type is not None else None
        if section_type is Data and name in PLACES and is_ours(at(tree, ["data", "_target_"])):
            return Scope.PLACE
        if section_type is None or field is None:
            break
        decided = scope_of(section_type, field)
        is_whole = depth == len(path) - 1 or section(tree or {}, path[: depth + 1]) is None
        if decided is not None and is_whole:
            return decided
    return Scope.NUMBERS


def names(*scopes: Scope) -> list[str]:
    """The keys and sections at the top of a configuration that decide this."""
    return [name for name in Config.model_fields if scope(name) in scopes]


def is_set_by_environments(key: str) -> bool:
    """Whether each environment of a benchmark says this key, or the option of this group, itself."""
    *parents, last = key.split(".")
    section_type = section({}, parents)
    field = fields(section_type).get(last) if section_type is not None else None
    return key == "strategy" or (field is not None and SetBy.ENVIRONMENT in field.metadata)
