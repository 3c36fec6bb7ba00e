"""Networks, and the loss, metrics and learning rates they are trained with: knows no data set.

These names are public: configurations and projects use them, and they stay where modules move.
"""

from typing import TYPE_CHECKING

from lockstep.system.faces import face

if TYPE_CHECKING:
    from lockstep.models.classifier import Classifier
    from lockstep.models.libraries import Origin, timm, torchvision
    from lockstep.models.resnet import ResNet18
    from lockstep.models.schedules import constant, cosine, one_cycle_linear

__all__ = ["Classifier", "Origin", "ResNet18", "constant", "cosine", "one_cycle_linear", "timm", "torchvision"]
__getattr__ = face(
    __name__,
    {
        "Classifier": "classifier",
        "Origin": "libraries",
        "ResNet18": "resnet",
        "constant": "schedules",
        "cosine": "schedules",
        "one_cycle_linear": "schedules",
        "timm": "libraries",
        "torchvision": "libraries",
    },
)
