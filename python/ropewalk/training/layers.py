"""Layers that the three networks share. This package needs nothing but PyTorch."""

from __future__ import annotations

from typing import Any, Optional

from torch import nn

Module = Any  # torch.nn.Module; the type checker does not read PyTorch


def divisible(channels: float, divisor: int = 8) -> int:
    """The nearest multiple of `divisor`, at most a tenth below `channels`.

    The rule of the MobileNets: Sandler et al., MobileNetV2, CVPR 2018 (their published code).
    """
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded if rounded >= 0.9 * channels else rounded + divisor


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    activation: Optional[type[Any]] = None,
    epsilon: float = 1e-5,
) -> Module:
    """Convolution without bias, batch normalization, activation."""
    padding = kernel // 2
    parts: list[Any] = [
        nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=epsilon),
    ]
    if activation is not None:
        parts.append(activation())
    return nn.Sequential(*parts)


class Excitation(nn.Module):  # type: ignore[misc]
    """Scales channels by what a bottleneck makes of their means.

    Hu, Shen, Sun: Squeeze-and-Excitation Networks, CVPR 2018.
    """

    def __init__(
        self, channels: int, squeezed: int, activation: type[Any], gate: type[Any]
    ) -> None:
        """`squeezed` is the width of the bottleneck."""
        super().__init__()
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            activation(),
            nn.Conv2d(squeezed, channels, 1),
            gate(),
        )

    def forward(self, images: Any) -> Any:
        """The images, channel by channel scaled."""
        return images * self.scale(images)
