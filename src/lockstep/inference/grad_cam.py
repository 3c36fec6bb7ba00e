"""What a network looked at: Grad-CAM (Selvaraju et al. 2017) of its last maps, and pictures of it."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook

from lockstep.config.errors import ConfigError, Error
from lockstep.models.classifier import Classifier
from lockstep.runs.files import atomic_file
from lockstep.tasks.classification import Classification

SMALLEST = 224  # pixels of the longer side of a picture: smaller images are enlarged
OPACITY = 0.65  # of the colour where a network looked most


def last_maps(module: Classifier) -> nn.Module:
    """Return the last layer whose output are maps (B, C, h, w) of the image: what comes after them is a vector.

    Raises ConfigError for a network without one, such as a transformer, whose tokens (B, n, C) follow its maps.
    """
    shape, found = module.image_format.image_shape, list[tuple[nn.Module, torch.Size]]()

    def look(layer: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.dim() in (3, 4) and min(output.shape[1:][-2:]) > 1:
            found.append((layer, output.shape[1:]))

    with module.eager_mode(), torch.inference_mode(), register_module_forward_hook(look):
        outputs = module(torch.zeros(1, *shape, device=module.device))
    if isinstance(module.task, Classification) and outputs.dim() == 2 and found:
        layer, (*channels, height, width) = found[-1]
        # maps with their channels last would be read as very wide ones
        if channels and 0.5 <= (height * shape[2]) / (width * shape[1]) <= 2:
            return layer
    problem = "cannot be explained: Grad-CAM needs a classification by a network that ends with maps (B, C, H, W)"
    raise ConfigError(Error(type(module.net).__name__, problem, "remove --explain"))


def heat_maps(module: Classifier, layer: nn.Module, inputs: Tensor, classes: Tensor) -> Tensor:
    """Return where `inputs` (B, C, H, W) speak for `classes` (B,), from 0 to 1 at most, in host memory (B, H, W).

    The maps of `layer` are weighted by the mean gradient of the logit of the class, added up, cut at 0 (equations 1 and
    2), and divided by their maximum.
    """
    maps: list[Tensor] = []
    thread = threading.get_ident()

    def cut(layer: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        """Make the output a leaf of the graph, also in a frozen network; the next operation may work in place.

        Passes of other threads, which share the network, stay as they are.
        """
        if threading.get_ident() != thread:
            return None
        maps.append(output.detach().requires_grad_())
        return maps[-1].clone()

    with module.eager_mode(), torch.enable_grad(), layer.register_forward_hook(cut):
        score = module(inputs).gather(1, classes.unsqueeze(1)).sum()
    (gradient,) = torch.autograd.grad(score, maps[-1])
    weights = gradient.float().mean((2, 3), keepdim=True)
    heat = F.relu((weights * maps[-1].detach().float()).sum(1, keepdim=True))
    heat = F.interpolate(heat, inputs.shape[2:], mode="bilinear", align_corners=False).squeeze(1)
    return (heat / heat.amax((1, 2), keepdim=True).clamp(min=torch.finfo(heat.dtype).tiny)).cpu()


def overlays(pixels: Tensor, heat: Tensor) -> NDArray[np.uint8]:
    """Lay heat (B, H, W) on the grey of images (B, C, H, W), the opaquer the hotter. Returns (B, 3, H, W)."""
    import matplotlib as mpl

    grey = pixels.float().mean(1).cpu()
    if pixels.is_floating_point():  # of any range: from the darkest to the brightest
        low, high = grey.amin((1, 2), keepdim=True), grey.amax((1, 2), keepdim=True)
        grey = 255 * (grey - low) / (high - low).clamp(min=1e-12)
    opacity = OPACITY * heat.numpy()[..., None]
    mixed = (1 - opacity) * grey.numpy()[..., None] + opacity * 255 * mpl.colormaps["inferno"](heat.numpy())[..., :3]
    return mixed.round().astype(np.uint8).transpose(0, 3, 1, 2)


def write(folder: Path, names: Sequence[str], pixels: Tensor, heat: Tensor) -> None:
    """Write NAME.png of each image into a folder. Raises ConfigError for a name that leads out of it."""
    for name, picture in zip(names, overlays(pixels, heat), strict=True):
        path = folder / f"{name}.png"
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(Error("--explain", f": {name} is not below data.root", "use a folder of all images"))
        path.parent.mkdir(parents=True, exist_ok=True)
        factor = max(1, SMALLEST // max(picture.shape[1:]))
        with atomic_file(path) as file:
            Image.fromarray(picture.repeat(factor, 1).repeat(factor, 2).transpose(1, 2, 0)).save(file, format="PNG")
