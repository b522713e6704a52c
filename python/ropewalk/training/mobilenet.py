"""MobileNetV3-Large: Howard et al., Searching for MobileNetV3, ICCV 2019, table 1."""

from __future__ import annotations

from typing import Any, Final

from torch import nn

from ropewalk.training.layers import Excitation, Module, convolution, divisible

# (kernel, expanded channels, output channels, squeeze and excitation, hard swish, stride)
_BLOCKS: Final = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)
_EPSILON: Final = 1e-3
_WIDE: Final = 960
_LAST: Final = 1280
_DROPPED: Final = 0.2


class _Block(nn.Module):  # type: ignore[misc]
    def __init__(
        self,
        inputs: int,
        kernel: int,
        wide: int,
        outputs: int,
        excited: bool,
        swish: bool,
        stride: int,
    ) -> None:
        super().__init__()
        kind = nn.Hardswish if swish else nn.ReLU
        parts: list[Any] = []
        if wide != inputs:
            parts.append(convolution(inputs, wide, 1, activation=kind, epsilon=_EPSILON))
        parts.append(
            convolution(
                wide, wide, kernel, stride=stride, groups=wide, activation=kind, epsilon=_EPSILON
            )
        )
        if excited:
            parts.append(Excitation(wide, divisible(wide / 4), nn.ReLU, nn.Hardsigmoid))
        parts.append(convolution(wide, outputs, 1, epsilon=_EPSILON))
        self.body = nn.Sequential(*parts)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, images: Any) -> Any:
        return self.body(images) + images if self.residual else self.body(images)


def mobilenet_v3_large(classes: int = 1000) -> Module:
    """The network: 5,483,032 parameters with 1000 classes."""
    channels = 16
    parts: list[Any] = [
        convolution(3, channels, 3, stride=2, activation=nn.Hardswish, epsilon=_EPSILON)
    ]
    for kernel, wide, outputs, excited, swish, stride in _BLOCKS:
        parts.append(_Block(channels, kernel, wide, outputs, excited, swish, stride))
        channels = outputs
    parts += [
        convolution(channels, _WIDE, 1, activation=nn.Hardswish, epsilon=_EPSILON),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(_WIDE, _LAST),
        nn.Hardswish(),
        nn.Dropout(_DROPPED),
        nn.Linear(_LAST, classes),
    ]
    return nn.Sequential(*parts)
