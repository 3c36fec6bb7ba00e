"""From image sources to this rank's share of every global batch, augmented.

These names are public: configurations and projects use them, and they stay where modules move.
"""

from typing import TYPE_CHECKING

from lockstep.system.faces import face

if TYPE_CHECKING:
    from lockstep.data.images.decode import ImageFault
    from lockstep.data.images.pixels import Pixels
    from lockstep.data.images.splits import Images, Splits
    from lockstep.data.images.statistics import Statistics
    from lockstep.data.sources.builtin import cifar10, digits, fashion_mnist, synthetic
    from lockstep.data.sources.datasets import dataset
    from lockstep.data.sources.folders import image_folder
    from lockstep.data.sources.lists import image_list

__all__ = [
    "ImageFault",
    "Images",
    "Pixels",
    "Splits",
    "Statistics",
    "cifar10",
    "dataset",
    "digits",
    "fashion_mnist",
    "image_folder",
    "image_list",
    "synthetic",
]
__getattr__ = face(
    __name__,
    {
        "ImageFault": "images.decode",
        "Images": "images.splits",
        "Pixels": "images.pixels",
        "Splits": "images.splits",
        "Statistics": "images.statistics",
        "cifar10": "sources.builtin",
        "dataset": "sources.datasets",
        "digits": "sources.builtin",
        "fashion_mnist": "sources.builtin",
        "image_folder": "sources.folders",
        "image_list": "sources.lists",
        "synthetic": "sources.builtin",
    },
)
