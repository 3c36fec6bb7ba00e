"""Apply custom transforms to training images, each from a random state of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lockstep.data.images.dataset_samples import (
    keep_random_states,
    reason_of,
    set_random_states,
    shape_text,
)
from lockstep.data.splits import ImageError
from lockstep.distributed.rng import seed_of


@dataclass(frozen=True)
class CustomTransforms:
    """Calls `transforms`, by their configuration keys, with each training image in turn.

    A transform gets an image uint8 (C, H, W), and returns one of the same shape and dtype. One of
    Albumentations gets and returns an array (H, W, C). Before each image, the global random states
    of torch (CPU), NumPy and `random`, and those of transforms of Albumentations, are set by
    (seed, epoch, index). An image is therefore the same for any number of workers, and after a
    resume.
    """

    transforms: Mapping[str, Callable[..., Any]]
    seed: int

    def __call__(self, images: Tensor, epoch: int, drawn_by: Tensor) -> Tensor:
        """Return the changed images (n, C, H, W). Random states depend on `drawn_by`, int64 (n,).

        Raises ImageError for a transform that raises an exception, or returns something else.
        """
        changed = torch.empty_like(images)
        with keep_random_states():
            for i, index in enumerate(drawn_by.tolist()):
                image = images[i]
                for key, transform in self.transforms.items():
                    seed = seed_of(self.seed, "custom", key, epoch, index)
                    set_random_states(seed)
                    try:
                        result = _call(transform, image, seed)
                    except Exception as error:  # Custom code can raise any exception.
                        raise ImageError(
                            [
                                f"{key} failed for training image {index} ({reason_of(error)}): "
                                "correct it."
                            ]
                        ) from error
                    image = _checked(result, image, key)
                changed[i] = image
        return changed

    def refuse_unrepeatable(self, make_images: Callable[[], Tensor]) -> None:
        """Raise ImageError if two calls of `make_images`, which uses the transforms, differ."""
        if not torch.equal(make_images(), make_images()):
            keys = " or ".join(self.transforms)
            raise ImageError(
                [
                    f"{keys} changes the same images differently when it is called again: draw "
                    "from torch, NumPy or random, or name the pipeline of Albumentations itself."
                ]
            )


def _call(transform: Any, image: Tensor, seed: int) -> Any:
    # Albumentations is not imported for this.
    modules = {base.__module__.partition(".")[0] for base in type(transform).__mro__}
    if "albumentations" not in modules:
        return transform(image.clone())
    transform.set_random_seed(seed)
    array = transform(image=image.permute(1, 2, 0).contiguous().numpy())["image"]
    # ToTensorV2 has returned a tensor.
    return array if isinstance(array, Tensor) else torch.from_numpy(array).permute(2, 0, 1)


def _checked(result: Any, image: Tensor, key: str) -> Tensor:
    """Return the result of the transform at `key`. Raises ImageError if it is not like `image`."""
    if result is None:
        problem = "nothing: return the changed image"
    elif not isinstance(result, Tensor):
        problem = f"a {type(result).__name__}: return a tensor, e.g. by transforms.v2.ToImage()"
    elif (result.shape, result.dtype) == (image.shape, image.dtype):
        return result.as_subclass(Tensor)
    elif result.is_floating_point() and not image.is_floating_point():
        problem = f"{shape_text(result)}: return uint8, since Lockstep normalizes later"
    else:
        problem = f"{shape_text(result)} for an image {shape_text(image)}"
        problem += ": return the same shape and dtype"
    raise ImageError([f"{key} returns {problem}."])
