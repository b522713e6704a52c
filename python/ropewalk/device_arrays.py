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
"""Objects accepted as streams; see the module."""


def stream_handle(stream: Stream) -> int:
    """The C API's rwStream_t of a stream.

    Raises:
        ArgumentError: it is none.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        if not 0 <= stream < 2**64:
            raise ArgumentError(f"stream {stream} is no cudaStream_t")
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


def current_stream(array: Any, device: int) -> Stream:
    """The stream on which the framework of `array` works now: a number, or its own object."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        # PyTorch's own function makes an object of it, for some 5 us.
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        return torch.cuda.current_stream(device) if raw is None else int(raw(device))
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy.cuda.get_current_stream()
    if of_jax(array):
        return LEGACY_STREAM  # JAX does not show its streams; DLPack orders this one after them
    interface = getattr(array, "__cuda_array_interface__", None)
    return int((interface or {}).get("stream") or LEGACY_STREAM)


def of_jax(array: Any) -> bool:
    """Whether it is an array of JAX."""
    return type(array).__module__.split(".")[0] in ("jax", "jaxlib")


def immutable(array: Any) -> bool:
    """Whether its library's arrays must never change, whatever their DLPack capsules say."""
    return of_jax(array) or type(array).__module__.split(".")[0] in ("pyarrow", "tensorflow")


def on_gpu(array: Any) -> bool:
    """Whether an array other than a tensor of PyTorch says that it is in a GPU's memory."""
    if hasattr(array, "__dlpack_device__"):
        return int(array.__dlpack_device__()[0]) in DLPACK_DEVICES
    return not hasattr(array, "__array_interface__") and hasattr(array, "__cuda_array_interface__")


DLPACK_DEVICES = {2, 13}
"""kDLCUDA and kDLCUDAManaged"""


def interface_of(array: Any, name: str) -> dict[str, Any]:
    """`__cuda_array_interface__`."""
    interface: dict[str, Any] = array.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise ArgumentError(f"{name} is masked")
    return interface


def device_of(array: Any) -> Optional[int]:
    """The GPU, if the object reports it (Numba does not)."""
    return getattr(getattr(array, "device", None), "id", None)
