"""Scale images, then crop or pad them, in the same way for training and prediction."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from PIL import Image, ImageColor
from torch import Tensor
from torch.nn import functional as F

# These are the settings of a data source that describe its preprocessing.
PREPROCESSING_KEYS = ("image_size", "crop_percent", "fit", "interpolation", "background")


Size = tuple[int, int]  # (H, W)


def size_of(image: Tensor) -> Size:
    """Return the size (H, W) of an image (C, H, W)."""
    return image.shape[-2], image.shape[-1]


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing that turns images of any size into images of `size` (H, W).

    If `size` is None, all images have one size and keep it. With `fit` "crop", an image is scaled
    until it just covers `size` / `crop_percent`, and the center is cropped. With "letterbox", it is
    scaled until it fits inside `size`, and is padded with `background`, a gray of PIL.ImageColor.
    Transparent pixels are composited on `background`, too. The results equal those of Resize (with
    antialias), CenterCrop and Pad of torchvision's v2 transforms.
    """

    size: Size | None
    crop_percent: float
    fit: Literal["crop", "letterbox"]
    interpolation: Literal["bilinear", "bicubic"]
    background: str

    @classmethod
    def from_keys(
        cls,
        image_size: int | Sequence[int] | None,
        crop_percent: float | Literal["auto"],
        fit: Literal["crop", "letterbox"],
        interpolation: Literal["auto", "bilinear", "bicubic"],
        background: str,
    ) -> "Preprocessing":
        """Return the preprocessing that the `PREPROCESSING_KEYS` of a data source describe."""
        height, width = (
            (image_size, image_size) if isinstance(image_size, int) else image_size or (0, 0)
        )
        crop_percent = 1.0 if crop_percent == "auto" else float(crop_percent)
        interpolation = "bilinear" if interpolation == "auto" else interpolation
        return cls(
            (height, width) if image_size is not None else None,
            crop_percent,
            fit,
            interpolation,
            background,
        )

    @property
    def text(self) -> str:
        """Return a description of the preprocessing, as it follows "photographs" in a sentence."""
        if self.size is None:
            return "in their own size"
        (height, width), size = self.bounds, "x".join(map(str, self.size))
        if self.fit == "letterbox":
            return f"at {size}: whole, padded with {self.background}, {self.interpolation}"
        scaled = f"short side {height}" if height == width else f"covering {height}x{width}"
        return f"at {size}: {scaled}, center crop, {self.interpolation}"

    def __call__(self, images: Tensor) -> Tensor:
        """Scale and crop images (..., C, H, W)."""
        return self.crop(self.scale(images))

    @property
    def bounds(self) -> Size:
        """Return the size (H, W) that scaled images just cover, or fit inside."""
        assert self.size is not None
        if self.fit == "letterbox":
            return self.size
        # This is timm's rule. The small number is added because 224 / (224 / 232) may be just
        # below 232.
        height, width = (math.floor(side / self.crop_percent + 1e-9) for side in self.size)
        return height, width

    def scaled_size(self, height: int, width: int) -> Size:
        """Return the size (H, W) to which an image is scaled.

        Raises ValueError if the scaled image has too many pixels. An image of 1x40,000 would be
        scaled to 224 x 8,960,000 before its center is cropped, and need gigabytes.
        """
        if self.size is None:
            return height, width
        new_height, new_width = self.bounds
        if self.fit == "letterbox":
            ratio = min(new_height / height, new_width / width)
            return max(1, round(height * ratio)), max(1, round(width * ratio))
        if new_height * width > new_width * height:
            size = new_height, width * new_height // height
        else:
            size = height * new_width // width, new_width
        limit = max(Image.MAX_IMAGE_PIXELS or math.inf, height * width, new_height * new_width)
        if math.prod(size) > limit:
            raise ValueError(
                f"{height}x{width} scaled to {size[0]}x{size[1]} (HxW), to cover "
                f"{new_height}x{new_width}, is more than {limit:,} pixels"
            )
        return size

    def scale(self, images: Tensor, size: Size | None = None) -> Tensor:
        """Scale images (..., C, H, W) before they are cropped or padded.

        `size` (H, W) is their original size, if a decoder has shrunk them.
        """
        return resize(images, self.scaled_size(*(size or size_of(images))), self.interpolation)

    def crop(self, scaled: Tensor) -> Tensor:
        """Crop the center of scaled images (..., C, H, W), or pad them."""
        if self.size is None:
            return scaled
        down, right = (
            side - scaled_side for side, scaled_side in zip(self.size, size_of(scaled), strict=True)
        )
        if self.fit == "letterbox":
            border = (right // 2, right - right // 2, down // 2, down - down // 2)
            return F.pad(scaled, border, value=ImageColor.getrgb(self.background)[0])
        top, left = round(-down / 2), round(-right / 2)
        return scaled[..., top : top + self.size[0], left : left + self.size[1]]


def resize(images: Tensor, size: Sequence[int], interpolation: str = "bilinear") -> Tensor:
    """Scale images (..., C, H, W) to `size` (H, W) with antialias, bit for bit as torchvision does.

    torchvision is not used, because its import takes as long as that of torch.
    """
    if size_of(images) == tuple(size):
        return images
    # Without AVX, torch interpolates bytes differently in bilinear mode. Bytes are then converted
    # to float32 and rounded, as in torchvision.
    has_avx = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    is_direct = images.is_floating_point() or has_avx or interpolation == "bicubic"
    batch = images.reshape(-1, *images.shape[-3:])
    scaled = F.interpolate(
        batch if is_direct else batch.float(),
        list(size),
        mode=interpolation,
        align_corners=False,
        antialias=True,
    )
    scaled = scaled if is_direct else scaled.round_().to(images.dtype)
    return scaled.reshape(*images.shape[:-2], *size)
