"""Which schema a section has by its `_target_`."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from lockstep.config.data_sections import (
    Dataset,
    Digits,
    Downloaded,
    ImageFolder,
    ImageList,
    OpenData,
    Synthetic,
)
from lockstep.config.target_sections import (
    AdamW,
    Classification,
    Constant,
    Cosine,
    Library,
    LossTask,
    OneCycleLinear,
    Open,
    OpenPartial,
    OpenSchedule,
    OpenTask,
    ResNet18,
    Sgd,
    Target,
    Training,
)

CLASSIFIER = "lockstep.models.Classifier"
KNOWN: dict[str, type[Target]] = {
    CLASSIFIER: Training,
    "lockstep.data.digits": Digits,
    "lockstep.data.fashion_mnist": Downloaded,
    "lockstep.data.cifar10": Downloaded,
    "lockstep.data.image_folder": ImageFolder,
    "lockstep.data.image_list": ImageList,
    "lockstep.data.dataset": Dataset,
    "lockstep.data.synthetic": Synthetic,
    "lockstep.models.ResNet18": ResNet18,
    "lockstep.tasks.Classification": Classification,
    "lockstep.tasks.Multilabel": LossTask,
    "lockstep.tasks.Regression": LossTask,
    "lockstep.models.torchvision": Library,
    "lockstep.models.timm": Library,
    "torch.optim.SGD": Sgd,
    "torch.optim.AdamW": AdamW,
    "lockstep.models.constant": Constant,
    "lockstep.models.one_cycle_linear": OneCycleLinear,
    "lockstep.models.cosine": Cosine,
}
# what a section is when its target is the user's own
FALLBACK: dict[str, type[Target]] = {
    "data": OpenData,
    "module": Open,
    "model": Open,
    "task": OpenTask,
    "optimizer": OpenPartial,
    "scheduler": OpenSchedule,
}


def _kind_of_section(section: Any) -> str:
    target = section.get("_target_") if isinstance(section, dict) else getattr(section, "target", None)
    return KNOWN[target].__name__ if target in KNOWN else "other"


_BY_TARGET = Discriminator(_kind_of_section)
DataSection = Annotated[
    Annotated[Digits, Tag("Digits")]
    | Annotated[Downloaded, Tag("Downloaded")]
    | Annotated[ImageFolder, Tag("ImageFolder")]
    | Annotated[ImageList, Tag("ImageList")]
    | Annotated[Dataset, Tag("Dataset")]
    | Annotated[Synthetic, Tag("Synthetic")]
    | Annotated[OpenData, Tag("other")],
    _BY_TARGET,
]
ModuleSection = Annotated[Annotated[Training, Tag("Training")] | Annotated[Open, Tag("other")], _BY_TARGET]
ModelSection = Annotated[
    Annotated[ResNet18, Tag("ResNet18")] | Annotated[Library, Tag("Library")] | Annotated[Open, Tag("other")],
    _BY_TARGET,
]
AnyTaskSection = Annotated[
    Annotated[Classification, Tag("Classification")]
    | Annotated[LossTask, Tag("LossTask")]
    | Annotated[OpenTask, Tag("other")],
    _BY_TARGET,
]
OptimizerSection = Annotated[
    Annotated[Sgd, Tag("Sgd")] | Annotated[AdamW, Tag("AdamW")] | Annotated[OpenPartial, Tag("other")], _BY_TARGET
]
SchedulerSection = Annotated[
    Annotated[Constant, Tag("Constant")]
    | Annotated[OneCycleLinear, Tag("OneCycleLinear")]
    | Annotated[Cosine, Tag("Cosine")]
    | Annotated[OpenSchedule, Tag("other")],
    _BY_TARGET,
]
