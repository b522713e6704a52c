"""From an array of any library to address, count and type. Nothing is copied.

Accepted: NumPy arrays and whatever has `__array_interface__`, PyTorch tensors on the CPU and on
CUDA GPUs, whatever has `__dlpack__` (CuPy, JAX), `__cuda_array_interface__` or the buffer protocol.
Elements must lie one behind the other.

What would hand over a copy of its elements is refused where an operation writes, since the caller
would never see the result. NumPy's scalars are the exception (`Scalar`): operations return theirs.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import re
import sys
from dataclasses import dataclass
from typing import Any, NoReturn, Optional

from ropewalk import device_arrays
from ropewalk.errors import ArgumentError
from ropewalk.types import DATA_TYPES, FOREIGN_NAMES, MOVED_TYPES, DataType, opaque

UNKNOWN_DEVICE = -1
"""for an array without a known GPU, if the communicator has none either"""


@dataclass(frozen=True)
class Scalar:
    """A NumPy scalar, which never changes, and an array that stands in for it."""

    given: Any
    array: Any
    """of no dimensions"""
    written: bool
    """by the operation"""

    def value(self) -> Any:
        """The array's element now, as a scalar of the same type."""
        return self.array[()]


@dataclass  # frozen, each would cost more than all else that is asked of a tensor
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
    stream: device_arrays.Stream = None
    """of a buffer on a GPU: its framework's current stream, or the one that was given"""
    scalar: Optional[Scalar] = None
    """whose stand-in this is the memory of"""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.count * self.type.size


@dataclass(frozen=True)
class _Use:
    """What an operation wants of an array: for messages."""

    name: str
    written: bool

    def instead(self, copy: str) -> str:
        """What to pass, where `copy` makes an array that will do."""
        if not self.written:
            return f"pass {copy}"
        if self.name == "out":
            return f"pass another one, as {copy}, and copy the result from it"
        return f"pass {copy}, and use what the operation returns: this one stays as it is"


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
        ArgumentError: not such an array, not contiguous, read-only or a copy but to be written,
            neither in host memory nor on a GPU of CUDA, or of elements that refer to others.
    """
    use = _Use(name, writable)
    torch = sys.modules.get("torch")
    numpy = sys.modules.get("numpy")
    of_torch = torch is not None and isinstance(array, torch.Tensor)
    if of_torch:
        found = _from_torch(array, use)
    elif numpy is not None and isinstance(array, numpy.ndarray):
        found = _from_numpy(array, use)
    elif numpy is not None and isinstance(array, numpy.generic):
        found = _from_scalar(array, use)
    elif device_arrays.on_gpu(array):
        found = _from_gpu(array, use, stream, device)
    elif hasattr(array, "__array_interface__"):
        found = _from_array_interface(array, use)
    elif hasattr(array, "__dlpack__"):
        found = _same_again(array, use, _from_dlpack)
    else:
        found = _same_again(array, use, _from_buffer_protocol)
    if writable and not (found.writable and (of_torch or not device_arrays.immutable(array))):
        remedy = "a copy in memory of your own (numpy.array(array))"
        if of_torch:
            remedy = "array.clone()"
        raise ArgumentError(
            f"{name} is read-only, and the operation writes it; {use.instead(remedy)}"
        )
    if found.count and found.address % found.type.alignment:
        raise ArgumentError(
            f"{name} starts at address {found.address:#x}, which is not a multiple of the "
            f"{found.type.alignment} bytes of {found.type.name}"
        )
    return found


_KNOWN = {**DATA_TYPES, **MOVED_TYPES}


def _unknown_type(name: str, given: object) -> NoReturn:
    raise ArgumentError(
        f"{name} has elements of type {given}; pass numbers, or others of a fixed size that do not "
        "refer to anything"
    )


def _not_contiguous(use: _Use, copy: str) -> NoReturn:
    raise ArgumentError(f"{use.name} is not contiguous; {use.instead(copy)}")


def _data_type(given: str, size: int) -> DataType:
    """The type that the array's library calls `given`."""
    return _KNOWN.get(FOREIGN_NAMES.get(given, given)) or opaque(given, size)


# ---- arrays that hand over a copy


