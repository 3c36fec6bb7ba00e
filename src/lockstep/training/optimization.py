"""Optimizer, schedule and rules of parameters of a run, built from its configuration."""

import re
from collections.abc import Iterator

from torch import nn

from lockstep.config import build
from lockstep.config.errors import ConfigError, near, question
from lockstep.config.schema import Config
from lockstep.models.parameter_groups import ParameterRule, rule_of
from lockstep.models.schedules import Schedule


def schedule(config: Config) -> Schedule:
    """The schedule of a run, which goes by the metric that its best weights are chosen by."""
    return Schedule(build.build(config.scheduler), config.scheduler.interval, *build.monitored(config))


def refuse_unusable(config: Config, net: nn.Module, total_steps: int) -> None:
    """Raise ConfigError where optimizer or schedule cannot be made for a network."""
    with build.answering(config, "optimizer"):
        optimizer = build.build(config.optimizer)(list(net.parameters()))
    with build.answering(config, "scheduler"):
        schedule(config).of(optimizer, total_steps)


def parameter_rules(config: Config, net: nn.Module, task: nn.Module) -> list[ParameterRule]:
    """The rules of `parameters`. Raises ConfigError for one that holds for nothing, and where nothing is trained."""
    sections = {name: section for name, section in config.parameters.items() if section is not None}
    rules = [ParameterRule(name, **section.model_dump()) for name, section in sections.items()]
    errors = list(_rule_errors(rules, dict([*net.named_parameters(), *task.named_parameters("task")])))
    if errors:
        raise ConfigError(errors)
    return rules


def _rule_errors(rules: list[ParameterRule], parameters: dict[str, nn.Parameter]) -> Iterator[str]:
    dims = {name: parameter.ndim for name, parameter in parameters.items()}
    for rule in rules:
        key = f"parameters.{rule.name}"
        found = [name for name in dims if re.search(rule.pattern, name)]
        own = [name for name in found if rule_of(name, rules) is rule]
        if not found:
            yield f"{key}.pattern={rule.pattern} is in the name of no parameter" + _meant(rule.pattern, list(dims))
        elif not own:
            first = rule_of(found[0], rules).name
            yield f"{key}.pattern={rule.pattern} finds only what parameters.{first} has before it: put it first"
        elif rule.weight_decay and all(dims[name] <= 1 for name in own):
            yield f"{key}.weight_decay={rule.weight_decay} decays weights, and finds norms and biases alone: remove it"
    if not any(p.requires_grad and rule_of(name, rules).frozen_epochs is not None for name, p in parameters.items()):
        yield "parameters freeze all of the network for good: leave something to train"


def _meant(pattern: str, names: list[str]) -> str:
    """The parts of the network whose names are like the words of a pattern, else those there are."""
    parts = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2)}
    word = re.sub(r"[^\w.]", "", pattern.replace("\\.", "."))
    top = dict.fromkeys(name.partition(".")[0] for name in names)
    return question(near(word, parts, 3), f"the network has {', '.join(top)}")
