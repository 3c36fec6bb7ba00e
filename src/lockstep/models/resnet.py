"""Define ResNet-18 (He et al. 2015, table 1) for images from 8x8 pixels on.

The parameter names are those of torchvision.
"""

from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Doc, override

from lockstep.distributed.batch_norm import BatchNorm2d
from lockstep.system.types import Fraction, Positive


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut around them.

    The shortcut has a 1x1 convolution if the shape changes.
    """

    def __init__(
        self, in_channels: int, channels: int, *, stride: int, shortcut_norm: bool, bias: bool
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=bias)
        self.bn1 = BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=bias)
        self.bn2 = BatchNorm2d(channels)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or in_channels != channels:
            self.downsample = nn.Sequential(nn.Conv2d(in_channels, channels, 1, stride, bias=bias))
            if shortcut_norm:
                self.downsample.append(BatchNorm2d(channels))

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return (B, channels, ceil(H / stride), ceil(W / stride)) for (B, in_channels, H, W)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.bn1(self.conv1(x), relu=True)
        return self.bn2(self.conv2(y), shortcut, relu=True)


class ResNet18(nn.Module):
    """ResNet-18, which maps images (B, in_channels, H, W) to logits (B, num_classes).

    H and W must be at least 8, and B may be 0. The network has a stem and four stages of two blocks
    with `width` times 1, 2, 4, 8 channels. A global mean, dropout of probability `dropout`, and a
    linear layer follow.

    The `stem` "small" is a 3x3 convolution at full resolution, for images up to about 64x64.
    "imagenet" is 7x7 with stride 2 and a 3x3 max-pool with stride 2. torchvision's resnet18 has
    width=64, stem="imagenet", shortcut_norm=True, bias=False. "Dive into Deep Learning" (section
    8.6) has shortcut_norm=False, bias=True.

    The `init` "kaiming" draws convolutions by fan-out for ReLU and sets their bias to 0. It also
    sets the last norm's weight of every block to 0, so that a block starts as its shortcut (Goyal
    et al. 2017, section 5.1). "normal" draws the weights of convolutions and the linear layer from
    N(0, 0.01^2), and "normal_zero" also sets their bias to 0. Other parameters have torch's initial
    values. With "torch", all parameters do.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        width: Annotated[
            Positive, Doc("channels of the first stage; 2, 4 and 8 times as many in the next ones")
        ],
        stem: Annotated[
            Literal["small", "imagenet"],
            Doc("small: 3x3, stride 1; imagenet: 7x7, stride 2, and max-pool"),
        ],
        shortcut_norm: Annotated[bool, Doc("batch norm after the 1x1 shortcuts")],
        bias: Annotated[bool, Doc("bias in the convolutions")],
        dropout: Annotated[Fraction, Doc("dropout before the last layer")],
        init: Annotated[
            Literal["kaiming", "normal", "normal_zero", "torch"],
            Doc(
                "kaiming: He, last norms 0; normal: N(0, 0.01); normal_zero: also biases 0; "
                "torch: its defaults"
            ),
        ],
    ) -> None:
        super().__init__()
        kernel_size, stride, padding = {"small": (3, 1, 1), "imagenet": (7, 2, 3)}[stem]
        self.conv1 = nn.Conv2d(in_channels, width, kernel_size, stride, padding, bias=bias)
        self.bn1 = BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem == "imagenet" else nn.Identity()

        def stage(before: int, channels: int, stride: int) -> nn.Sequential:
            return nn.Sequential(
                Block(before, channels, stride=stride, shortcut_norm=shortcut_norm, bias=bias),
                Block(channels, channels, stride=1, shortcut_norm=shortcut_norm, bias=bias),
            )

        self.layer1 = stage(width, width, 1)
        self.layer2 = stage(width, 2 * width, 2)
        self.layer3 = stage(2 * width, 4 * width, 2)
        self.layer4 = stage(4 * width, 8 * width, 2)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(8 * width, num_classes)
        if init != "torch":
            draws = {
                "kaiming": _draw_kaiming,
                "normal": _draw_normal,
                "normal_zero": _draw_normal_zero,
            }
            self.apply(draws[init])

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, num_classes) for images (B, C, H, W). For B = 0, gradients are zero."""
        x = self.maxpool(self.bn1(self._stem(x), relu=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.dropout(x.mean((2, 3))))

    def _stem(self, x: Tensor) -> Tensor:
        """Apply the first convolution.

        torch treats one channel as NCHW. On a GPU in channels_last and 16 bits, grayscale images
        therefore get eight channels.
        """
        is_last = next(self.layer1.parameters()).stride(1) == 1
        if not (x.is_cuda and x.shape[1] == 1 and is_last and torch.is_autocast_enabled("cuda")):
            return self.conv1(x)
        layer = self.conv1
        return F.conv2d(
            _widen_channels(x),
            _widen_channels(layer.weight),
            layer.bias,
            layer.stride,
            layer.padding,
        )


def _widen_channels(x: Tensor) -> Tensor:
    """Return x (B, 1, H, W) with seven more channels of zeros, in channels_last."""
    return F.pad(x.permute(0, 2, 3, 1), (0, 7)).permute(0, 3, 1, 2)


def _draw_kaiming(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    elif isinstance(layer, Block):
        nn.init.zeros_(layer.bn2.weight)


def _draw_normal(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.normal_(layer.weight, 0, 0.01)


def _draw_normal_zero(layer: nn.Module) -> None:
    _draw_normal(layer)
    if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
        nn.init.zeros_(layer.bias)
