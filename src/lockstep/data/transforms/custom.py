"""Apply custom transforms to training images, each from a random state of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

from lockstep.data.images.dataset_samples import reason_of, shape_text
from lockstep.data.images.random_states import keep_random_states, set_random_states
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
                        problem = f"failed for training image {index} ({reason_of(error)})"
                        raise ImageError([f"{key} {problem}: correct it."]) from error
                    image = _checked(result, image, key)
                changed[i] = image
        return changed

    def refuse_unpicklable(self) -> None:
        """Raise ImageError for a transform that cannot be sent to worker processes."""
        for key, transform in self.transforms.items():
            try:
                ForkingPickler.dumps(transform)
            except Exception as error:  # Custom classes can raise any exception.
                hint = "replace lambdas by functions of a module"
                problem = f"cannot be pickled ({reason_of(error)})"
                raise ImageError([f"{key} {problem}: {hint}."]) from error

    def refuse_unrepeatable(self, make_images: Callable[[], Tensor]) -> None:
        """Raise ImageError if two calls of `make_images`, which uses the transforms, differ."""
        if not torch.equal(make_images(), make_images()):
            keys = " or ".join(self.transforms)
            problem = "changes the same images differently when it is called again"
            hint = "draw from torch, NumPy or random, or name the pipeline of Albumentations itself"
            raise ImageError([f"{keys} {problem}: {hint}."])


def _call(transform: Callable[..., Any], image: Tensor, seed: int) -> Any:
    if not _is_of_albumentations(transform):
        return transform(image.clone())
    transform.set_random_seed(seed)  # pyright: ignore[reportFunctionMemberAccess]
    array = transform(image=image.permute(1, 2, 0).contiguous().numpy())["image"]
    # ToTensorV2 has returned a tensor.
    return array if isinstance(array, Tensor) else torch.from_numpy(array).permute(2, 0, 1)


def _checked(result: Any, image: Tensor, key: str) -> Tensor:
    """Return the result of the transform at `key`. Raises ImageError if it is not like `image`."""
    if result is None:
        raise ImageError([f"{key} returns nothing: return the changed image."])
    if not isinstance(result, Tensor):
        hint = "return a tensor, e.g. by transforms.v2.ToImage()"
        raise ImageError([f"{key} returns a {type(result).__name__}: {hint}."])
    if result.is_floating_point() and not image.is_floating_point():
        hint = "return uint8, since Lockstep normalizes later"
        raise ImageError([f"{key} returns {shape_text(result)}: {hint}."])
    if (result.shape, result.dtype) != (image.shape, image.dtype):
        problem = f"returns {shape_text(result)} for an image {shape_text(image)}"
        raise ImageError([f"{key} {problem}: return the same shape and dtype."])
    return result.as_subclass(Tensor)


def _is_of_albumentations(transform: Any) -> bool:
    """Return whether a transform has the interface of Albumentations.

    Albumentations is not imported for this.
    """
    modules = (base.__module__ for base in type(transform).__mro__)
    return any(module.partition(".")[0] == "albumentations" for module in modules)
