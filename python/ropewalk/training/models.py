"""The networks by name, with the counts that others have published."""

from __future__ import annotations

from typing import Callable, Final

from ropewalk.training.efficientnet import efficientnet_b0
from ropewalk.training.layers import Module
from ropewalk.training.mobilenet import mobilenet_v3_large
from ropewalk.training.resnet import resnet50

MODELS: Final[dict[str, Callable[[], Module]]] = {
    "resnet50": resnet50,
    "efficientnet_b0": efficientnet_b0,
    "mobilenet_v3_large": mobilenet_v3_large,
}
