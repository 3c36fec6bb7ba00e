from .builtin import Classification as Classification
from .builtin import Multilabel as Multilabel
from .builtin import Regression as Regression
from .scores import Accuracy as Accuracy
from .task import SupervisedTask as SupervisedTask
from .task import Task as Task
