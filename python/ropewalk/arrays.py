"""From an array of any library to address, count and type. Nothing is copied.

Accepted: NumPy arrays and whatever has `__array_interface__`, PyTorch tensors on the CPU and on
CUDA GPUs, whatever has `__dlpack__` (CuPy, JAX), `__cuda_array_interface__` or the buffer protocol.
Elements must lie one behind the other.
"""

from __future__ import annotations

import ctypes
import dataclasses
import sys
from dataclasses import dataclass
from typing import Any, NoReturn, Optional

from ropewalk import device_arrays
from ropewalk.errors import ArgumentError
from ropewalk.types import DATA_TYPES, FOREIGN_NAMES, DataType

UNKNOWN_DEVICE = -1
"""of an array that does not tell its GPU, where the communicator has none either"""


@dataclass(frozen=True)
class Buffer:
    """Memory of an array. `owner` keeps it alive."""

    address: int
    count: int
    """elements"""
    type: DataType
    writable: bool
    owner: Any
    device: Optional[int] = None
    """the GPU's number; None: host memory"""
    stream: int = 0
    """of a buffer on a GPU: its framework's current stream, as an rwStream_t"""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.count * self.type.size


def buffer_of(
    array: Any,
    name: str,
    *,
    writable: bool,
    stream: device_arrays.Stream = None,
    device: Optional[int] = None,
) -> Buffer:
    """The memory of `array`.

    Args:
        array: see the module.
        name: what the caller calls it, for messages.
        writable: whether the operation writes it.
        stream: the stream that will work on it, where it is on a GPU; None: its framework's.
        device: the GPU of an array that does not tell its own.

    Raises:
        ArgumentError: not such an array, not contiguous, read-only but to be written, neither in
            host memory nor on a GPU of CUDA, or of a type that collectives do not know.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        found = _from_torch(array, name)
    elif device_arrays.on_gpu(array):
        found = _from_gpu(array, name, stream, device)
    elif hasattr(array, "__array_interface__"):
        found = _from_array_interface(array, name)
    elif hasattr(array, "__dlpack__"):
        found = _from_dlpack(array, name)
    else:
        found = _from_buffer_protocol(array, name)
    if writable and not found.writable:
        raise ArgumentError(f"{name} is read-only, and the operation writes it")
    if found.count and found.address % found.type.size:
        raise ArgumentError(
            f"{name} starts at address {found.address:#x}, which is not a multiple of the "
            f"{found.type.size} bytes of {found.type.name}"
        )
    return found


def _unknown_type(name: str, given: object) -> NoReturn:
    known = ", ".join(DATA_TYPES)
    raise ArgumentError(f"{name} has elements of type {given}; collectives know {known}")


def _not_contiguous(name: str, remedy: str) -> NoReturn:
    raise ArgumentError(f"{name} is not contiguous; pass {remedy}")


def _data_type(name: str, given: str) -> DataType:
    known = DATA_TYPES.get(FOREIGN_NAMES.get(given, given))
    if known is None:
        _unknown_type(name, given)
    return known


def _from_torch(tensor: Any, name: str) -> Buffer:
    device, stream = None, 0
    if tensor.device.type == "cuda":
        device = int(tensor.device.index)
        stream = device_arrays.current_stream(tensor, device)
    elif tensor.device.type != "cpu":
        raise ArgumentError(f"{name} is on {tensor.device}, neither on the CPU nor on a CUDA GPU")
    if str(tensor.layout) != "torch.strided" or not tensor.is_contiguous():
        _not_contiguous(name, "tensor.contiguous()")
    if tensor.is_neg():
        raise ArgumentError(f"{name} is a lazily negated view; pass tensor.resolve_neg()")
    data_type = _data_type(name, str(tensor.dtype).replace("torch.", ""))
    return Buffer(tensor.data_ptr(), tensor.numel(), data_type, True, tensor, device, stream)


def _from_gpu(array: Any, name: str, stream: Any, device: Optional[int]) -> Buffer:
    if hasattr(array, "__dlpack__"):
        # The producer lets `on` wait for what it still does to the array.
        number = int(array.__dlpack_device__()[1])
        on = (
            device_arrays.current_stream(array, number)
            if stream is None
            else device_arrays.stream_handle(stream)
        )
        return dataclasses.replace(_from_dlpack(array, name, on), device=number, stream=on)
    interface, told = device_arrays.interface_of(array, name)
    found = _from_interface(array, name, interface, "a contiguous copy")
    on = device_arrays.current_stream(array, told or 0)
    number = next((known for known in (told, device) if known is not None), UNKNOWN_DEVICE)
    return dataclasses.replace(found, device=number, stream=on)


_ARRAY_KINDS = {"i": "int", "u": "uint", "f": "float"}


def _from_array_interface(array: Any, name: str) -> Buffer:
    interface = array.__array_interface__
    if interface.get("data") is None:  # memory comes by the buffer protocol
        return _from_buffer_protocol(array, name)
    return _from_interface(array, name, interface, "numpy.ascontiguousarray(array)")


def _from_interface(array: Any, name: str, interface: Any, remedy: str) -> Buffer:
    """From `__array_interface__` or `__cuda_array_interface__`."""
    kind = interface["typestr"]
    foreign = getattr(getattr(array, "dtype", None), "name", "")
    if foreign in ("bfloat16", *FOREIGN_NAMES):  # ml_dtypes: only the name tells them apart
        data_type = _data_type(name, foreign)
    else:
        if kind[0] == (">" if sys.byteorder == "little" else "<"):
            raise ArgumentError(f"{name} has foreign byte order ({kind})")
        if kind[1] not in _ARRAY_KINDS:
            _unknown_type(name, foreign or kind)
        data_type = _data_type(name, f"{_ARRAY_KINDS[kind[1]]}{int(kind[2:]) * 8}")
    shape = tuple(interface["shape"])
    if not _contiguous(shape, interface.get("strides"), data_type.size):
        _not_contiguous(name, remedy)
    address, read_only = interface["data"]
    return Buffer(address, _product(shape), data_type, not read_only, (array, interface))


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _contiguous(shape: tuple[int, ...], strides: Any, step: int) -> bool:
    """Whether C order without gaps; `strides` and `step` (of one element) in the same unit."""
    if strides is None or 0 in shape:
        return True
    for extent, stride in zip(reversed(shape), reversed(tuple(strides))):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


class _DlTensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DlManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DlTensor),
    ]


_DL_DEVICES = {1, 3}  # kDLCPU and kDLCUDAHost: both plain host memory
_DL_READ_ONLY = 1
_DL_TYPES = {
    (0, 8): "int8",
    (0, 32): "int32",
    (0, 64): "int64",
    (1, 8): "uint8",
    (1, 32): "uint32",
    (1, 64): "uint64",
    (2, 16): "float16",
    (2, 32): "float32",
    (2, 64): "float64",
    (4, 16): "bfloat16",
    (10, 8): "float8e4m3",  # kDLFloat8_e4m3fn
    (12, 8): "float8e5m2",
}


def _from_dlpack(array: Any, name: str, stream: Optional[int] = None) -> Buffer:
    """`stream`: of arrays on GPUs, the stream that will work on it."""
    device = int(array.__dlpack_device__()[0])
    if device not in (_DL_DEVICES if stream is None else device_arrays.DLPACK_DEVICES):
        raise ArgumentError(
            f"{name} is on DLPack device type {device}, neither in host memory nor on a CUDA GPU"
        )
    given = {} if stream is None else {"stream": stream}
    try:
        capsule = array.__dlpack__(**given, max_version=(1, 0), copy=False)
    except TypeError:  # a producer older than DLPack 1.0
        capsule = array.__dlpack__(**given)
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = (ctypes.py_object,)
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    kind = api.PyCapsule_GetName(capsule)
    address = api.PyCapsule_GetPointer(capsule, kind)
    writable = True
    if kind == b"dltensor_versioned":
        managed = _DlManagedVersioned.from_address(address)
        writable = not managed.flags & _DL_READ_ONLY
        tensor = managed.tensor
    else:
        tensor = _DlTensor.from_address(address)
    data_type = _DL_TYPES.get((tensor.code, tensor.bits))
    if data_type is None or tensor.lanes != 1:
        _unknown_type(name, f"DLPack code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
    if not _contiguous(shape, strides, 1):
        _not_contiguous(name, "a contiguous copy")
    # The capsule is not consumed: it stays alive as owner, and its own destructor gives the
    # memory back.
    return Buffer(
        (tensor.data or 0) + tensor.byte_offset,
        _product(shape),
        DATA_TYPES[data_type],
        writable,
        (array, capsule),
    )


class _PyBuffer(ctypes.Structure):
    """Py_buffer of CPython; the same since 3.0 and part of the stable ABI since 3.11."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


