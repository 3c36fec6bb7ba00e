"""The section `augment`: random changes of training images."""

from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import AfterValidator, Field

from lockstep.config.schema.sections import Scope, Section
from lockstep.config.schema.target_sections import Open, Sections
from lockstep.system.trees import leaves
from lockstep.system.types import Count, NonNegative, PositiveFloat, Probability

# Color factors are multiples of 1/1000 that float32 represents exactly
# (data/transforms/photometric.py).
Jitter = Annotated[float, Ge(0), Le(10)]


def _is_interval(values: list[float]) -> list[float]:
    if values[0] > values[1]:
        raise ValueError("not an interval")
    return values


TWO = Field(min_length=2, max_length=2)
Ratios = Annotated[
    list[PositiveFloat], TWO, AfterValidator(_is_interval), "[low, high], 0 < low <= high"
]
Areas = Annotated[
    list[Annotated[float, Field(gt=0, le=1)]],
    TWO,
    AfterValidator(_is_interval),
    "[low, high], 0 < low <= high <= 1",
]


class RandomResizedCrop(Section):
    """Random crops of the training images, taken when they are read, before all other changes."""

    scope = Scope.NUMBERS

    scale: Areas | None = Field(
        description="area of the crop, as a fraction of the scaled image; null = off"
    )
    ratio: Ratios = Field(description="aspect ratio of the crop, width / height")


class ColorJitter(Section):
    """Random changes of color, one after the other."""

    scope = Scope.NUMBERS

    brightness: Jitter = Field(
        description="pixel values times max(0, 1 - brightness) to 1 + brightness; 0 = off"
    )
    contrast: Jitter = Field(
        description="contrast times max(0, 1 - contrast) to 1 + contrast; 0 = off"
    )
    saturation: Jitter = Field(
        description="saturation times max(0, 1 - saturation) to 1 + saturation; 0 = off"
    )
    hue: Annotated[float, Ge(0), Le(0.5)] = Field(
        description="maximum hue shift, as a fraction of the color wheel; 0 = off"
    )


class RandAugment(Section):
    """RandAugment: operations of one strength, drawn for each image."""

    scope = Scope.NUMBERS

    num_ops: Annotated[int, Ge(0), Le(14)] = Field(
        description="random operations on each image; 0 = off"
    )
    magnitude: Annotated[int, Ge(0), Le(30)] = Field(description="strength of the operations")


class Augment(Section):
    """Random changes of training images, drawn for each sample, in the order of docs/data.md."""

    scope = Scope.NUMBERS

    random_resized_crop: RandomResizedCrop
    custom: Sections = Field(
        default={}, description="transforms of your own by name, called with each image in turn"
    )
    crop_padding: Count = Field(description="shift by up to this many pixels; 0 = off")
    crop_border: Literal["zeros", "reflect"] = Field(
        description="padding of crop_padding: zeros (black) or reflect (mirrored image)"
    )
    flip: bool | Literal["alternating"] = Field(
        description="flip left-right with probability 1/2; alternating: every other epoch"
    )
    vertical_flip: bool = Field(description="flip upside down with probability 1/2")
    rotation: Annotated[float, Ge(0), Le(180)] = Field(
        description="rotate by up to this many degrees; 0 = off"
    )
    color_jitter: ColorJitter
    cutout: Count = Field(description="side in pixels of a square set to the mean color; 0 = off")
    cutout_inside: bool = Field(description="keep the square of cutout inside the image")
    erasing: Probability = Field(
        description="probability of a rectangle set to the mean color (Random Erasing)"
    )
    trivial: bool = Field(description="TrivialAugment (wide): one random operation on each image")
    rand_augment: RandAugment
    mixup: NonNegative = Field(
        description="alpha of MixUp; 0 = off; with cutmix, each is used half of the time"
    )
    cutmix: NonNegative = Field(description="alpha of CutMix; 0 = off")

    @property
    def has_crops(self) -> bool:
        return self.random_resized_crop.scale is not None

    @property
    def custom_sections(self) -> dict[str, Open]:
        """Return the custom transforms by their keys, in the order in which they are called."""
        return {
            f"augment.custom.{name}": section
            for name, section in self.custom.items()
            if section is not None
        }

    @property
    def used(self) -> dict[str, Any]:
        """Keys that enable an augmentation, with their values."""
        qualifiers: Any = {
            "crop_border": True,
            "cutout_inside": True,
            "rand_augment": {"magnitude"},
            "random_resized_crop": {"ratio"},
            "custom": True,
        }
        values = dict(leaves(self.model_dump(exclude=qualifiers), ""))
        for name, section in self.custom.items():
            values[f"custom.{name}"] = section and section.target
        return {key: value for key, value in values.items() if value}
