"""Arrays of every library reach the C API where they lie, or are refused with a reason."""

from __future__ import annotations

import array
import ctypes
from typing import Any

import numpy as np
import pytest
from ropewalk.arrays import buffer_of
from ropewalk.errors import ArgumentError
from ropewalk.types import DATA_TYPES

NUMPY_TYPES = [name for name in DATA_TYPES if name not in ("bfloat16", "float8e4m3", "float8e5m2")]


class OnlyDlpack:
    """Shows the DLPack protocol of an array and nothing else of it."""

    def __init__(self, inner: Any, versioned: bool) -> None:
        self._inner = inner
        self._versioned = versioned

    def __dlpack_device__(self) -> Any:
        return self._inner.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        if options and not self._versioned:
            raise TypeError("an old producer knows no options")
        return self._inner.__dlpack__(**options)


@pytest.mark.parametrize("name", NUMPY_TYPES)
def test_numpy(name: str) -> None:
    given = np.zeros((3, 5), dtype=name)
    found = buffer_of(given, "array", writable=True)
    assert (found.address, found.count, found.type.name) == (given.ctypes.data, 15, name)
    assert found.nbytes == given.nbytes


@pytest.mark.parametrize(
    ("foreign", "name"),
    [
        ("bfloat16", "bfloat16"),
        ("float8_e4m3fn", "float8e4m3"),
        ("float8_e5m2", "float8e5m2"),
    ],
)
def test_ml_dtypes(foreign: str, name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    given = np.zeros(7, dtype=getattr(ml_dtypes, foreign))
    found = buffer_of(given, "array", writable=True)
    assert (found.address, found.count, found.type.name) == (given.ctypes.data, 7, name)


@pytest.mark.parametrize(
    "given",
    [
        bytearray(8),
        memoryview(bytearray(8)),
        array.array("d", [1, 2]),
        array.array("l", [1, 2]),
        (ctypes.c_float * 3)(),
    ],
)
def test_buffer_protocol(given: Any) -> None:
    found = buffer_of(given, "array", writable=True)
    view = memoryview(given)
    assert found.nbytes == view.nbytes
    assert found.address == np.frombuffer(view, np.uint8).ctypes.data
    ctypes.memset(found.address, 1, found.nbytes)
    assert bytes(view.cast("B")) == b"\1" * view.nbytes


def test_buffer_protocol_of_read_only_memory() -> None:
    given = b"12345678"
    found = buffer_of(given, "array", writable=False)
    assert ctypes.string_at(found.address, 8) == given
    with pytest.raises(ArgumentError, match="out is read-only"):
        buffer_of(given, "out", writable=True)


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack(versioned: bool) -> None:
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    if versioned and np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("this NumPy makes no versioned capsules")
    found = buffer_of(OnlyDlpack(given, versioned), "array", writable=True)
    assert (found.address, found.count) == (given.ctypes.data, 6)
    with pytest.raises(ArgumentError, match="not contiguous"):
        buffer_of(OnlyDlpack(given.T, versioned), "array", writable=True)


class ShiftedDlpack(OnlyDlpack):
    """Says that the elements begin some bytes behind the address that it gives."""

    def __init__(self, inner: Any, versioned: bool, byte_offset: int) -> None:
        super().__init__(inner, versioned)
        self._byte_offset = byte_offset

    def __dlpack__(self, **options: Any) -> Any:
        capsule = super().__dlpack__(**options)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype = ctypes.c_void_p
        pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
        # DLTensor is at the start of DLManagedTensor, and behind 32 bytes in the versioned one;
        # `byte_offset` is its last field, behind 40 bytes.
        header = 32 if self._versioned else 0
        address = pointer(capsule, b"dltensor_versioned" if self._versioned else b"dltensor")
        field = ctypes.c_uint64.from_address(address + header + 40)
        assert field.value == 0
        field.value = self._byte_offset
        return capsule


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_with_a_byte_offset(versioned: bool) -> None:
    if versioned and np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("this NumPy makes no versioned capsules")
    given = np.arange(8, dtype=np.float32)
    found = buffer_of(ShiftedDlpack(given[:6], versioned, 8), "array", writable=True)
    assert (found.address, found.count) == (given.ctypes.data + 8, 6)
    assert list((ctypes.c_float * 6).from_address(found.address)) == [2, 3, 4, 5, 6, 7]


def test_dlpack_keeps_the_read_only_mark() -> None:
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("this NumPy makes no versioned capsules")
    given = np.zeros(3, np.float32)
    given.flags.writeable = False
    assert not buffer_of(OnlyDlpack(given, True), "array", writable=False).writable


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    for name, ours in (
        ("float32", "float32"),
        ("bfloat16", "bfloat16"),
        ("float16", "float16"),
        ("float8_e4m3fn", "float8e4m3"),
        ("float8_e5m2", "float8e5m2"),
        ("int64", "int64"),
    ):
        given = torch.zeros(2, 3, dtype=getattr(torch, name))
        found = buffer_of(given, "array", writable=True)
        assert (found.address, found.count, found.type.name) == (given.data_ptr(), 6, ours)
    with pytest.raises(ArgumentError, match="contiguous"):
        buffer_of(torch.zeros(2, 3).t(), "array", writable=True)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (np.zeros(4, ">f4"), "foreign byte order"),
        (np.zeros(4, object), "elements of type object"),
        (np.zeros(4, [("x", "f4"), ("y", object)]), "elements of type"),
        (np.ma.array([1.0, 2.0], mask=[True, False]), r"masked; pass array.filled\(value\)"),
        (np.zeros((4, 4))[:, 1], "not contiguous"),
        (np.zeros((3, 2)).T, "not contiguous"),
        ([1, 2, 3], r"is a list.*pass numpy.array\(array\)"),
        (3.5, "is a float.*pass a NumPy scalar"),
        (None, "is a NoneType"),
        ((ctypes.py_object * 2)(), "elements of type"),
        (np.frombuffer(bytearray(9), np.uint8)[1:9].view(np.float32), "not a multiple of the 4"),
        (np.broadcast_to(np.zeros(1), (4,)), "not contiguous"),
    ],
)
def test_refused_with_the_reason(given: Any, reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        buffer_of(given, "array", writable=False)


def test_empty_arrays() -> None:
    assert buffer_of(np.zeros(0, np.float32), "array", writable=True).count == 0
    assert buffer_of(bytearray(), "array", writable=True).count == 0
    assert buffer_of(np.zeros((0, 3)).T, "array", writable=True).count == 0
