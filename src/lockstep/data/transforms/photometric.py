"""Change pixel values and colors with a strength per image, by the same bits on every device.

The functions are those of torchvision with the same names, on uint8 images. `images` are uint8
(B, C, H, W), and strengths are int64 (B,). A `factor`, in thousandths, blends the image with black,
gray or a blurred image. 0 gives these, and 1000 gives the image. A curve (B, C or 1, 256) maps each
pixel value to another one. All values are integers below 2**24, which are exact in float32,
too. On a CPU, float32 is several times as fast as int32.
"""

from collections.abc import Callable, Mapping
from functools import wraps

import torch
from torch import Tensor

from lockstep.data.transforms.moves import change_in_parts

Change = Callable[[Tensor, Tensor], Tensor]


def _lookup_change(curve: Change) -> Change:
    """Make a change of images from a function that returns their curves.

    Each pixel value is looked up in the curve of its image.
    """

    @wraps(curve)
    def change(images: Tensor, strengths: Tensor) -> Tensor:
        batch, channels = images.shape[:2]
        table = curve(images, strengths).to(torch.uint8).expand(batch, channels, 256)
        return table.gather(2, images.flatten(2).long()).view_as(images)

    return change


@_lookup_change
def brightness(images: Tensor, factors: Tensor) -> Tensor:
    return _thousandths(_grays(images) * factors.unsqueeze(1)).unsqueeze(1)


@_lookup_change
def contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Return the curve that moves values away from the mean gray of the image, or toward it."""
    gray = _luma(images) if images.shape[1] == 3 else images
    # In float64, the sum is exact in any order.
    sums = gray.flatten(1).sum(1, dtype=torch.float64).long().unsqueeze(1)
    factors = factors.unsqueeze(1)
    # This computes floor((f x + (1000 - f) mean) / 1000) with the mean as a fraction. Rounding down
    # twice is the same as rounding down once.
    offsets = ((1000 - factors) * sums).div(gray[0].numel(), rounding_mode="floor")
    return _thousandths(_grays(images) * factors + offsets).unsqueeze(1)


@_lookup_change
def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Return the curve that clears the lowest `bits`."""
    bits = bits.view(-1, 1, 1)
    return (_grays(images) >> bits) << bits


@_lookup_change
def solarize(images: Tensor, thresholds: Tensor) -> Tensor:
    """Return the curve that inverts all pixel values from a threshold on."""
    grays = _grays(images)
    return torch.where(grays >= thresholds.view(-1, 1, 1), 255 - grays, grays)


@_lookup_change
def autocontrast(images: Tensor, strengths: Tensor) -> Tensor:
    """Return the curve that stretches each channel to 0 .. 255.

    A channel with a single pixel value is unchanged.
    """
    grays = _grays(images)
    low, high = (bound.long().unsqueeze(2) for bound in torch.aminmax(images.flatten(2), dim=2))
    stretched = (
        ((grays - low) * 255).div((high - low).clamp(min=1), rounding_mode="floor").clamp(0, 255)
    )
    return torch.where(high > low, stretched, grays)


