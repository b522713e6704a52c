"""Element types and operators by name, with the numbers that the C library gives them."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple


class DataType(NamedTuple):
    """An element type: its name, the library's number, and its bytes."""

    name: str
    number: int
    size: int
    units: int = 1
    """how many the library counts in one: bytes, of types that it does not know"""

    def counted(self, elements: int) -> int:
        """Number of elements, as the library counts them."""
        return elements * self.units

    @property
    def alignment(self) -> int:
        """What its address must be a multiple of."""
        if self.name in COMPLEX_TYPES:
            return self.size // 2
        return 1 if self.number == _BYTE else self.size


_SIZES = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "float8e4m3": 1,
    "float8e5m2": 1,
}
DATA_TYPES: Final = {
    name: DataType(name, number, size) for number, (name, size) in enumerate(_SIZES.items())
}
# What can be moved, but has no operators: the library's numbers go on after a gap.
_BYTE: Final = 21
MOVED_TYPES: Final = {
    name: DataType(name, number, size)
    for number, (name, size) in enumerate(
        {"bool": 1, "int16": 2, "uint16": 2, "complex64": 8, "complex128": 16}.items(), 16
    )
}
COMPLEX_TYPES: Final = ("complex64", "complex128")
"""of these, which have sums"""


def opaque(name: str, size: int) -> DataType:
    """A type that the library does not know, of `size` bytes: it can be moved."""
    return DataType(name, _BYTE, size, size)


# The names by which NumPy, ml_dtypes and PyTorch call the two 8-bit floats.
FOREIGN_NAMES: Final = {"float8_e4m3fn": "float8e4m3", "float8_e5m2": "float8e5m2"}

OPERATORS: Final = {
    name: number for number, name in enumerate(("sum", "prod", "max", "min", "avg"))
}

_FORMATS = {
    "int8": "<b",
    "uint8": "<B",
    "int32": "<i",
    "uint32": "<I",
    "int64": "<q",
    "uint64": "<Q",
    "float16": "<e",
    "float32": "<f",
    "float64": "<d",
}


def pack(value: float, data_type: DataType) -> bytes:
    """One element, as it lies in memory; floats are rounded to nearest-even.

    Raises:
        struct.error, OverflowError: the type cannot hold the value.
    """
    if data_type.name in _FORMATS:
        integer = data_type.name.startswith(("int", "uint"))
        return struct.pack(_FORMATS[data_type.name], int(value) if integer else value)
    if data_type.name == "bfloat16":
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF)
    return bytes([_nearest_float8(value, data_type.name)])


def _nearest_float8(value: float, name: str) -> int:
    """The code whose value is nearest; of two equally near ones the even one."""
    mantissa_bits, bias, codes = (3, 7, 0x7F) if name == "float8e4m3" else (2, 15, 0x7C)
    magnitude = abs(value)
    best = min(
        range(codes),
        key=lambda code: (abs(_float8(code, mantissa_bits, bias) - magnitude), code & 1),
    )
    if magnitude > _float8(codes - 1, mantissa_bits, bias):
        raise OverflowError(f"{value} is beyond {name}")
    return best | (0x80 if value < 0 else 0)


def _float8(code: int, mantissa_bits: int, bias: int) -> float:
    exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    if exponent == 0:
        return float(fraction * 2.0 ** (1 - bias))
    return float((1 + fraction) * 2.0 ** (exponent - bias))
