"""The network: convolutions with batch norm, and one linear layer."""

from torch import Tensor, nn


class Net(nn.Module):
    """Maps images (B, in_channels, H, W) to logits (B, num_classes); B is 0 in an empty shard."""

    def __init__(self, in_channels: int, num_classes: int, *, width: int, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(
                nn.Conv2d(in_channels, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            ),
            *(
                nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
                nn.BatchNorm2d(2 * width),
                nn.ReLU(),
            ),
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(dropout)),
        )
        self.classes = nn.Linear(8 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(self.features(x))