def _same_again(array: Any, use: _Use, ask: Any) -> Buffer:
    """The buffer from `ask`. If the operation writes, asks twice: each copy has another address."""
    found: Buffer = ask(array, use)
    if use.written and found.count and found.writable:
        again: Buffer = ask(array, use)  # `found` still holds the first
        if again.address != found.address:
            _copies(array, use)
    return found


def _copies(array: Any, use: _Use) -> NoReturn:
    raise ArgumentError(
        f"{use.name} is of type {type(array).__name__}, which hands over a copy of its elements; "
        + use.instead("numpy.array(array)")
    )


def _from_scalar(scalar: Any, use: _Use) -> Buffer:
    if use.name == "out":
        raise ArgumentError(
            f"out is a NumPy scalar ({type(scalar).__name__}), which cannot change; leave it out "
            "and use what the operation returns, or pass an array of one element"
        )
    array = sys.modules["numpy"].array(scalar)
    found = _from_numpy(array, use)
    return dataclasses.replace(found, scalar=Scalar(scalar, array, use.written))


# ---- PyTorch


@dataclass
class _TorchKind:
    type: DataType
    strided: Any
    """torch.strided"""


@functools.cache
def _of_torch(dtype: Any, size: int) -> _TorchKind:
    name = str(dtype).replace("torch.", "")
    return _TorchKind(_data_type(name, size), sys.modules["torch"].strided)


def _from_torch(tensor: Any, use: _Use) -> Buffer:
    name = use.name
    device, on = None, None
    if not tensor.is_cpu:
        if not tensor.is_cuda:
            raise ArgumentError(
                f"{name} is on {tensor.device}, neither on the CPU nor on a CUDA GPU"
            )
        device = int(tensor.device.index)
        on = device_arrays.current_stream(tensor, device)
    if tensor.is_quantized:
        raise ArgumentError(f"{name} is quantized; {use.instead('tensor.dequantize()')}")
    kind, layout = _of_torch(tensor.dtype, tensor.element_size()), tensor.layout
    if layout is not kind.strided or not tensor.is_contiguous():
        copy = "contiguous" if layout is kind.strided else "to_dense"
        _not_contiguous(use, f"tensor.{copy}()")
    if tensor.is_neg():
        raise ArgumentError(
            f"{name} is a lazily negated view; {use.instead('tensor.resolve_neg()')}"
        )
    if tensor.is_conj():
        raise ArgumentError(
            f"{name} is a lazily conjugated view; {use.instead('tensor.resolve_conj()')}"
        )
    try:
        address, count = tensor.data_ptr(), tensor.numel()
    except RuntimeError as reason:  # of a tensor that is a description of one, or of several
        raise ArgumentError(f"{name} has no memory of its own: {reason}") from None
    if count and not address:
        raise ArgumentError(f"{name} is a {type(tensor).__name__} with no memory of its own")
    return Buffer(address, count, kind.type, True, tensor, device, on)


# ---- NumPy and its protocol


def _from_numpy(array: Any, use: _Use) -> Buffer:
    kind = array.dtype
    if kind.hasobject:
        _unknown_type(use.name, kind.name)
    masked = sys.modules.get("numpy.ma")
    if masked is not None and masked.is_masked(array):
        raise ArgumentError(f"{use.name} is masked; {use.instead('array.filled(value)')}")
    if not kind.isnative and kind.names is None:
        _foreign_order(use, kind.str)
    if not array.flags.c_contiguous:
        _not_contiguous(use, "numpy.ascontiguousarray(array)")
    address, read_only = array.__array_interface__["data"]
    data_type = _data_type(kind.name, kind.itemsize)
    return Buffer(address, array.size, data_type, not read_only, array)


def _foreign_order(use: _Use, given: str) -> NoReturn:
    native = 'array.astype(array.dtype.newbyteorder("="))'
    raise ArgumentError(f"{use.name} has foreign byte order ({given}); {use.instead(native)}")


