"""Types of parameters with their ranges, for signatures and for the sections of a configuration.

`width: Annotated[Positive, Doc("channels of the first stage")]` declares type, range and meaning of
a parameter once. The check of a configuration, `--help` and docs/configuration.md use them. The
module does not import torch.
"""

from datetime import date
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import AfterValidator, AllowInfNan
from typing_extensions import Doc

MAX_INTEGER = 2**31 - 1  # Limit of SLURM, process groups and kernels
Count = Annotated[int, Ge(0), Le(MAX_INTEGER)]
Positive = Annotated[int, Ge(1), Le(MAX_INTEGER)]
Seed = Annotated[int, Ge(0)]
Fraction = Annotated[float, Ge(0), Lt(1)]
Probability = Annotated[float, Ge(0), Le(1)]
PositiveFraction = Annotated[float, Gt(0), Lt(1)]
NonNegative = Annotated[float, Ge(0), AllowInfNan(False)]
PositiveFloat = Annotated[float, Gt(0), AllowInfNan(False)]
# A plain string is shown instead of the type.
PathText = Annotated[str, MinLen(1), "a path"]


def _check_day(day: str) -> str:
    date.fromisoformat(day)
    return day


Day = Annotated[str, AfterValidator(_check_day), "YYYY-MM-DD"]
# Several sources of images share these types.
Channels = Annotated[Literal[1, 3], Doc("1 = grayscale, 3 = RGB")]
Side = Annotated[int, Ge(8), Le(MAX_INTEGER)]
ImageSize = Annotated[
    Side | Annotated[list[Side], MinLen(2), MaxLen(2), "[height, width]"] | None,
    Doc(
        "side of the square to resize and crop to, in pixels, or [height, width]; "
        "null = all images have one size"
    ),
]
CropPercent = Annotated[
    Literal["auto"] | Annotated[float, Gt(0), Le(1)],
    Doc(
        "fraction of the shorter side that the center crop keeps; "
        "auto = that of the pretrained weights, else 1"
    ),
]
Fit = Annotated[
    Literal["crop", "letterbox"],
    Doc(
        "crop: cover image_size and crop the center; letterbox: "
        "fit inside and pad with the background"
    ),
]
Interpolation = Annotated[
    Literal["auto", "bilinear", "bicubic"],
    Doc("of resized images, with antialias; auto = that of the pretrained weights, else bilinear"),
]
Background = Annotated[
    Literal["white", "black", "gray"],
    Doc("background of transparent pixels and of a letterbox"),
]
Cache = Annotated[PathText | None, Doc("folder for the decoded images; null = decode in every run")]
FilesRoot = Annotated[
    PathText, Doc("folder of the files, or a URL such as s3://bucket/files or zip://::https://...")
]
Group = Annotated[str, MinLen(1), "a regular expression"]
ValFraction = Annotated[Fraction, Doc("fraction of the training images to use for validation")]
TestFraction = Annotated[Fraction, Doc("fraction of the training images to use for the test")]
PositiveValFraction = Annotated[
    PositiveFraction, Doc("fraction of the training images to use for validation")
]
Download = Annotated[bool, Doc("download missing files")]
Memory = Literal["auto", "device", "host", "stream", "once"]
TestAfter = Annotated[
    Day | None,
    Doc("first day of the test images, all others are older; null = a random test split"),
]
SplitSeed = Annotated[Seed, Doc("seed of the random split into train, validation and test")]
# The libraries of networks share these types.
Pretrained = Annotated[
    bool | PathText, Doc("initial weights: true = those of the library, downloaded once, or a file")
]
HeadOnly = Annotated[
    bool | Literal["each_epoch"],
    Doc(
        "train only the last layer: true = on features computed once, "
        "each_epoch = on augmented images"
    ),
]
FrozenNorms = Annotated[bool, Doc("batch norms keep their statistics and weights")]
Dropout = Annotated[Fraction | None, Doc("dropout of the network; null = its default")]
DropPath = Annotated[Fraction | None, Doc("stochastic depth of the network; null = its default")]
