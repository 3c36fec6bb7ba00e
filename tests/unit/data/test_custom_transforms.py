"""Custom transforms draw by seed, epoch and index, and what they return is checked."""

import functools
import random
from collections.abc import Callable
from typing import Any

import albumentations
import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from lockstep.data.images.dataset_samples import refuse_unpicklable
from lockstep.data.splits import ImageError
from lockstep.data.transforms.custom import CustomTransforms
from lockstep.distributed.rng import seed_of
from tests.support import transforms

NOISE = functools.partial(transforms.draw_everywhere, strength=40)
KEY = "augment.custom.noise"


def pipeline() -> albumentations.Compose:
    return albumentations.Compose(
        [
            albumentations.GaussNoise(p=0.5),
            albumentations.OneOf([albumentations.Rotate(p=1), albumentations.Blur(p=1)], p=0.8),
        ]
    )


def images(count: int) -> Tensor:
    source = torch.Generator().manual_seed(0)
    return torch.randint(0, 120, (count, 1, 8, 8), generator=source, dtype=torch.uint8)


@pytest.mark.parametrize(
    "transform",
    [NOISE, pipeline(), v2.RandomAffine([-30, 30])],
    ids=["function", "albumentations", "v2"],
)
def test_draws_by_index(transform: Callable[..., Any]) -> None:
    custom, batch, indices = CustomTransforms({KEY: transform}, 3), images(12), torch.arange(12)
    changed = custom(batch, 1, indices)
    order = torch.tensor([7, 2, 11, 0])
    assert torch.equal(custom(batch[order], 1, order), changed[order])
    assert not torch.equal(custom(batch, 2, indices), changed)
    assert not torch.equal(CustomTransforms({KEY: transform}, 4)(batch, 1, indices), changed)
    assert torch.equal(custom(batch, 1, indices), changed)


def test_global_states_kept() -> None:
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(5)
    expected = torch.rand(1).item(), np.random.rand(), random.random()
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(5)
    CustomTransforms({KEY: NOISE}, 3)(images(2), 0, torch.arange(2))
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected


def test_called_in_order() -> None:
    custom = CustomTransforms(
        {"double": lambda image: image * 2, "add": lambda image: image + 1}, 0
    )
    assert torch.equal(custom(images(3), 0, torch.arange(3)), images(3) * 2 + 1)


def test_albumentations_as_called_directly() -> None:
    (changed,) = CustomTransforms({KEY: pipeline()}, 3)(images(1), 1, torch.tensor([8]))
    direct = pipeline()
    direct.set_random_seed(seed_of(3, "custom", KEY, 1, 8))
    expected = direct(image=images(1)[0].permute(1, 2, 0).numpy())["image"]
    assert np.array_equal(changed.permute(1, 2, 0).numpy(), expected)


def test_tensor_of_albumentations() -> None:
    (changed,) = CustomTransforms({KEY: albumentations.ToTensorV2()}, 0)(
        images(1), 0, torch.arange(1)
    )
    assert torch.equal(changed, images(1)[0])


@pytest.mark.parametrize(
    ("transform", "problem"),
    [
        (transforms.crop, "uint8 of shape (1, 7, 8)"),
        (transforms.scale, "float32 of shape (1, 8, 8)"),
        (transforms.to_array, "ndarray"),
        (transforms.fail, "failed for training image 0"),
        (transforms.return_nothing, "returns nothing"),
        (v2.ToDtype(torch.float32), "float32 of shape (1, 8, 8)"),
        (albumentations.ToFloat(), "float32 of shape (1, 8, 8)"),
    ],
)
def test_wrong_return_refused(transform: Callable[..., Any], problem: str) -> None:
    with pytest.raises(ImageError, match=r"^augment\.custom\.noise ") as refusal:
        CustomTransforms({KEY: transform}, 0)(images(1), 0, torch.arange(1))
    assert problem in str(refusal.value)


def test_own_generator_refused() -> None:
    custom = CustomTransforms({KEY: transforms.draw_elsewhere}, 0)
    with pytest.raises(ImageError, match=r"^augment\.custom\.noise "):
        custom.refuse_unrepeatable(lambda: custom(images(4), 0, torch.arange(4)))


def test_lambda_refused() -> None:
    with pytest.raises(ImageError, match=r"^augment\.custom\.noise \(function\) cannot be pickled"):
        refuse_unpicklable(lambda image: image, KEY)
