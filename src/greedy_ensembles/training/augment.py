"""The paper's augmentation of CIFAR and SVHN: a random flip, and a crop out of the reflect-padded image."""

import torch
from torch import Tensor
from torch.nn.functional import pad


def flip_crop(images: Tensor, padding: int = 4) -> Tensor:
    """Flip each of (n, channels, height, width) images with probability 1/2 and shift it by up to `padding` pixels.

    What a shift uncovers is filled by reflection. Random numbers come from the global generator of the images' device.
    """
    n, _, height, width = images.shape
    device = images.device
    rows = torch.arange(height, device=device) + torch.randint(2 * padding + 1, (n, 1), device=device)
    columns = torch.arange(width, device=device) + torch.randint(2 * padding + 1, (n, 1), device=device)
    flipped = torch.rand(n, 1, device=device) < 0.5
    columns = torch.where(flipped, columns.flip(1), columns)
    padded = pad(images, [padding] * 4, mode="reflect")
    index = torch.arange(n, device=device)[:, None, None]
    # Advanced indices around the channel slice put channels last; move them back.
    return padded[index, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
