"""EfficientNet-B0: Tan, Le, EfficientNet: Rethinking Model Scaling, ICML 2019, table 1.

Without stochastic depth, which would let ranks differ in what they compute.
"""

from __future__ import annotations

from typing import Any, Final

from torch import nn

from ropewalk.training.layers import Excitation, Module, convolution

# (expansion, kernel, stride, output channels, blocks) of each stage.
_STAGES: Final = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
_LAST: Final = 1280
_DROPPED: Final = 0.2


class _Block(nn.Module):  # type: ignore[misc]
    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = inputs * expansion
        parts: list[Any] = []
        if expansion != 1:
            parts.append(convolution(inputs, wide, 1, activation=nn.SiLU))
        parts += [
            convolution(wide, wide, kernel, stride=stride, groups=wide, activation=nn.SiLU),
            Excitation(wide, max(1, inputs // 4), nn.SiLU, nn.Sigmoid),
            convolution(wide, outputs, 1),
        ]
        self.body = nn.Sequential(*parts)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, images: Any) -> Any:
        return self.body(images) + images if self.residual else self.body(images)


def efficientnet_b0(classes: int = 1000) -> Module:
    """The network: 5,288,548 parameters with 1000 classes."""
    channels = 32
    parts: list[Any] = [convolution(3, channels, 3, stride=2, activation=nn.SiLU)]
    for expansion, kernel, stride, outputs, blocks in _STAGES:
        for block in range(blocks):
            parts.append(_Block(channels, outputs, expansion, kernel, 1 if block else stride))
            channels = outputs
    parts += [
        convolution(channels, _LAST, 1, activation=nn.SiLU),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(_DROPPED),
        nn.Linear(_LAST, classes),
    ]
    return nn.Sequential(*parts)
