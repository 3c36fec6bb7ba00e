"""Keys that may change on a resume, and keys that apply to a command as a whole.

Both follow from the scope of each key.
"""

from lockstep.config.schema.configuration import Config, fields, section
from lockstep.config.schema.sections import Scope, scope_of
from lockstep.config.schema.target_sections import Data, is_ours
from lockstep.system.trees import Tree, at

FREE_ON_RESUME = frozenset(Scope) - {Scope.NUMBERS}
FREE_IN_A_RESUMED_SWEEP = FREE_ON_RESUME - {Scope.LENGTH}
SAME_FOR_ALL_JOBS = frozenset({Scope.OUTPUT, Scope.SWEEP, Scope.SUBMISSION})
# Keys of these scopes do not change the numbers of a run.
NOT_OF_A_TRAINING = frozenset({Scope.SWEEP, Scope.SUBMISSION})

# A resume may add, remove and change these callbacks, because they only observe or end a training.
FREE_CALLBACKS = (
    "lightning.pytorch.callbacks.DeviceStatsMonitor",
    "lightning.pytorch.callbacks.LearningRateMonitor",
    "lightning.pytorch.callbacks.Timer",
    "lockstep.callbacks.Pictures",
)
# A resume may change this callback unless it chooses the best weights.
CHECKPOINT = "lightning.pytorch.callbacks.ModelCheckpoint"
# These parameters of Lockstep's own data sources say where their files are.
PATHS = ("root", "file", "cache", "download")
# The options of these groups set keys of any section.
EVERYWHERE = ("experiment", "debug")
# Each environment of a benchmark sets these keys, in place of the command line.
OF_ENVIRONMENTS = (
    "strategy",
    "strategy.name",
    "trainer.devices",
    "trainer.worker_weights",
    "trainer.max_time_s",
)


def scope(key: str, tree: Tree | None = None) -> Scope:
    """Return the scope of `key`.

    The configuration `tree` has the targets of the sections. Keys that the schema does not have,
    such as the parameters of a custom target, have the scope NUMBERS.
    """
    path = key.split(".")
    for depth, name in enumerate(path):
        section_type = section(tree or {}, path[:depth])
        field = fields(section_type).get(name) if section_type is not None else None
        if section_type is Data and name in PATHS and is_ours(at(tree, ["data", "_target_"])):
            return Scope.PLACE
        if section_type is None or field is None:
            break
        key_scope = scope_of(section_type, field)
        is_whole = depth == len(path) - 1 or section(tree or {}, path[: depth + 1]) is None
        if key_scope is not None and is_whole:
            return key_scope
    return Scope.NUMBERS


def names(*scopes: Scope) -> list[str]:
    """Return the top-level keys and sections of a configuration that have one of these scopes."""
    return [name for name in Config.model_fields if scope(name) in scopes]
