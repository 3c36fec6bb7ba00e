"""Changes of grey level and colour with a strength per image, in whole numbers: the same bits on every device.

They are torchvision's of the same names on uint8 images. `images` are uint8 (B, C, H, W); `levels`, int64 (B,), are
strengths -30 to 30. A curve (B, C or 1, 256) maps each grey level to another. Whole numbers below 2**24 are exact in
float32 too, which is several times as fast as int32 on a CPU.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def apply_curves(images: Tensor, curves: Tensor) -> Tensor:
    """Look every pixel up in the curve of its image and channel."""
    batch, channels = images.shape[:2]
    table = curves.to(torch.uint8).expand(batch, channels, 256)
    return table.gather(2, images.flatten(2).long()).view_as(images)


def brightness(images: Tensor, levels: Tensor) -> Tensor:
    return _thousandths(_greys(images) * _factors(levels)).unsqueeze(1)


def contrast(images: Tensor, levels: Tensor) -> Tensor:
    """Curve away from the mean grey of the image, or towards it."""
    grey = _luma(images) if images.shape[1] == 3 else images
    # in float64 the sum is exact in any order
    sums, factors = grey.flatten(1).sum(1, dtype=torch.float64).long().unsqueeze(1), _factors(levels)
    # floor((f x + (1000 - f) mean) / 1000) with the mean as a fraction: rounded down twice is rounded down once
    offsets = ((1000 - factors) * sums).div(grey[0].numel(), rounding_mode="floor")
    return _thousandths(_greys(images) * factors + offsets).unsqueeze(1)


def posterize(images: Tensor, levels: Tensor) -> Tensor:
    """Curve that keeps the 8 (level 0) to 2 (level 30) highest bits."""
    dropped = (levels.abs() + 2).div(5, rounding_mode="floor").view(-1, 1, 1)
    return (_greys(images) >> dropped) << dropped


def solarize(images: Tensor, levels: Tensor) -> Tensor:
    """Curve that inverts all levels from a threshold on: 255 at level 0 to 0 at level 30."""
    greys = _greys(images)
    return torch.where(2 * greys >= 17 * (30 - levels.abs()).view(-1, 1, 1), 255 - greys, greys)


def autocontrast(images: Tensor, levels: Tensor) -> Tensor:
    """Curve that stretches each channel to 0 .. 255; a channel of one grey level is unchanged."""
    greys = _greys(images)
    low, high = (bound.long().unsqueeze(2) for bound in torch.aminmax(images.flatten(2), dim=2))
    stretched = ((greys - low) * 255).div((high - low).clamp(min=1), rounding_mode="floor").clamp(0, 255)
    return torch.where(high > low, stretched, greys)


def equalize(images: Tensor, levels: Tensor) -> Tensor:
    """Curve that makes all grey levels of a channel about equally frequent, by Pillow's rule."""
    flat = images.flatten(2).long()
    counts = flat.new_zeros(*flat.shape[:2], 256).scatter_add_(2, flat, torch.ones_like(flat))
    brightest = counts.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - brightest).div(255, rounding_mode="floor")
    below = counts.cumsum(2) - counts
    equal = (below + step // 2).div(step.clamp(min=1), rounding_mode="floor").clamp(max=255)
    return torch.where(step > 0, equal, _greys(images))


CURVES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    brightness,
    contrast,
    posterize,
    solarize,
    autocontrast,
    equalize,
)


def color(images: Tensor, levels: Tensor) -> Tensor:
    """Change the saturation of images of 3 channels; others are unchanged."""
    return _blend(_luma(images), images, levels) if images.shape[1] == 3 else images


def sharpness(images: Tensor, levels: Tensor) -> Tensor:
    """Blend with the blurred image; the outermost pixels are unchanged."""
    height, width = images.shape[2:]
    if min(height, width) < 3:
        return images
    wide = images.float()
    rows = wide[:, :, :-2] + wide[:, :, 1:-1] + wide[:, :, 2:]
    inner = wide[:, :, 1:-1, 1:-1]
    # a 3 x 3 mean whose centre counts five times, rounded to nearest
    blurred = (rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * inner).mul_(1 / 13).round_()
    changed = images.clone()
    changed[:, :, 1:-1, 1:-1] = _blend(blurred, inner, levels)
    return changed


def _factors(levels: Tensor) -> Tensor:
    """Factors of 0.01 to 1.99 in thousandths, (B, 1)."""
    return (1000 + 33 * levels).unsqueeze(1)


def _thousandths(values: Tensor) -> Tensor:
    """Divide by 1000: uint8, clamped to 0 .. 255 and rounded down."""
    return _divided(values.clamp(0, 255_000), 1000).to(torch.uint8)


def _divided(values: Tensor, divisor: int) -> Tensor:
    """Divide whole numbers, 0 to 255 times `divisor`, 1000 or 10,000, rounded down, float32.

    By a product, as a GPU may do anyway; a test compares every value with integer division.
    """
    return (values.float() * (1 / divisor)).floor_()


def _blend(degenerate: Tensor, images: Tensor, levels: Tensor) -> Tensor:
    """`degenerate` + factor * (`images` - `degenerate`), as uint8."""
    factors = _factors(levels).float().view(-1, 1, 1, 1)
    return _thousandths(factors * images + (1000 - factors) * degenerate)


def _greys(images: Tensor) -> Tensor:
    return torch.arange(256, device=images.device)


def _luma(images: Tensor) -> Tensor:
    """Brightness of RGB images with torchvision's weights, rounded down, float32 (B, 1, H, W)."""
    red, green, blue = images.float().split(1, 1)
    return _divided(2989 * red + 5870 * green + 1140 * blue, 10_000)
