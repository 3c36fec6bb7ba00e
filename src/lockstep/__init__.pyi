from .config.errors import ConfigError as ConfigError
from .distributed.batch import Batch as Batch
from .distributed.global_sum import sum_over_global as sum_over_global
from .python.prediction import Prediction as Prediction
from .python.prediction import Predictions as Predictions
from .python.predictor import Predictor as Predictor
from .python.predictor import load as load
from .python.run import Run as Run
from .python.run import runs as runs
from .python.sweeping import Job as Job
from .python.sweeping import Sweep as Sweep
from .python.sweeping import submit as submit
from .python.sweeping import sweep as sweep
from .python.training import TrainingFailed as TrainingFailed
from .python.training import train as train
from .tasks.task import Task as Task

__version__: str
