"""Custom transforms of training images."""

import random

import numpy as np
import torch
from torch import Tensor

PIXELS = np.random.default_rng(0)  # draws on and on


def draw_everywhere(image: Tensor, strength: int) -> Tensor:
    """Add numbers that are drawn from torch, NumPy and `random`."""
    noise = torch.randint(0, strength, image.shape)
    shift = np.random.randint(strength) + random.randrange(strength)
    return (image + noise + shift).clamp(max=255).to(torch.uint8)


def draw_elsewhere(image: Tensor) -> Tensor:
    return image ^ int(PIXELS.integers(1, 256))


def crop(image: Tensor) -> Tensor:
    return image[:, 1:]


def scale(image: Tensor) -> Tensor:
    return image / 255


def to_array(image: Tensor) -> object:
    return image.numpy()


def fail(image: Tensor) -> Tensor:
    raise ArithmeticError("no such image")


def return_nothing(image: Tensor) -> None:
    image += 1
