"""The sections of data: known sources by their schema, others by their signature."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from lockstep.config.sections import (
    LARGEST,
    Dotted,
    Fraction,
    Path,
    Positive,
    PositiveFloat,
    PositiveFraction,
    Scope,
    Seed,
)
from lockstep.config.target_sections import Nested, Target


class Data(Target):
    """A source of images."""

    memory: Annotated[Literal["auto", "device", "host"], Scope.PLACE] = Field(
        description="where pixels live; auto: on the GPU if they fit"
    )

    def arguments(self) -> dict[str, Any]:
        """What the source gets; where its pixels live, and how many processes decode them, is not its business."""
        return {key: value for key, value in super().arguments().items() if key not in ("memory", "num_workers")}


class OpenData(Data):
    """A source of the user's own."""

    model_config = ConfigDict(extra="allow")
    memory: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        Literal["auto", "device", "host", "stream"], Scope.PLACE
    ] = Field(
        default="auto",
        description="where pixels live; auto: a tensor on the GPU if it fits, another format as it says itself",
    )
    num_workers: Annotated[Literal["auto"] | Positive, Scope.PLACE] = Field(
        default="auto", description="processes of each worker that decode streamed images; auto: one per core"
    )
    check: Dotted | None = Field(
        default=None, alias="_check_", description="called before torch is imported, raises where data is missing"
    )

    def arguments(self) -> dict[str, Any]:
        """What the source gets, and the function that checks for it."""
        return {key: value for key, value in super().arguments().items() if key != "check"}


class Split(Data):
    """A source that is split by a fixed seed."""

    val_fraction: PositiveFraction = Field(description="part of the training images kept for validation")
    split_seed: Seed = Field(description="which images these are")


class Digits(Split):
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels; nothing is downloaded."""

    test_fraction: PositiveFraction = Field(description="part of all images kept for the test")


class Files(Split):
    """A source that reads files."""

    root: Annotated[Path, Scope.PLACE] = Field(
        description="folder of the files, or a URL as s3://bucket/flowers or zip://::https://..."
    )
    copy_to: Annotated[Path | None, Scope.PLACE] = Field(
        description="folder on a disk of the node that gets a copy, read instead; null = read the files where they are"
    )
    copy_remove: Annotated[bool, Scope.PLACE] = Field(
        description="remove that copy when the run ends, unless another one uses it"
    )

    def arguments(self) -> dict[str, Any]:
        """What the source gets: the folder to read, copied or not."""
        return {key: value for key, value in super().arguments().items() if key not in ("copy_to", "copy_remove")}


class Downloaded(Files):
    """A data set of torchvision; what is downloaded lies in root, and is copied from there."""

    download: Annotated[bool, Scope.PLACE] = Field(description="fetch missing files")


class Decoded(Split):
    """Image files that are decoded by Lockstep."""

    val_fraction: Fraction = Field(description="part of the training images kept for validation")
    test_fraction: Fraction = Field(description="part of the training images kept for the test")
    image_size: Annotated[int, Field(ge=8, le=LARGEST)] | None = Field(
        description="resize and crop to a square of so many pixels; null = all have one size"
    )
    channels: Literal[1, 3] = Field(description="1 = grey, 3 = RGB")
    background: Literal["white", "black", "grey"] = Field(
        default="white",  # runs of earlier versions have no such key
        description="what transparent pixels are laid on",
    )
    cache: Annotated[Path | None, Scope.PLACE] = Field(
        description="folder that keeps the decoded images; null = decode in every run"
    )
    memory: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        Literal["auto", "device", "host", "stream"], Scope.PLACE
    ] = Field(
        description="where pixels live; auto: on the GPU if they fit, else in memory, else stream: decoded when needed"
    )
    num_workers: Annotated[Literal["auto"] | Positive, Scope.PLACE] = Field(
        description="processes of each worker that decode streamed images; auto: one per core"
    )

    def arguments(self) -> dict[str, Any]:
        """What the source gets: it decides whether images are streamed."""
        return {**super().arguments(), "memory": self.memory}


class ImageFolder(Decoded, Files):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A folder per class."""


class ImageList(Decoded):
    """Image files listed in a CSV or Parquet file."""

    file: Annotated[Path, Scope.PLACE] = Field(description="the .csv or .parquet file, with a row for each image")
    root: Annotated[Path | None, Scope.PLACE] = Field(
        description="folder of the paths in the file; null = that of the file"
    )
    path_column: str = Field(description="name of the column of the paths")
    target_columns: Annotated[list[str], Field(min_length=1), "[str, ...], one or more"] = Field(
        description="names of the columns of what is to be predicted"
    )
    targets: Literal["classes", "numbers"] = Field(
        description="classes: of one column, or several columns of 0 and 1; numbers: predicted as they are"
    )
    split_column: str | None = Field(description="name of the column of train, val or test; null = cut by fractions")


class Dataset(Split):
    """Torch Datasets of the user's own, with any transforms in them."""

    train: Nested = Field(description="training samples, pairs of an input (C, H, W) and a target")
    val: Nested | None = Field(description="validation samples; null = cut off train, with its transforms")
    test: Nested | None = Field(description="test samples; null = cut off train, with its transforms")
    class_names: list[str] | None = Field(
        description="names of the classes, or of the numbers that are predicted; null = `classes` of train"
    )
    mean: list[float] | None = Field(
        description="of each channel of uint8 inputs, in [0, 1]; null = that of up to 4,096 training samples"
    )
    std: list[PositiveFloat] | None = Field(description="standard deviation of each channel, as mean")
    test_fraction: PositiveFraction = Field(description="part of the training samples kept for the test")
    memory: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        Literal["stream"], Scope.PLACE
    ] = Field(description="always stream: samples are made when they are needed")
    num_workers: Annotated[Literal["auto"] | Positive, Scope.PLACE] = Field(
        description="processes of each worker that make samples; auto: one per core"
    )


class Synthetic(Data):
    """Made-up patterns, for tests and speed measurements."""

    num_classes: int = Field(ge=2, le=LARGEST, description="classes")
    channels: Literal[1, 3] = Field(description="1 = grey, 3 = RGB")
    image_size: int = Field(ge=4, le=LARGEST, description="side of the square images in pixels")
    train_size: Positive = Field(description="training images")
    val_size: Positive = Field(description="validation images")
    test_size: Positive = Field(description="test images")
    seed: Seed = Field(description="which patterns")