def _from_array_interface(array: Any, use: _Use) -> Buffer:
    interface = array.__array_interface__
    if interface.get("data") is None:  # memory comes by the buffer protocol
        return _same_again(array, use, _from_buffer_protocol)
    found = _from_interface(array, use, interface, "numpy.ascontiguousarray(array)")
    if not found.count:
        return found
    # A copy that nothing references is already freed. Other allocations take its address first, so
    # that the next copy does not get it by chance.
    numpy = sys.modules.get("numpy")
    taken = [
        bytearray(found.nbytes) if numpy is None else numpy.empty(found.nbytes, "uint8")
        for _ in range(4)
    ]
    again = _from_interface(array, use, array.__array_interface__, "")
    moved = again.address != found.address
    del taken
    # Of what is only read, a copy will do, but only one that stays.
    if moved and (use.written or isinstance(interface["data"], tuple)):
        _copies(array, use)
    return found


_ARRAY_TYPE = re.compile(r"([<>|=]?)([a-zA-Z])(\d+)")
_ARRAY_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_OPAQUE_KINDS = "mMSUV"
_BYTES_OF_A_CHARACTER = 4  # of kind U


def _from_interface(array: Any, use: _Use, interface: Any, copy: str) -> Buffer:
    """From `__array_interface__` or `__cuda_array_interface__`."""
    name, given = use.name, interface["typestr"]
    parts = _ARRAY_TYPE.match(given)
    if parts is None:
        _unknown_type(name, given)
    order, kind, digits = parts.groups()
    size = int(digits) * (_BYTES_OF_A_CHARACTER if kind == "U" else 1)
    foreign = getattr(getattr(array, "dtype", None), "name", "")
    if foreign in ("bfloat16", *FOREIGN_NAMES):  # ml_dtypes: only the name distinguishes them
        data_type = _data_type(foreign, size)
    else:
        if order == (">" if sys.byteorder == "little" else "<"):
            _foreign_order(use, given)
        if kind in _ARRAY_KINDS:
            bits = "" if kind == "b" else str(size * 8)
            data_type = _data_type(_ARRAY_KINDS[kind] + bits, size)
        elif kind in _OPAQUE_KINDS and not _refers(interface.get("descr", ())):
            data_type = opaque(given, size)
        else:
            _unknown_type(name, foreign or given)
    shape = tuple(interface["shape"])
    if not _contiguous(shape, interface.get("strides"), data_type.size):
        _not_contiguous(use, copy)
    if isinstance(interface["data"], tuple):
        address, read_only = interface["data"]
        return Buffer(address, _product(shape), data_type, not read_only, (array, interface))
    memory = memoryview(interface["data"]).cast("B")
    address = _address(memory) + interface.get("offset", 0)
    return Buffer(
        address, _product(shape), data_type, not memory.readonly, (array, interface, memory)
    )


def _refers(description: Any) -> bool:
    """Whether a `descr` has fields that are references."""
    return any(
        "O" in field[1] if isinstance(field[1], str) else _refers(field[1]) for field in description
    )


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


# ---- GPUs


def _from_gpu(array: Any, use: _Use, stream: Any, device: Optional[int]) -> Buffer:
    if hasattr(array, "__dlpack__"):
        # The producer lets `on` wait for what it still does to the array.
        number = int(array.__dlpack_device__()[1])
        on = device_arrays.current_stream(array, number) if stream is None else stream
        handle = device_arrays.stream_handle(on)
        found = _same_again(array, use, lambda of, how: _from_dlpack(of, how, handle))
        return dataclasses.replace(found, device=number, stream=on)

    def ask(of: Any, how: _Use) -> Buffer:
        return _from_interface(
            of, how, device_arrays.interface_of(of, how.name), "a contiguous copy"
        )

    found = _same_again(array, use, ask)
    told = device_arrays.device_of(array)
    on = device_arrays.current_stream(array, told or 0)
    number = next((known for known in (told, device) if known is not None), UNKNOWN_DEVICE)
    return dataclasses.replace(found, device=number, stream=on)


# ---- DLPack


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
_DL_HANDLE = 3  # kDLOpaqueHandle
_DL_TYPES = {
    (0, 8): "int8",
    (0, 16): "int16",
    (0, 32): "int32",
    (0, 64): "int64",
    (1, 8): "uint8",
    (1, 16): "uint16",
    (1, 32): "uint32",
    (1, 64): "uint64",
    (2, 16): "float16",
    (2, 32): "float32",
    (2, 64): "float64",
    (4, 16): "bfloat16",
    (5, 64): "complex64",
    (5, 128): "complex128",
    (6, 8): "bool",
    (10, 8): "float8e4m3",  # kDLFloat8_e4m3fn
    (12, 8): "float8e5m2",
}