@_lookup_change
def equalize(images: Tensor, strengths: Tensor) -> Tensor:
    """Return the curve that makes all pixel values of a channel about equally frequent.

    The rule is that of Pillow.
    """
    flat = images.flatten(2).long()
    counts = flat.new_zeros(*flat.shape[:2], 256).scatter_add_(2, flat, torch.ones_like(flat))
    brightest = counts.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - brightest).div(255, rounding_mode="floor")
    below = counts.cumsum(2) - counts
    equal = (below + step // 2).div(step.clamp(min=1), rounding_mode="floor").clamp(max=255)
    return torch.where(step > 0, equal, _grays(images))


def saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Blend with gray, in images of 3 channels. Other images are unchanged."""
    return _blend(_luma(images), images, factors) if images.shape[1] == 3 else images


def hue(images: Tensor, shifts: Tensor) -> Tensor:
    """Shift the hue of images of 3 channels by `shifts` of -3000 to 3000.

    6000 is the complete color wheel. Other images are unchanged. Let chroma be max - min of a
    pixel, and let the hue be in sixths of the color wheel. Red is then min + chroma * (2 - its
    distance from 0), within min .. max. Green uses the distance from 2, and blue that from 4.
    Distances are multiplied by 1000 * chroma, to be integers.
    """
    if images.shape[1] != 3:
        return images
    wide = images.float()
    low, high = torch.aminmax(wide, dim=1, keepdim=True)
    red, green, blue = wide.split(1, 1)
    chroma = high - low
    position = torch.where(high == green, blue - red + 2 * chroma, red - green + 4 * chroma)
    position = (
        torch.where(high == red, green - blue, position)
        .mul_(1000)
        .add_(shifts.float().view(-1, 1, 1, 1) * chroma)
    )
    centers = torch.arange(0, 6000, 2000, device=images.device).view(1, 3, 1, 1)
    # Distances are up to 9 sixths, and are taken the short way around the wheel.
    third = 3000 * chroma
    distances = (position - centers * chroma).abs_().sub_(third).abs_().sub_(third).abs_()
    above = (2000 * chroma).sub(distances).clamp_(min=0).minimum(1000 * chroma)
    return _divide(above.add_(500), 1000).add_(low).to(torch.uint8)  # rounded to nearest


def draw_jitter(strengths: Mapping[str, float], draw: Callable[[str], Tensor]) -> dict[str, Tensor]:
    """Return the factors or shifts by name, for names whose strength is not 0.

    `draw` returns numbers in [0, 1), (1, B), for a name.
    """
    draws = {}
    for name, strength in strengths.items():
        if strength:
            low, high = (
                (-strength, strength) if name == "hue" else (max(0, 1 - strength), 1 + strength)
            )
            values = (6000 if name == "hue" else 1000) * (low + (high - low) * draw(name)[0])
            draws[name] = values.round().long()
    return draws


def jitter(images: Tensor, strengths: dict[str, Tensor]) -> Tensor:
    """Change brightness, contrast, saturation and hue, in this order, if they have `strengths`."""
    for change in (brightness, contrast, saturation, hue):
        if change.__name__ in strengths:
            images = change_in_parts(change, images, strengths[change.__name__])
    return images


def sharpness(images: Tensor, factors: Tensor) -> Tensor:
    """Blend with the blurred image. The outermost pixels are unchanged."""
    height, width = images.shape[2:]
    if min(height, width) < 3:
        return images
    wide = images.float()
    rows = wide[:, :, :-2] + wide[:, :, 1:-1] + wide[:, :, 2:]
    inner = wide[:, :, 1:-1, 1:-1]
    # This is a 3 x 3 mean, rounded to nearest, whose center counts five times.
    blurred = (rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * inner).mul_(1 / 13).round_()
    result = images.clone()
    result[:, :, 1:-1, 1:-1] = _blend(blurred, inner, factors)
    return result


def _thousandths(values: Tensor) -> Tensor:
    """Divide by 1000, clamp to 0 .. 255 and round down to uint8. `values` are overwritten."""
    return _divide(values.clamp_(0, 255_000), 1000).to(torch.uint8)


def _divide(values: Tensor, divisor: int) -> Tensor:
    """Divide integers and round down, in float32.

    Values are 0 to 256 times `divisor`, which is 1000 or 10,000. They are overwritten if they are
    float32. The division is a product, as a GPU may compute it anyway. A test compares every value
    with integer division.
    """
    return values.float().mul_(1 / divisor).floor_()


def _blend(degenerate: Tensor, images: Tensor, factors: Tensor) -> Tensor:
    """Return `degenerate` + factor * (`images` - `degenerate`), as uint8."""
    factors = factors.float().view(-1, 1, 1, 1)
    return _thousandths((factors * images).add_((1000 - factors) * degenerate))


def _grays(images: Tensor) -> Tensor:
    return torch.arange(256, device=images.device)


def _luma(images: Tensor) -> Tensor:
    """Return the brightness of RGB images with torchvision's weights, rounded down.

    The result is float32 (B, 1, H, W).
    """
    red, green, blue = images.float().split(1, 1)
    return _divide((2989 * red).add_(green, alpha=5870).add_(blue, alpha=1140), 10_000)
