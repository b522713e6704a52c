"""Arrays in the memory of GPUs, and the streams that work on them. No framework is imported.

A stream is given as its cudaStream_t (an int), or as what PyTorch, CuPy or anything with
`__cuda_stream__` calls a stream. Given as None, it is the array's framework's current one:
PyTorch's and CuPy's, the one that `__cuda_array_interface__` names, else CUDA's default stream.
"""

from __future__ import annotations

import sys
from typing import Any, Optional

from ropewalk.errors import ArgumentError

LEGACY_STREAM = 1
"""CUDA's default stream: 0 to CUDA, cudaStreamLegacy here, since 0 means host memory"""

Stream = Any
"""What is taken for a stream; see the module."""


def stream_handle(stream: Stream) -> int:
    """The C API's rwStream_t of a stream.

    Raises:
        ArgumentError: it is none.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream or LEGACY_STREAM
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        given = protocol() if callable(protocol) else protocol
        return int(given[1]) or LEGACY_STREAM
    for attribute in ("cuda_stream", "ptr", "handle"):  # PyTorch, CuPy, Numba
        value = getattr(stream, attribute, None)
        if value is not None:
            number = getattr(value, "value", value)  # Numba has a ctypes value, whose 0 is None
            return int(number or 0) or LEGACY_STREAM
    raise ArgumentError(
        f"stream is a {type(stream).__name__}; pass a cudaStream_t as int, or a stream of PyTorch, "
        "CuPy or anything with __cuda_stream__"
    )


def current_stream(array: Any, device: int) -> int:
    """The stream on which the framework of `array` works now, as an rwStream_t."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return int(torch.cuda.current_stream(device).cuda_stream) or LEGACY_STREAM
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return int(cupy.cuda.get_current_stream().ptr) or LEGACY_STREAM
    if type(array).__module__.split(".")[0] in ("jax", "jaxlib"):
        return LEGACY_STREAM  # JAX does not show its streams; DLPack orders this one after them
    interface = getattr(array, "__cuda_array_interface__", None)
    return int((interface or {}).get("stream") or LEGACY_STREAM)


def on_gpu(array: Any) -> bool:
    """Whether an array other than a tensor of PyTorch says that it is in a GPU's memory."""
    if hasattr(array, "__dlpack_device__"):
        return int(array.__dlpack_device__()[0]) in DLPACK_DEVICES
    return not hasattr(array, "__array_interface__") and hasattr(array, "__cuda_array_interface__")


DLPACK_DEVICES = {2, 13}
"""kDLCUDA and kDLCUDAManaged"""


def interface_of(array: Any, name: str) -> tuple[dict[str, Any], Optional[int]]:
    """`__cuda_array_interface__`, and the GPU where the object tells it (Numba does not)."""
    interface = array.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise ArgumentError(f"{name} is masked")
    device = getattr(getattr(array, "device", None), "id", None)
    return interface, device
