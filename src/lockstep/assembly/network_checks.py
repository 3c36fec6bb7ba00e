"""Checks of a network before its training: layers that draw random numbers, rules of its parameters."""

import contextlib
import copy
import re
from collections.abc import Iterator

import torch
from torch import nn

from lockstep.config import build
from lockstep.config.errors import ConfigError, Error
from lockstep.config.schema.configuration import Config
from lockstep.distributed.partition import Shard
from lockstep.distributed.rng import drawing_layer, replace_dropout
from lockstep.models.origin import attach_ends
from lockstep.models.parameter_groups import ParameterRule, rule_of


def refuse_draws(config: Config, net: nn.Module, image_shape: tuple[int, int, int]) -> None:
    """Raise ConfigError if a layer draws random numbers in a function call: they would depend on the rank.

    It tries a copy of the network with two images. A network that cannot be copied, or does not run on a CPU, is not
    checked.
    """
    with build.section_errors(config, "model"), contextlib.suppress(RuntimeError, AssertionError, NotImplementedError):
        trial = copy.deepcopy(net)
        for dropout in replace_dropout(trial, config.seed):
            dropout.shard = Shard(0, 0, 0, 2, 0, 2, 2)
        layer = drawing_layer(trial, torch.zeros(2, *image_shape))
        if layer is not None:
            problem = f": the layer {layer} draws random numbers by a function, for each worker others"
            hint = "use nn.Dropout or nn.Dropout2d"
            raise ConfigError(Error("unsupported", f"model._target_={config.model.target}", problem, hint))


def parameter_rules(config: Config, net: nn.Module, task: nn.Module, num_outputs: int) -> list[ParameterRule]:
    """Build the rules of `parameters`. Raises ConfigError for one without effect, and if nothing is trained."""
    sections = {name: section.model_dump() for name, section in config.parameters.items() if section is not None}
    if not all(keys["pattern"] for keys in sections.values()):
        of_head = f"^({'|'.join(map(re.escape, attach_ends(net, num_outputs).head))})\\."
        sections = {name: {**keys, "pattern": keys["pattern"] or of_head} for name, keys in sections.items()}
    rules = [ParameterRule(name, **keys) for name, keys in sections.items()]
    found = list(_rule_errors(rules, dict([*net.named_parameters(), *task.named_parameters("task")])))
    if found:
        raise ConfigError(*found)
    return rules


def _rule_errors(rules: list[ParameterRule], parameters: dict[str, nn.Parameter]) -> Iterator[Error]:
    for rule in rules:
        key = f"parameters.{rule.name}.pattern={rule.pattern}"
        found = [name for name in parameters if re.search(rule.pattern, name)]
        own = [name for name in found if rule_of(name, rules) is rule]
        if not found:
            parts = dict.fromkeys(name.partition(".")[0] for name in parameters)
            yield Error("unknown", key, "matches no parameter", f"the network has {', '.join(parts)}")
        elif not own:
            first = rule_of(found[0], rules).name
            yield Error("conflict", key, f"matches only what parameters.{first} matches before it", "put it first")
        elif rule.weight_decay and all(parameters[name].ndim <= 1 for name in own):
            yield Error(
                "conflict", key, "matches norms and biases only, which are not decayed", "remove its weight_decay"
            )
    if not any(p.requires_grad and rule_of(name, rules).frozen_epochs is not None for name, p in parameters.items()):
        yield Error("conflict", "parameters", "freezes the whole network permanently", "leave something to train")