def _from_dlpack(array: Any, use: _Use, stream: Optional[int] = None) -> Buffer:
    """`stream`: of arrays on GPUs, the stream that will work on it."""
    name = use.name
    device = int(array.__dlpack_device__()[0])
    if device not in (_DL_DEVICES if stream is None else device_arrays.DLPACK_DEVICES):
        raise ArgumentError(
            f"{name} is on DLPack device type {device}, neither in host memory nor on a CUDA GPU"
        )
    given = {} if stream is None else {"stream": stream}
    try:
        try:
            capsule = array.__dlpack__(**given, max_version=(1, 0), copy=False)
        except TypeError:  # a producer older than DLPack 1.0
            capsule = array.__dlpack__(**given)
    except BufferError as reason:
        raise ArgumentError(f"{name} cannot be handed over: {reason}") from None
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
    code = f"DLPack code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
    data_type = _KNOWN.get(_DL_TYPES.get((tensor.code, tensor.bits), ""))
    if data_type is None or tensor.lanes != 1:
        if tensor.code == _DL_HANDLE or tensor.bits * tensor.lanes % 8:
            _unknown_type(name, code)
        data_type = opaque(code, tensor.bits * tensor.lanes // 8)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
    if not _contiguous(shape, strides, 1):
        _not_contiguous(use, "a contiguous copy")
    # The capsule is not consumed: it stays alive as owner, and its own destructor gives the
    # memory back.
    return Buffer(
        (tensor.data or 0) + tensor.byte_offset,
        _product(shape),
        data_type,
        writable,
        (array, capsule),
    )


# ---- the buffer protocol


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


_BUFFER_FORMATS = {
    **dict.fromkeys("bhilqn", "int"),
    **dict.fromkeys("BHILQN", "uint"),
    **dict.fromkeys("efdg", "float"),
    **dict.fromkeys(("Zf", "Zd", "Zg"), "complex"),
}
_FIELD_NAME = re.compile(":[^:]*:")
_REFERENCES = re.compile("[OP&X]")


def _from_buffer_protocol(array: Any, use: _Use) -> Buffer:
    try:
        view = memoryview(array)
    except TypeError:
        _no_array(array, use)
    code = view.format.lstrip("@=")
    if code.startswith("<" if sys.byteorder == "little" else ">"):
        code = code[1:]
    if code == "?":
        data_type = _data_type("bool", view.itemsize)
    elif code in _BUFFER_FORMATS:
        data_type = _data_type(f"{_BUFFER_FORMATS[code]}{view.itemsize * 8}", view.itemsize)
    elif not view.itemsize or _REFERENCES.search(_FIELD_NAME.sub("", code)):
        _unknown_type(use.name, f'"{view.format}" (buffer protocol)')
    else:
        data_type = opaque(f'"{view.format}"', view.itemsize)
    if not view.c_contiguous:
        _not_contiguous(use, "a contiguous copy")
    count = view.nbytes // view.itemsize
    return Buffer(_address(view) if count else 0, count, data_type, not view.readonly, view)


def _no_array(array: Any, use: _Use) -> NoReturn:
    """Says what to pass instead of something that has none of the protocols."""
    kind = type(array).__name__
    if type(array).__module__.split(".")[0] == "pandas":
        copy = "array.to_numpy(copy=True)" if use.written else "array.to_numpy()"
        kind = f"pandas {kind}"
    elif hasattr(array, "__array__") or isinstance(array, (list, tuple)):
        copy = "numpy.array(array)"
    elif isinstance(array, (int, float, complex)):
        copy = "a NumPy scalar (numpy.float64(3))"
    else:
        raise ArgumentError(
            f"{use.name} is a {kind}; it must be a NumPy array, a torch tensor, or have the "
            "buffer, DLPack or __array_interface__ protocol"
        )
    raise ArgumentError(
        f"{use.name} is a {kind}, whose elements cannot be used where they lie; {use.instead(copy)}"
    )
