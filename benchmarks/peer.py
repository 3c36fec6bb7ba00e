"""Train a ResNet-18 in raw PyTorch as a good engineer writes it, to compare with Lockstep.

It has no graphs, no compile, no Lockstep.

`python -m benchmarks.peer DATA EPOCHS FILE` trains Fashion-MNIST by Lockstep's recipe of
2026-11-23.
"""

import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.datasets import FashionMNIST

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # in float32
BATCH_SIZE, EVAL_BATCH_SIZE, RATE, NUM_TRAINED = 512, 2000, 0.4, 54_000


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
            self.shortcut.extend(
                [nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)]
            )

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
    stem = (
        nn.Conv2d(in_channels, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))
    return nn.Sequential(*stem, *stages, *head)


def accuracy(net: nn.Module, x: Tensor, targets: Tensor) -> float:
    net.eval()
    num_right = torch.zeros((), device=DEVICE)
    with torch.inference_mode(), torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
        for batch, classes in zip(
            x.split(EVAL_BATCH_SIZE), targets.split(EVAL_BATCH_SIZE), strict=True
        ):
            num_right += (net(batch).argmax(1) == classes).sum()
    return num_right.item() / len(x)


def train(folder: Path, num_epochs: int) -> list[float]:
    """Return the seconds of each epoch with its validation."""
    torch.backends.cudnn.benchmark = True
    files = FashionMNIST(str(folder))
    pixels, targets = files.data.unsqueeze(1).to(DEVICE), files.targets.to(DEVICE)
    mean, std = pixels.float().mean().item(), pixels.float().std().item()

    def normalized(x: Tensor) -> Tensor:
        return x.float().sub_(mean).div_(std).contiguous(memory_format=torch.channels_last)

    held, held_targets = normalized(pixels[NUM_TRAINED:]), targets[NUM_TRAINED:]
    net = resnet18(1, 64).to(DEVICE)
    net = net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    optimizer = torch.optim.SGD(
        net.parameters(), RATE, 0.9, weight_decay=5e-4, nesterov=True, fused=True
    )
    num_steps = num_epochs * -(-NUM_TRAINED // BATCH_SIZE)
    warm_up = 0.23 * num_steps
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm_up, (num_steps - step) / (num_steps - warm_up), 1.0),
    )
    seconds = []
    for _ in range(num_epochs):
        getattr(torch, DEVICE).synchronize()
        started = time.perf_counter()
        net.train()
        for batch in torch.randperm(NUM_TRAINED, device=DEVICE).split(BATCH_SIZE):
            with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
                loss = F.cross_entropy(
                    net(normalized(pixels[batch])), targets[batch], label_smoothing=0.1
                )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
        accuracy(net, held, held_targets)
        getattr(torch, DEVICE).synchronize()
        seconds.append(time.perf_counter() - started)
        print(f"{seconds[-1]:.2f} s", flush=True)
    return seconds


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(train(Path(sys.argv[1]), int(sys.argv[2]))))
