"""From image sources to this rank's share of every global batch, augmented.

These names are public: configurations and projects use them, and they stay where modules move.
"""

from typing import TYPE_CHECKING

from lockstep.system.faces import face

if TYPE_CHECKING:
    from lockstep.data.images.splits import Images, Splits
    from lockstep.data.sources.builtin import cifar10, digits, fashion_mnist, synthetic
    from lockstep.data.sources.folders import image_folder

__all__ = ["Images", "Splits", "cifar10", "digits", "fashion_mnist", "image_folder", "synthetic"]
__getattr__ = face(
    __name__,
    {
        "Images": "images.splits",
        "Splits": "images.splits",
        "cifar10": "sources.builtin",
        "digits": "sources.builtin",
        "fashion_mnist": "sources.builtin",
        "image_folder": "sources.folders",
        "synthetic": "sources.builtin",
    },
)
