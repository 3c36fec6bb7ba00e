from .average import AveragedWeights as AveragedWeights
from .average import exponential_average as exponential_average
from .pictures import Pictures as Pictures
from .tensorboard import SplitTensorBoardLogger as SplitTensorBoardLogger
