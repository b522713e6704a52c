"""ResNet50: He, Zhang, Ren, Sun, Deep Residual Learning for Image Recognition, CVPR 2016, table 1.

The stride of a block stands at its 3x3 convolution, as today's implementations have it.
"""

from __future__ import annotations

from typing import Any, Final

from torch import nn

from ropewalk.training.layers import Module, convolution

_EXPANSION: Final = 4
# (blocks, width) of each stage.
_STAGES: Final = ((3, 64), (4, 128), (6, 256), (3, 512))


class _Bottleneck(nn.Module):  # type: ignore[misc]
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * _EXPANSION
        self.body = nn.Sequential(
            convolution(inputs, width, 1, activation=nn.ReLU),
            convolution(width, width, 3, stride=stride, activation=nn.ReLU),
            convolution(width, outputs, 1),
        )
        # Declared after the body, as where the published bucket sizes come from.
        self.shortcut = (
            nn.Identity()
            if inputs == outputs and stride == 1
            else convolution(inputs, outputs, 1, stride=stride)
        )
        self.end = nn.ReLU()

    def forward(self, images: Any) -> Any:
        return self.end(self.body(images) + self.shortcut(images))


def resnet50(classes: int = 1000) -> Module:
    """The network: 25,557,032 parameters with 1000 classes."""
    channels = 64
    parts: list[Any] = [
        convolution(3, channels, 7, stride=2, activation=nn.ReLU),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    for stage, (blocks, width) in enumerate(_STAGES):
        for block in range(blocks):
            parts.append(_Bottleneck(channels, width, 2 if stage and not block else 1))
            channels = width * _EXPANSION
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*parts)
