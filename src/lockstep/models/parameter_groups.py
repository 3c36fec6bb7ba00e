"""Which parameters the optimizer decays."""

from typing import Any

from torch import nn


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two optimizer groups in definition order: weights (ndim > 1) decayed; norms and biases (ndim <= 1) not.

    Frozen parameters are left out, and so is a group without parameters.
    """
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
