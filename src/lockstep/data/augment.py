"""Augmentation of a whole batch at once, each sample by its own draw, the same draw for any number of workers."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep.parallel.partition import Share
from lockstep.parallel.randomness import generator


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Crop at random from a zero border of `crop_padding` pixels, mirror at random, fill a random square with `fill`.

    `cutout` is the side of the square in pixels; its centre is anywhere in the image, so the square may hang over the
    edge (DeVries and Taylor 2017). `fill` has one value 0..255 per channel. 0 and False switch a part off.
    """

    crop_padding: int
    flip: bool
    cutout: int
    fill: tuple[int, ...]
    seed: int

    def __call__(self, images: Tensor, share: Share) -> Tensor:
        """Augment this rank's `share` of a micro-batch: `images` uint8 (share.hi - share.lo, C, H, W), any device."""
        if not (self.crop_padding or self.flip or self.cutout):
            return images
        height, width = images.shape[-2:]
        return self.apply(images, self.draw(share, height, width).to(images.device, non_blocking=True))

    def draw(self, share: Share, height: int, width: int) -> Tensor:
        """Draw (top, left, mirror, centre y, centre x) of the share's samples: int64 (5, share.hi - share.lo), CPU.

        Drawn for the whole micro-batch, then cut: the same numbers for a sample on any rank of any world size.
        """
        source = generator(self.seed, share.epoch, share.micro_step, "augment")
        ends = (2 * self.crop_padding + 1, 2 * self.crop_padding + 1, 2, height, width)
        draws = torch.stack([torch.randint(end, (share.size,), generator=source) for end in ends])
        return draws[:, share.lo : share.hi]

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """`images` (B, C, H, W) changed by `draws` (5, B) on the same device: tensors in, tensor out, no host sync."""
        top, left, mirror, centre_y, centre_x = draws.unsqueeze(2)
        if self.crop_padding or self.flip:
            images = self._crop_and_flip(images, top, left, mirror)
        return self._cut_out(images, centre_y, centre_x) if self.cutout else images

    def _crop_and_flip(self, images: Tensor, top: Tensor, left: Tensor, mirror: Tensor) -> Tensor:
        batch, channels, height, width = images.shape
        padded = F.pad(images, (self.crop_padding,) * 4)
        rows = torch.arange(height, device=images.device) + top
        columns = torch.arange(width, device=images.device).expand(batch, width)
        if self.flip:
            columns = torch.where(mirror == 1, width - 1 - columns, columns)
        # Positions in the flattened padded image, so that crop and mirror are one gather.
        position = (rows * padded.shape[3]).unsqueeze(2) + (columns + left).unsqueeze(1)
        position = position.flatten(1).unsqueeze(1).expand(batch, channels, height * width)
        return padded.flatten(2).gather(2, position).reshape(images.shape)

    def _cut_out(self, images: Tensor, centre_y: Tensor, centre_x: Tensor) -> Tensor:
        channels, height, width = images.shape[1:]
        if len(self.fill) != channels:
            raise ValueError(f"cutout fill={self.fill} for images of {channels} channels: give one value per channel.")
        # Pixels centre - side // 2 up to, not including, that plus side.
        y = torch.arange(height, device=images.device) - centre_y + self.cutout // 2
        x = torch.arange(width, device=images.device) - centre_x + self.cutout // 2
        inside = ((y >= 0) & (y < self.cutout)).unsqueeze(2) & ((x >= 0) & (x < self.cutout)).unsqueeze(1)
        # Fill values go as numbers: a tensor of them would have to be copied to the device, which waits.
        filled = [channel.masked_fill(inside, fill) for channel, fill in zip(images.unbind(1), self.fill, strict=True)]
        return torch.stack(filled, 1)
