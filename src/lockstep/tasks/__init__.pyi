from .classification import Classification as Classification
from .scores import Accuracy as Accuracy
from .task import SupervisedTask as SupervisedTask
from .task import Task as Task
from .vectors import Multilabel as Multilabel
from .vectors import Regression as Regression
