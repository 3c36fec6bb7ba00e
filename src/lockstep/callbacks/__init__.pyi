from .average import AveragedWeights as AveragedWeights
from .average import exponential_average as exponential_average
from .csv_logger import ResumableCSVLogger as ResumableCSVLogger
from .pictures import Pictures as Pictures
from .tensorboard import SplitTensorBoardLogger as SplitTensorBoardLogger
