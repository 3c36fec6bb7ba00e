"""What happens around the steps of a training: records, curves, pictures, stopping, averaged weights.

These names are public: configurations and projects use them, and they stay where modules move.
"""

from typing import TYPE_CHECKING

from lockstep.system.faces import face

if TYPE_CHECKING:
    from lockstep.callbacks.average import AveragedWeights
    from lockstep.callbacks.curves import Curves
    from lockstep.callbacks.events import SplitTensorBoardLogger
    from lockstep.callbacks.pictures import Pictures

__all__ = ["AveragedWeights", "Curves", "Pictures", "SplitTensorBoardLogger"]
__getattr__ = face(
    __name__,
    {
        "AveragedWeights": "average",
        "Curves": "curves",
        "Pictures": "pictures",
        "SplitTensorBoardLogger": "events",
    },
)
