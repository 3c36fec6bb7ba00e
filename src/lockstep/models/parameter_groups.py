"""Which parameters are trained, from which epoch on, by which part of the learning rate and with which weight decay."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from lockstep.system import internals


class ParameterRule(NamedTuple):
    """What holds for the parameters in whose names `pattern` is found.

    Their learning rate is `lr_factor` times that of the schedule. `weight_decay` is that of their weights, None that of
    the optimizer. They are frozen for `frozen_epochs` epochs, None for good.
    """

    name: str
    pattern: str
    lr_factor: float = 1.0
    weight_decay: float | None = None
    frozen_epochs: int | None = 0


ELSEWHERE = ParameterRule("", "")  # of the parameters without a rule


class ParameterGroups:
    """The parameters of a network and its task by the first rule whose pattern is found in their name.

    What is frozen for good gets no gradients. What is frozen for some epochs has gradients from the start, because DDP
    listens to the parameters that have them when the training begins; they are dropped before they are clipped or
    applied. A batch norm whose own parameters are frozen is in evaluation mode as long: it normalizes by its running
    statistics and keeps them.
    """

    def __init__(self, net: nn.Module, task: nn.Module, rules: Sequence[ParameterRule]) -> None:
        """Those of the task have names that begin with `task.`."""
        named = (*net.named_parameters(), *task.named_parameters("task"))
        found = [(parameter, rule_of(name, rules)) for name, parameter in named]
        for parameter, rule in found:
            if rule.frozen_epochs is None:
                parameter.requires_grad_(False)
        self._trained = [(parameter, rule) for parameter, rule in found if parameter.requires_grad]
        self._rules = (ELSEWHERE, *rules)
        epochs = {parameter: rule.frozen_epochs for parameter, rule in found}
        self._norms: list[tuple[nn.Module, int]] = []
        for norm in (module for module in net.modules() if isinstance(module, internals.BatchNorm)):
            own = [epochs[parameter] for parameter in norm.parameters(recurse=False)]
            if own and None in own:
                norm.eval()
            elif own and max(filter(None, own), default=0):
                self._norms.append((norm, max(filter(None, own))))
        self._epoch: int | None = None
        self._frozen: list[nn.Parameter] = []

    def for_optimizer(self, weight_decay: float) -> list[dict[str, Any]]:
        """The groups of an optimizer: those without a rule, then rule by rule, each in definition order.

        Of each the weights (ndim > 1) are decayed, norms and biases (ndim <= 1) are not. Frozen parameters are left
        out, and so is a group without parameters.
        """
        groups: list[dict[str, Any]] = []
        for rule in self._rules:
            own = [parameter for parameter, other in self._trained if other is rule]
            decay = weight_decay if rule.weight_decay is None else rule.weight_decay
            factor = {"lr_factor": rule.lr_factor} if rule.lr_factor != 1 else {}
            groups.append({"params": [p for p in own if p.ndim > 1], "weight_decay": decay, **factor})
            groups.append({"params": [p for p in own if p.ndim <= 1], "weight_decay": 0.0, **factor})
        return [group for group in groups if group["params"]]

    def start_epoch(self, epoch: int) -> None:
        """Freeze what is frozen in `epoch`, counted from 0; before each forward pass of a training."""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        self._frozen = [parameter for parameter, rule in self._trained if epoch < (rule.frozen_epochs or 0)]
        for norm, frozen_epochs in self._norms:
            norm.train(epoch >= frozen_epochs)

    def drop_frozen(self) -> None:
        """Leave the parameters that are frozen in this epoch without a gradient, so that no update changes them."""
        for parameter in self._frozen:
            parameter.grad = None


def rule_of(name: str, rules: Sequence[ParameterRule]) -> ParameterRule:
    """The rule of the parameter with this name."""
    return next((rule for rule in rules if re.search(rule.pattern, name)), ELSEWHERE)
