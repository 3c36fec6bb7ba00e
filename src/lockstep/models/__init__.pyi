from .classifier import Classifier as Classifier
from .libraries import timm as timm
from .libraries import torchvision as torchvision
from .origin import Origin as Origin
from .resnet import ResNet18 as ResNet18
from .schedules import constant as constant
from .schedules import cosine as cosine
from .schedules import one_cycle_linear as one_cycle_linear
