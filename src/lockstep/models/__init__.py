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

__all__, __getattr__ = face(
    __name__,
    {
        "classifier": ("Classifier",),
        "libraries": ("Origin", "timm", "torchvision"),
        "resnet": ("ResNet18",),
        "schedules": ("constant", "cosine", "one_cycle_linear"),
    },
)