def _address(view: memoryview) -> int:
    """Where a contiguous view starts, also a read-only one (which from_buffer refuses)."""
    raw = _PyBuffer()
    api = ctypes.pythonapi
    api.PyObject_GetBuffer.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
    api.PyBuffer_Release.argtypes = (ctypes.POINTER(_PyBuffer),)
    api.PyObject_GetBuffer(view, ctypes.byref(raw), 0)  # raises when it fails
    try:
        return int(raw.buf or 0)
    finally:
        api.PyBuffer_Release(ctypes.byref(raw))  # `view` itself still holds the memory


_BUFFER_FORMATS = {"b": "int", "B": "uint", "e": "float", "f": "float", "d": "float"} | {
    **dict.fromkeys("ilqhn", "int"),
    **dict.fromkeys("ILQHN", "uint"),
}


def _from_buffer_protocol(array: Any, name: str) -> Buffer:
    try:
        view = memoryview(array)
    except TypeError:
        raise ArgumentError(
            f"{name} is a {type(array).__name__}; it must be a NumPy array, a torch tensor, or "
            "have the buffer, DLPack or __array_interface__ protocol"
        ) from None
    code = view.format.lstrip("@=")
    if code.startswith("<" if sys.byteorder == "little" else ">"):
        code = code[1:]
    if code not in _BUFFER_FORMATS:
        _unknown_type(name, f'"{view.format}" (buffer protocol)')
    data_type = _data_type(name, f"{_BUFFER_FORMATS[code]}{view.itemsize * 8}")
    if not view.c_contiguous:
        _not_contiguous(name, "a contiguous copy")
    count = view.nbytes // view.itemsize
    return Buffer(_address(view) if count else 0, count, data_type, not view.readonly, view)
