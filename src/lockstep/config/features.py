"""The features that the core of a run does not know: a function of each for a moment, and when it is used.

Its module is imported then. Only this table names them; the core calls what `used_features` returns.
"""

import importlib
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from lockstep.config.schema.target_sections import IMAGE_LIST, LIBRARIES, OF_FILES

# fmt: off
Moment = Literal[
    "rules", "files", "new files", "view", "stage", "crop", "module", "classifier", "first", "grapher",
    "data rows", "module row", "weights", "pretrained", "fitted", "tested", "end", "downloads",
]
# fmt: on


class Feature(NamedTuple):
    """A function, as module:function, at a moment; used by a configuration or a part of a run: `data`, the module."""

    moment: Moment
    function: str
    is_used: Callable[[Any], object]


def _has_files(data: Any) -> bool:
    return bool(data.root or data.target == IMAGE_LIST or "$" in str(data.arguments()))


def _net(module: Any) -> Any:
    return getattr(module, "net", None)


def _of_library(config: Any) -> bool:
    return config.model.target in LIBRARIES and not config.has_own_module


def _head_only(config: Any) -> Any:
    return _of_library(config) and config.model.arguments()["head_only"]


def _trains_head(config: Any) -> Any:
    return _head_only(config) or config.optimizer.is_newton


def _pretrained(config: Any) -> Any:
    return config.model.arguments().get("pretrained")


_has_own_module = attrgetter("has_own_module")
FEATURES = (
    # errors of a configuration, without reading a file: (config) -> errors
    Feature("rules", "lockstep.config.checks.module_rules:errors", _has_own_module),
    Feature("rules", "lockstep.config.checks.benchmark_rules:errors", lambda config: hasattr(config, "benchmark")),
    Feature("rules", "lockstep.assembly.data_copies:errors", lambda config: config.data.names_copy),
    Feature("rules", "lockstep.config.checks.virtual_rules:errors", lambda config: config.trainer.virtual_shards),
    Feature("rules", "lockstep.config.checks.frozen_rules:errors", _trains_head),
    # files that must exist before a run starts or resumes: (config), raises ConfigError
    Feature("files", "lockstep.config.checks.data_presence:check_data", lambda config: _has_files(config.data)),
    # and before a new one starts
    Feature("new files", "lockstep.config.checks.data_presence:check_weights", _pretrained),
    # the view of images that a new run keeps in its configuration: (config) -> keys of data
    Feature(
        "view",
        "lockstep.config.checks.pretrained_view:view",
        lambda config: _of_library(config) and _pretrained(config),
    ),
    # weights that a new run needs from elsewhere, before its images are decoded: (session)
    Feature(
        "downloads",
        "lockstep.assembly.pretrained_weights:download",
        lambda config: _of_library(config) and _pretrained(config) is True and config.init_from is None,
    ),
    # the files of data, brought to this machine: (data, is_first) -> data there, and a remark for errors
    Feature("stage", "lockstep.assembly.data_copies:stage", lambda data: data.is_copied),
    # random parts of training images, made where these are read: (scale, ratio, seed)
    Feature("crop", "lockstep.data.images.random_crop:RandomCrop", lambda config: config.augment.has_crops),
    # a custom module in place of ours: (session, image format, total steps) -> module, its companion callback
    Feature("module", "lockstep.assembly.custom_module:build_module", _has_own_module),
    # a classifier that is trained in another way: its class
    Feature("classifier", "lockstep.models.probe:Probe", lambda config: config.optimizer.is_newton),
    # callbacks of our module that come first: (session) -> callback
    Feature("first", "lockstep.assembly.frozen_features:FrozenFeatures", lambda config: _head_only(config) is True),
    Feature("first", "lockstep.callbacks.reliability:Reliability", lambda config: True),
    # what replays training passes, if the workers can and the network allows it: (module, dropouts)
    Feature("grapher", "lockstep.models.graphs:GraphedModule", lambda config: config.trainer.graph),
    # rows of the header of a run: (config, images of a new one) -> names, texts; of its module: (config, module)
    Feature("data rows", "lockstep.assembly.listed_images:header_rows", lambda config: config.data.target in OF_FILES),
    Feature("module row", "lockstep.models.probe:l2_row", lambda config: config.optimizer.is_newton),
    # the weights of a new run: (session, module, image format)
    Feature("weights", "lockstep.training.initial_weights:load", lambda config: config.init_from is not None),
    # or else those that its network has from elsewhere: the same, used by a module
    Feature("pretrained", "lockstep.assembly.pretrained_weights:load", lambda module: hasattr(_net(module), "origin")),
    # after a fit: (session, data, module, its best checkpoint, None without one)
    Feature("fitted", "lockstep.inference.reliability:calibrate", attrgetter("calibrate")),
    # after a test: (session, data, module) -> more of summary.json
    Feature("tested", "lockstep.inference.reliability:report_test", lambda config: True),
    Feature("tested", "lockstep.inference.predict:write_fold", lambda config: config.data.folds is not None),
    # the end of a run, once its folder is unlocked: (config, folder, exit code)
    Feature("end", "lockstep.sweeps.out_of_fold:refresh", lambda config: config.data.folds is not None),
)


def used_features(moment: Moment, by: Any) -> list[Callable[..., Any]]:
    """Return the functions of the features that a configuration, or a part of a run, uses at a moment."""
    return [named_function(each.function) for each in FEATURES if each.moment == moment and each.is_used(by)]


def named_function(name: str) -> Callable[..., Any]:
    """Import the module of "module:function" and return the function."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)
