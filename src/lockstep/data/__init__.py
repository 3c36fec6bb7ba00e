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

__all__, __getattr__ = face(
    __name__,
    {
        "images.decode": ("ImageFault",),
        "images.pixels": ("Pixels",),
        "images.splits": ("Images", "Splits"),
        "images.statistics": ("Statistics",),
        "sources.builtin": ("cifar10", "digits", "fashion_mnist", "synthetic"),
        "sources.datasets": ("dataset",),
        "sources.folders": ("image_folder",),
        "sources.lists": ("image_list",),
    },
)
