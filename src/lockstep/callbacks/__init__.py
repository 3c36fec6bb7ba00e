"""What happens around the steps of a training: records, curves, pictures, stopping, averaged weights.

These names are public: configurations and projects use them, and they stay where modules move.
"""

from typing import TYPE_CHECKING

from lockstep.system.faces import face

if TYPE_CHECKING:
    from lockstep.callbacks.average import AveragedWeights
    from lockstep.callbacks.csv_logger import ResumableCSVLogger
    from lockstep.callbacks.curves import Curves
    from lockstep.callbacks.events import SplitTensorBoardLogger
    from lockstep.callbacks.pictures import Pictures
    from lockstep.callbacks.wandb_logger import ResumableWandbLogger

__all__, __getattr__ = face(
    __name__,
    {
        "average": ("AveragedWeights",),
        "csv_logger": ("ResumableCSVLogger",),
        "curves": ("Curves",),
        "events": ("SplitTensorBoardLogger",),
        "pictures": ("Pictures",),
        "wandb_logger": ("ResumableWandbLogger",),
    },
)
