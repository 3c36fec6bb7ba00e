"""Group parameters by their learning rate, their weight decay and the epochs they are frozen."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from lockstep.system import internals


class ParameterRule(NamedTuple):
    """Settings of the parameters whose names match `pattern` anywhere.

    Their learning rate is `lr_factor` times that of the schedule. `weight_decay` applies to their
    weights, and None means that of the optimizer. They are frozen for `frozen_epochs` epochs, and
    None means permanently.
    """

    name: str
    pattern: str
    lr_factor: float = 1.0
    weight_decay: float | None = None
    frozen_epochs: int | None = 0


DEFAULT = ParameterRule("", "")  # for parameters without a rule


class ParameterGroups:
    """Groups the parameters of a network and its task by the first rule that matches their name.

    Parameters of the task have names that begin with `task.`. Permanently frozen parameters get no
    gradients. Those that are frozen for some epochs have gradients from the start, because DDP
    registers its hooks then. These gradients are dropped before clipping and the update. A batch
    norm is in evaluation mode as long as its own parameters are frozen.
    """

    def __init__(self, net: nn.Module, task: nn.Module, rules: Sequence[ParameterRule]) -> None:
        named_parameters = (*net.named_parameters(), *task.named_parameters("task"))
        pairs = [(parameter, rule_of(name, rules)) for name, parameter in named_parameters]
        for parameter, rule in pairs:
            if rule.frozen_epochs is None:
                parameter.requires_grad_(False)
        self._trained = [(parameter, rule) for parameter, rule in pairs if parameter.requires_grad]
        self._rules = (DEFAULT, *rules)
        epochs = {parameter: rule.frozen_epochs for parameter, rule in pairs}
        self._norms: list[tuple[nn.Module, int]] = []
        for norm in (module for module in net.modules() if isinstance(module, internals.BatchNorm)):
            norm_epochs = [epochs[parameter] for parameter in norm.parameters(recurse=False)]
            if None in norm_epochs:
                norm.eval()
            elif frozen_epochs := max(filter(None, norm_epochs), default=0):
                self._norms.append((norm, frozen_epochs))
        self._epoch: int | None = None
        self._frozen: list[nn.Parameter] = []

    def optimizer_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Return the non-empty groups of an optimizer, first those without a rule.

        The other groups follow in the order of the rules. Weights (ndim > 1) are decayed, and norms
        and biases (ndim <= 1) are not. Permanently frozen parameters are left out.
        """
        groups: list[dict[str, Any]] = []
        for rule in self._rules:
            parameters = [
                parameter for parameter, parameter_rule in self._trained if parameter_rule is rule
            ]
            decay = weight_decay if rule.weight_decay is None else rule.weight_decay
            factor = {"lr_factor": rule.lr_factor} if rule.lr_factor != 1 else {}
            groups.append(
                {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay, **factor}
            )
            groups.append(
                {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0, **factor}
            )
        return [group for group in groups if group["params"]]

    def start_epoch(self, epoch: int) -> None:
        """Freeze the parameters that are frozen in `epoch`, which is counted from 0.

        It is called before each forward pass of a training.
        """
        if epoch == self._epoch:
            return
        self._epoch = epoch
        self._frozen = [
            parameter for parameter, rule in self._trained if epoch < (rule.frozen_epochs or 0)
        ]
        for norm, frozen_epochs in self._norms:
            norm.train(epoch >= frozen_epochs)

    def drop_frozen(self) -> None:
        """Drop the gradients of the parameters frozen in this epoch, so that they stay the same."""
        for parameter in self._frozen:
            parameter.grad = None


def rule_of(parameter_name: str, rules: Sequence[ParameterRule]) -> ParameterRule:
    return next((rule for rule in rules if re.search(rule.pattern, parameter_name)), DEFAULT)
