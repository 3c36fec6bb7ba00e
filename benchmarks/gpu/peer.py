"""ResNet-18 in raw PyTorch as a good engineer writes it, to compare Lockstep with: no graphs, no compile, no Lockstep.

`python -m benchmarks.gpu.peer fashion_mnist|cifar10 DATA EPOCHS WIDTH NUM_IMAGES FILE`. fashion_mnist has Lockstep's
recipe of 2026-11-23; cifar10 that of KellerJordan/cifar10-zoo, baselines/train_resnet18_94.py, for a folder of images:
94.0 % with flip test on the original pixels.
"""

import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision.datasets import FashionMNIST, ImageFolder
from torchvision.transforms import PILToTensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # in float32
EVAL_BATCH_SIZE = 2000


class Recipe(NamedTuple):
    """A triangle of learning rates from `first` to 1 at `peak` to 0, times `lr`."""

    batch_size: int
    lr: float
    first: float
    peak: float
    label_smoothing: float
    is_augmented: bool
    held_out: float  # fraction of the images


RECIPES = {
    "fashion_mnist": Recipe(512, 0.4, 0.0, 0.23, 0.1, is_augmented=False, held_out=0.1),
    "cifar10": Recipe(500, 0.2, 0.2, 0.2, 0.0, is_augmented=True, held_out=0.0),
}


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != channels:
            self.shortcut.extend([nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)])

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        return F.relu(y + self.shortcut(x), inplace=True)


def resnet18(in_channels: int, width: int) -> nn.Module:
    """Return the network for small images: 3x3 stem, no max-pool."""
    sizes = [width, width, 2 * width, 4 * width, 8 * width]
    stages = [
        nn.Sequential(Block(before, size, 1 + (before != size)), Block(size, size, 1))
        for before, size in pairwise(sizes)
    ]
    stem = (nn.Conv2d(in_channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))
    return nn.Sequential(*stem, *stages, *head)


def images(name: str, folder: Path, split: str, count: int) -> tuple[Tensor, Tensor]:
    """Read the first `count` uint8 images (N, C, H, W) and their classes to DEVICE."""
    if name == "fashion_mnist":
        read = FashionMNIST(str(folder), train=split == "train")
        pixels, targets = read.data.unsqueeze(1), read.targets
    else:
        files = ImageFolder(str(folder / split), transform=PILToTensor())
        read = DataLoader(files, EVAL_BATCH_SIZE, num_workers=len(os.sched_getaffinity(0)))
        pixels, targets = map(torch.cat, zip(*read, strict=True))
    return pixels[:count].to(DEVICE), targets[:count].to(DEVICE)


def augmented(x: Tensor, shift: int = 4, hole: int = 12) -> Tensor:
    """Shift by reflection, mirror half of the images and set a square inside each to 0, the mean."""
    count, size = len(x), x.shape[-1]
    rows, columns = torch.randint(0, 2 * shift + 1, (2, count, 1), device=DEVICE) + torch.arange(size, device=DEVICE)
    columns = torch.where(torch.rand(count, 1, device=DEVICE) < 0.5, columns, columns.flip(1))
    padded = F.pad(x, (shift,) * 4, "reflect").permute(0, 2, 3, 1)
    every = torch.arange(count, device=DEVICE)[:, None, None]
    x = padded[every, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    line = torch.arange(size, device=DEVICE) - torch.randint(0, size - hole + 1, (2, count, 1), device=DEVICE)
    tall, wide = (line >= 0) & (line < hole)
    return x.masked_fill((tall[:, :, None] & wide[:, None, :])[:, None], 0.0)


def accuracy(net: nn.Module, x: Tensor, targets: Tensor, *, is_flipped: bool = False) -> float:
    net.eval()
    right = torch.zeros((), device=DEVICE)
    with torch.inference_mode(), torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
        for part, classes in zip(x.split(EVAL_BATCH_SIZE), targets.split(EVAL_BATCH_SIZE), strict=True):
            outputs = net(part) + net(part.flip(3)) if is_flipped else net(part)
            right += (outputs.argmax(1) == classes).sum()
    return right.item() / len(x)


def main() -> None:
    """Train, and write the seconds of each epoch with its validation, and the accuracies, to FILE."""
    (name, data, *numbers), path = sys.argv[1:-1], sys.argv[-1]
    num_epochs, width, count = map(int, numbers)
    recipe = RECIPES[name]
    torch.backends.cudnn.benchmark = True
    train, targets = images(name, Path(data), "train", count)
    test, test_targets = images(name, Path(data), "test", count)
    mean, std = ([f(channel.float()).item() for channel in train.unbind(1)] for f in (torch.mean, torch.std))
    mean, std = (torch.tensor(values, device=DEVICE).view(1, -1, 1, 1) for values in (mean, std))

    def normalized(x: Tensor) -> Tensor:
        return x.float().sub_(mean).div_(std).contiguous(memory_format=torch.channels_last)

    num_trained = round((1 - recipe.held_out) * len(train))
    (train, held), (targets, held_targets) = ((x[:num_trained], x[num_trained:]) for x in (train, targets))
    held, test = normalized(held), normalized(test)
    net = resnet18(train.shape[1], width).to(DEVICE).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), recipe.lr, 0.9, weight_decay=5e-4, nesterov=True, fused=True)
    total = num_epochs * -(-len(train) // recipe.batch_size)
    warm_up = recipe.peak * total
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(
            recipe.first + (1 - recipe.first) * (step + 1) / warm_up, (total - step) / (total - warm_up), 1.0
        ),
    )
    seconds, found = [], {}
    for _ in range(num_epochs):
        getattr(torch, DEVICE).synchronize()
        started = time.perf_counter()
        net.train()
        for batch in torch.randperm(len(train), device=DEVICE).split(recipe.batch_size):
            x = normalized(train[batch])
            x = augmented(x) if recipe.is_augmented else x
            with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
                loss = F.cross_entropy(net(x), targets[batch], label_smoothing=recipe.label_smoothing)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
        if len(held):
            found["val"] = accuracy(net, held, held_targets)
        getattr(torch, DEVICE).synchronize()
        seconds.append(time.perf_counter() - started)
        print(f"{seconds[-1]:.2f} s", flush=True)
    found |= {"test": accuracy(net, test, test_targets), "flip": accuracy(net, test, test_targets, is_flipped=True)}
    Path(path).write_text(json.dumps({"seconds": seconds, **found}))


if __name__ == "__main__":
    main()
