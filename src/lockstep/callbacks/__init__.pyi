from .average import AveragedWeights as AveragedWeights
from .average import exponential_average as exponential_average
from .csv_logger import ResumableCSVLogger as ResumableCSVLogger
from .curves import Curves as Curves
from .events import SplitTensorBoardLogger as SplitTensorBoardLogger
from .pictures import Pictures as Pictures
from .wandb_logger import ResumableWandbLogger as ResumableWandbLogger
