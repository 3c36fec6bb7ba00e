"""Types of parameters with their ranges, for signatures and for the sections of a configuration. No torch.

`width: Annotated[Positive, Doc("channels of the first stage")]` declares type, range and meaning of a parameter once,
for the check of a configuration, `--help` and docs/configuration.md.
"""

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AllowInfNan
from typing_extensions import Doc

LARGEST = 2**31 - 1  # what SLURM, process groups and kernels count to
Count = Annotated[int, Ge(0), Le(LARGEST)]
Positive = Annotated[int, Ge(1), Le(LARGEST)]
Seed = Annotated[int, Ge(0)]
Fraction = Annotated[float, Ge(0), Lt(1)]
Probability = Annotated[float, Ge(0), Le(1)]
PositiveFraction = Annotated[float, Gt(0), Lt(1)]
NonNegative = Annotated[float, Ge(0), AllowInfNan(False)]
PositiveFloat = Annotated[float, Gt(0), AllowInfNan(False)]
PathText = Annotated[str, MinLen(1), "a path"]  # a plain string is shown instead of the type
# shared by several sources of images
Channels = Annotated[Literal[1, 3], Doc("1 = grey, 3 = RGB")]
ImageSize = Annotated[
    Annotated[int, Ge(8), Le(LARGEST)] | None,
    Doc("side of the square to resize and crop to, in pixels; null = all images have one size"),
]
Background = Annotated[Literal["white", "black", "grey"], Doc("background of transparent pixels")]
Cache = Annotated[PathText | None, Doc("folder for the decoded images; null = decode in every run")]
FilesRoot = Annotated[PathText, Doc("folder of the files, or a URL such as s3://bucket/files or zip://::https://...")]
SplitSeed = Annotated[Seed, Doc("seed of the random split into train, validation and test")]
# shared by the libraries of networks
Pretrained = Annotated[bool | PathText, Doc("initial weights: true = those of the library, downloaded once, or a file")]
HeadOnly = Annotated[bool, Doc("train only the last layer")]
Dropout = Annotated[Fraction | None, Doc("dropout of the network; null = its default")]
DropPath = Annotated[Fraction | None, Doc("stochastic depth of the network; null = its default")]
